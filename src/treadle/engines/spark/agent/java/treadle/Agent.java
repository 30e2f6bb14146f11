package treadle;

import java.io.IOException;
import java.lang.instrument.Instrumentation;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;

/**
 * Says, from inside of a running Spark process, which threads there are and whose the stages are that run.
 *
 * It is loaded with the path of a Unix socket, connects to it, and ends when that connection ends. It listens on no port.
 * It changes only the order of waiting tasks (`TaskOrder`) and when queries begin a batch (`BatchTurns`), and restores both
 * when it ends. It looks when it is loaded, and then periodically. The other side sets the periods by a message of five numbers of 8 bytes: a time of
 * System.nanoTime() to count from; the nanoseconds between two looks, between two looks at the stacks of task threads, and
 * between two looks at the counters of tasks (0: never); and the length of the text that follows: see `arrange`. For a
 * second after a change it looks twice as often.
 *
 * If anything differs from the last look it sends a length and then what differs, one thing a line, fields apart by tabs:
 * at first `agent protocol`, then `thread id address name`, `gone id`; from a driver also `driver 0 application's-id name`,
 * `job id execution stage,… description`, `shuffle id stage`, `over id`, `plan execution text`, `graph execution operators`
 * and of a streaming query's last batch with rows `batch id-of-its-thread rows-a-second rows-put-out` for each taken (-1:
 * not known, or not from Kafka into Kafka); after a look at the stacks, of all of them, `stack id state frame,…`. What has
 * counters is described by `task number stage partition column,…`: a task, or a query in micro-batches (-1, the id of its
 * thread). `tasks layout number,…` says in which order their values follow, in frames that begin with a zero: time, layout
 * and the columns of all, 8 bytes each.
 *
 * A look takes some microseconds for each thread, and only one at stacks needs a safepoint. Spark is reached by reflection:
 * whatever version it is of, and whichever class loader has it.
 */
public final class Agent {
    private static final String EXECUTION = "spark.sql.execution.root.id";
    private static final int PROTOCOL = 11;
    private static final String TASK = "Executor task launch worker";
    private static final String QUERY = "stream execution thread for";
    static final Map<String, String> KINDS = Map.of("number of output rows", "rows", "data size", "bytes");
    private static final Object NONE = new Object();
    private static final int FRAMES = 8; // what tells waiting for a shuffle from being blocked by one is the sixth
    private static final long SELDOM = 1_000_000_000;
    private static final long RESTLESS = 1_000_000_000;
    private static final long LONGEST_WRITE = 30_000_000_000L; // whoever stands still for so long is given up
    private static final int LONGEST = 1 << 20; // bytes of an order of tasks
    private final Instrumentation tools;
    private final StringBuilder answer = new StringBuilder();
    private final Map<Thread, String> threads = new IdentityHashMap<>();
    private final Map<Integer, String> jobs = new TreeMap<>();
    private final Set<String> planless = new HashSet<>();
    private final Map<Thread, Object> batches = new IdentityHashMap<>();
    private final Inside inside = new Inside();
    private Class<?> contexts;
    private Object module; // its only object
    private Class<?> executions;
    private Class<?> graphs;
    private Thread[] found = new Thread[256];
    private Field record;
    private boolean drives;
    private boolean hello = true;
    private final Counters counters;
    private final Batches whole;
    private final TaskOrder order;
    private final BatchTurns turns;

    private Agent(Instrumentation tools) {
        this.tools = tools;
        this.counters = new Counters(tools, inside);
        this.whole = new Batches(inside, counters);
        this.order = new TaskOrder(inside);
        this.turns = new BatchTurns(inside);
    }

    public static void agentmain(String path, Instrumentation tools) throws IOException {
        SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(path));
        Thread thread = new Thread(() -> new Agent(tools).serve(channel), "treadle-agent");
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(SocketChannel channel) {
        try (channel; Selector waiting = Selector.open()) {
            channel.configureBlocking(false);
            channel.register(waiting, SelectionKey.OP_READ);
            ByteBuffer told = ByteBuffer.allocate(5 * Long.BYTES);
            ByteBuffer ordered = ByteBuffer.allocate(0);
            long first = System.nanoTime();
            long pause = SELDOM;
            long next = first;
            long changed = first;
            long stacks = 0;
            long nextStacks = first;
            long counts = 0;
            long nextCounts = first;
            findSpark();
            while (channel.read(told.hasRemaining() ? told : ordered) >= 0) {
                if (!told.hasRemaining() && !ordered.hasRemaining()) {
                    if (ordered.capacity() == 0 && told.getLong(4 * Long.BYTES) > 0) {
                        ordered = ByteBuffer.allocate((int) Math.min(told.getLong(4 * Long.BYTES), LONGEST));
                        continue;
                    }
                    told.flip();
                    next = first = told.getLong();
                    pause = told.getLong();
                    stacks = told.getLong();
                    counts = told.getLong();
                    arrange(new String(ordered.array(), StandardCharsets.UTF_8));
                    told.clear();
                    ordered = ByteBuffer.allocate(0);
                }
                long now = System.nanoTime();
                if (now >= next) {
                    boolean stacksToo = stacks > 0 && now >= nextStacks;
                    nextStacks = stacksToo ? now + stacks - pause / 2 : nextStacks;
                    boolean countsToo = counts > 0 && now >= nextCounts;
                    nextCounts = countsToo ? now + counts - pause / 2 : nextCounts;
                    changed = look(channel, stacksToo, countsToo, counts > 0) ? now : changed;
                    long step = now - changed < RESTLESS ? pause / 2 : pause; // what comes in the middle may be late
                    next = first + ((now - first) / step + 1) * step;
                } else {
                    waiting.select((next - now) / 1_000_000 + 1); // rounded up: to wake too early costs a second time
                    waiting.selectedKeys().clear();
                }
            }
        } catch (IOException | RuntimeException | LinkageError error) {
            // whoever asked is gone, or hears by the end of the connection that there is no more to come
        } finally {
            turns.restore();
            order.restore();
        }
    }

    /** Slots of batches, milliseconds between two of a query, and the runs of queries, apart by commas; or nothing. */
    private void arrange(String text) {
        String[] fields = text.isEmpty() ? new String[] {"0", "0"} : text.split(",");
        List<String> runs = Arrays.asList(fields).subList(2, fields.length);
        turns.set(Integer.parseInt(fields[0]), Long.parseLong(fields[1]), runs);
        order.set(runs);
    }

    /** Whether anything was new but stacks. */
    private boolean look(SocketChannel channel, boolean stacksToo, boolean countsToo, boolean counts) throws IOException {
        if (hello) {
            line("agent", PROTOCOL);
            hello = false;
        }
        lookAtThreads(); // before the jobs, so that of each task that is seen the job is too
        if (contexts != null) {
            lookAtJobs();
            lookAtBatches();
        }
        boolean changed = answer.length() > 0;
        boolean looks = countsToo || (counts && counters.isStale());
        if (looks) {
            whole.look();
        }
        ByteBuffer[] values = looks ? counters.look(answer) : new ByteBuffer[2];
        write(channel, values[0]);
        send(channel); // what follows may take long
        write(channel, values[1]);
        if (stacksToo) {
            lookAtStacks();
            send(channel);
        }
        return changed;
    }

    private void send(SocketChannel channel) throws IOException {
        if (answer.length() > 0) {
            byte[] text = answer.toString().getBytes(StandardCharsets.UTF_8);
            write(channel, ByteBuffer.allocate(4 + text.length).putInt(text.length).put(text).flip());
            answer.setLength(0);
        }
    }

    private static void write(SocketChannel channel, ByteBuffer whole) throws IOException {
        long began = System.nanoTime();
        while (whole != null && channel.write(whole) >= 0 && whole.hasRemaining()) {
            if (System.nanoTime() - began > LONGEST_WRITE) {
                throw new IOException("the other side reads nothing");
            }
            LockSupport.parkNanos(1_000_000); // until there is room again
        }
    }

    private void findSpark() {
        for (Class<?> each : tools.getAllLoadedClasses()) {
            if (each.getName().equals("org.apache.spark.SparkContext$")) {
                contexts = each;
            }
        }
    }

    private void lookAtThreads() {
        ThreadGroup root = Thread.currentThread().getThreadGroup();
        while (root.getParent() != null) {
            root = root.getParent();
        }
        int count = root.enumerate(found);
        while (count == found.length) {
            found = new Thread[2 * found.length];
            count = root.enumerate(found);
        }
        for (int place = 0; place < count; place++) {
            String name = found[place].getName();
            if (!name.equals(threads.get(found[place]))) {
                threads.put(found[place], name);
                line("thread", found[place].getId(), Long.toString(address(found[place])), name);
                counters.follow(found[place], name.startsWith(TASK + " for"));
                if (name.startsWith(QUERY)) {
                    batches.put(found[place], NONE);
                    whole.follow(found[place]);
                    line("batch", found[place].getId(), "0", "-1");
                }
            }
        }
        if (threads.size() > count) {
            Set<Thread> alive = Collections.newSetFromMap(new IdentityHashMap<>());
            alive.addAll(Arrays.asList(found).subList(0, count));
            for (Iterator<Thread> each = threads.keySet().iterator(); each.hasNext(); ) {
                Thread thread = each.next();
                if (!alive.contains(thread)) {
                    line("gone", thread.getId());
                    batches.remove(thread);
                    whole.end(thread);
                    counters.follow(thread, false);
                    each.remove();
                }
            }
        }
        Arrays.fill(found, 0, count, null);
    }

    private void lookAtStacks() {
        long[] tasks =
                threads.entrySet().stream()
                        .filter(each -> each.getValue().startsWith(TASK))
                        .mapToLong(each -> each.getKey().getId())
                        .toArray();
        for (ThreadInfo each : ManagementFactory.getThreadMXBean().getThreadInfo(tasks, FRAMES)) {
            if (each != null) {
                StringBuilder frames = new StringBuilder();
                for (StackTraceElement frame : each.getStackTrace()) {
                    frames.append(frames.length() == 0 ? "" : ",");
                    frames.append(frame.getClassName()).append('.').append(frame.getMethodName());
                }
                line("stack", each.getThreadId(), each.getThreadState().name(), frames.toString());
            }
        }
    }

    /** Where the JVM keeps its record of a thread; 0 if that can't be known. */
    private long address(Thread thread) {
        try {
            if (record == null) {
                Module own = Agent.class.getModule();
                Module java = Thread.class.getModule();
                if (!java.isOpen("java.lang", own)) { // Spark's own launcher opens it to all
                    Map<String, Set<Module>> opens = Map.of("java.lang", Set.of(own));
                    tools.redefineModule(java, Set.of(), Map.of(), opens, Set.of(), Map.of());
                }
                record = Thread.class.getDeclaredField("eetop");
                record.setAccessible(true);
            }
            return record.getLong(thread);
        } catch (ReflectiveOperationException | RuntimeException error) {
            return 0;
        }
    }

    /** What belongs to the scheduler's own thread is read without a lock: what comes out wrong is looked at again. */
    private void lookAtJobs() {
        try {
            module = module == null ? contexts.getField("MODULE$").get(null) : module;
            Object context = inside.get(inside.call(module, "getActive"));
            if (context == null) {
                return;
            }
            if (!drives) {
                drives = true;
                line("driver", 0, (String) inside.call(context, "applicationId"), (String) inside.call(context, "appName"));
            }
            Object scheduler = inside.call(context, "dagScheduler");
            Map<Integer, Object> active = new TreeMap<>();
            Object running = inside.call(inside.call(scheduler, "activeJobs"), "iterator");
            while ((Boolean) inside.call(running, "hasNext")) {
                Object job = inside.call(running, "next");
                active.put((Integer) inside.call(job, "jobId"), job);
            }
            for (Map.Entry<Integer, Object> each : active.entrySet()) {
                if (!jobs.containsKey(each.getKey())) {
                    begin(scheduler, each.getKey(), each.getValue());
                }
            }
            for (Iterator<Map.Entry<Integer, String>> each = jobs.entrySet().iterator(); each.hasNext(); ) {
                Map.Entry<Integer, String> job = each.next();
                if (!active.containsKey(job.getKey())) {
                    line("over", job.getKey());
                    whole.end(job.getKey());
                    planless.remove(job.getValue());
                    each.remove();
                }
            }
            whole.lookForMissed(context, scheduler, jobs.keySet());
            order.apply(context);
            turns.apply(whole.running());
            if (!planless.isEmpty()) {
                lookForPlans(context);
            }
        } catch (ReflectiveOperationException | RuntimeException error) {
            line("trouble", 0, error.toString());
        }
    }

    /** The thread of a query is an inner class of it, which has a report of its last batch. */
    private void lookAtBatches() {
        for (Iterator<Map.Entry<Thread, Object>> each = batches.entrySet().iterator(); each.hasNext(); ) {
            Map.Entry<Thread, Object> last = each.next();
            try {
                Object report = inside.call(inside.field(last.getKey(), "$outer"), "lastProgress");
                if (report != null && report != last.getValue()) {
                    boolean first = last.setValue(report) == NONE;
                    long taken = (Long) inside.call(report, "numInputRows");
                    if (taken > 0 || first) {
                        tell(last.getKey(), report, taken);
                    }
                }
            } catch (ReflectiveOperationException | RuntimeException | LinkageError unknown) {
                each.remove(); // this Spark has no such thing: it stays unknown
            }
        }
    }

    private void tell(Thread query, Object report, long taken) throws ReflectiveOperationException {
        Object sink = inside.call(report, "sink");
        boolean kafka = isKafka(sink);
        for (Object source : (Object[]) inside.call(report, "sources")) {
            kafka &= isKafka(source);
        }
        long out = kafka ? (Long) inside.call(sink, "numOutputRows") : -1;
        double rate = (Double) inside.call(report, "inputRowsPerSecond"); // not a number for a first batch
        rate = rate > 0 ? rate : (Double) inside.call(report, "processedRowsPerSecond");
        String each = taken == 0 && kafka ? "0" : Double.toString(out < 0 ? -1 : (double) out / taken);
        line("batch", query.getId(), Double.toString(taken > 0 ? rate : 0), each);
    }

    private boolean isKafka(Object end) throws ReflectiveOperationException {
        return ((String) inside.call(end, "description")).toLowerCase(Locale.ROOT).contains("kafka");
    }

    private void begin(Object scheduler, int number, Object job) throws ReflectiveOperationException {
        Properties properties = (Properties) inside.call(job, "properties");
        String execution = properties == null ? "" : properties.getProperty(EXECUTION, "");
        String description = properties == null ? "" : properties.getProperty("spark.job.description", "");
        Object numbers = inside.get(inside.call(inside.call(scheduler, "jobIdToStageIds"), "get", number));
        if (numbers == null) {
            return;
        }
        StringBuilder stages = new StringBuilder();
        List<Object> its = new ArrayList<>();
        for (Object each = inside.call(numbers, "iterator"); (Boolean) inside.call(each, "hasNext"); ) {
            Integer stage = (Integer) inside.call(each, "next");
            Object what = inside.get(inside.call(inside.call(scheduler, "stageIdToStage"), "get", stage));
            if (what == null) {
                return;
            }
            stages.append(stages.length() == 0 ? "" : ",").append(stage);
            its.add(what);
            if (what.getClass().getSimpleName().equals("ShuffleMapStage")) {
                line("shuffle", ((Integer) inside.call(inside.call(what, "shuffleDep"), "shuffleId")), stage.toString());
            }
        }
        jobs.put(number, execution);
        if (!execution.isEmpty()) {
            planless.add(execution);
        }
        line("job", number, execution.isEmpty() ? "-1" : execution, stages.toString(), description);
        if (properties != null) {
            whole.begin(number, properties.getProperty("spark.jobGroup.id", ""), its);
        }
    }

    /** As Spark itself has written it down for its UI, which is some time after the job began. */
    private void lookForPlans(Object context) throws ReflectiveOperationException {
        if (executions == null) {
            executions = sparkClass("SQLExecutionUIData");
            graphs = sparkClass("SparkPlanGraphWrapper");
        }
        Object store = inside.call(inside.call(context, "statusStore"), "store");
        Method read = store.getClass().getMethod("read", Class.class, Object.class);
        for (Iterator<String> each = planless.iterator(); each.hasNext(); ) {
            long execution = Long.parseLong(each.next());
            try {
                Object graph = inside.call(read.invoke(store, graphs, execution), "toSparkPlanGraph");
                Object data = read.invoke(store, executions, execution);
                line("graph", execution, described(graph));
                line("plan", execution, (String) inside.call(data, "physicalPlanDescription"));
                each.remove();
            } catch (InvocationTargetException notYet) {
                // it will be there at one of the next looks
            }
        }
    }

    private Class<?> sparkClass(String name) throws ClassNotFoundException {
        return Class.forName("org.apache.spark.sql.execution.ui." + name, true, contexts.getClassLoader());
    }

    /** A line for each operator: its number, that of the one that it feeds (-1: none), its row counters, its name. */
    private String described(Object graph) throws ReflectiveOperationException {
        Map<Object, Object> feeds = new HashMap<>();
        for (Object each = inside.call(inside.call(graph, "edges"), "iterator"); (Boolean) inside.call(each, "hasNext"); ) {
            Object edge = inside.call(each, "next");
            feeds.put(inside.call(edge, "fromId"), inside.call(edge, "toId"));
        }
        StringBuilder text = new StringBuilder();
        for (Object each = inside.call(inside.call(graph, "allNodes"), "iterator"); (Boolean) inside.call(each, "hasNext"); ) {
            Object node = inside.call(each, "next");
            Object id = inside.call(node, "id");
            text.append(id).append('\t').append(feeds.getOrDefault(id, -1L)).append('\t');
            for (Object of = inside.call(inside.call(node, "metrics"), "iterator"); (Boolean) inside.call(of, "hasNext"); ) {
                Object metric = inside.call(of, "next");
                String kind = KINDS.get((String) inside.call(metric, "name"));
                if (kind != null) {
                    text.append(kind).append('=').append(inside.call(metric, "accumulatorId")).append(',');
                }
            }
            text.append('\t').append(inside.call(node, "name")).append('\n');
        }
        return text.toString();
    }

    private void line(String what, long number, String... fields) {
        answer.append(what).append('\t').append(number);
        for (String field : fields) {
            answer.append('\t').append(escaped(field));
        }
        answer.append('\n');
    }

    private static String escaped(String text) {
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r");
    }
}
