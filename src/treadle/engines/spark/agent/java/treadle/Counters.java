package treadle;

import java.lang.instrument.Instrumentation;
import java.lang.invoke.MethodHandle;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.ref.Reference;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Reads the counters of the tasks in this JVM while the tasks run.
 *
 * Each task has a row of columns, which are found once and then only read. A column is `cpu` (nanoseconds since the task
 * was first seen), `in` or `out` (records that the
 * task took from its source, or wrote to its sink), `read` or `written` (records of ordinary shuffles), `metric:ID` (a
 * SQL metric that counts rows or bytes; the driver knows of which operator it is), `offset:N` and `end:N` (of its Nth
 * Kafka partition, what it reads next and the newest, as far as its consumer has heard), and of a streaming shuffle S
 * `waiting:S` (messages in the reader's queue), `message:S` (sequence number of the message that is being read; -1 for
 * none), `from:S` (the writer of that message), `received:S` (how many messages have arrived), `writers:S` (how many
 * there are, also in other processes), `held:S` (bytes that the
 * writer has not got rid of), `writer:S` (by which it is known to readers), `sent:S:R` (the last sequence number that
 * was sent to reader R) and `filling:S:R` (bytes of the next message to it).
 *
 * Nothing is locked and nothing waits: the tasks go on meanwhile, so a value can be a moment older than the next. What
 * this version of Spark does not have is left out.
 */
final class Counters {
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();
    private static final int MOST_READERS = 64; // of one writer, beyond which sequence numbers are left out
    private static final int RARELY = 20; // looks after which it is seen whether a task has new columns
    private static final int TRIES = 3;
    private static final long AT_ONCE = 1_000_000; // nanoseconds in which few rows pass
    private final Map<Object, Task> tasks = new LinkedHashMap<>(); // by thread, and what others count by their own keys
    private final Map<Thread, Integer> unplaced = new HashMap<>(); // their tasks have not begun; looks in a hurry left
    private final Map<Class<?>, MethodHandle> metrics = new HashMap<>();
    private MethodHandle filled;
    private ThreadLocal<?> contexts;
    private Field locals;
    private Field table;
    private Field value;
    private final Instrumentation tools;
    private final Inside inside;
    private boolean changed = false; // whether a task has ended, or what others count has new columns
    private int numbers = 0;
    private int layout = 0;
    private long quickest = Long.MAX_VALUE; // nanoseconds for all values of these tasks

    /** The packages of `java.lang` must be open to us by now. */
    Counters(Instrumentation tools, Inside inside) {
        this.tools = tools;
        this.inside = inside;
    }

    /** One column: how its value is read. */
    interface Column {
        long read() throws Throwable;
    }

    /** A task that runs, or something else with columns, which has no context. */
    final class Task {
        final int number = ++numbers;
        final Object context;
        final int stage;
        final int partition;
        final long thread; // 0: none
        final long start; // what the thread had used of the CPU before
        final List<String> names = new ArrayList<>();
        final List<Column> columns = new ArrayList<>();
        final Map<String, Column> added = new LinkedHashMap<>();
        int accumulators = -1;
        int callbacks = -1;
        int looks = 0;
        boolean ended = false;

        Task(Object context, int stage, int partition, long thread) {
            this.context = context;
            this.stage = stage;
            this.partition = partition;
            this.thread = thread;
            this.start = thread == 0 ? 0 : CLOCK.getThreadCpuTime(thread);
        }

        /** Read from the next time on that it is described. */
        void add(String name, Column column) {
            added.put(name, column);
            changed = true;
        }

        boolean has(String name) {
            return names.contains(name) || added.containsKey(name);
        }

        /** Whether there are new columns. */
        boolean takeOver() {
            if (added.isEmpty()) {
                return false;
            }
            names.addAll(added.keySet());
            columns.addAll(added.values());
            added.clear();
            looks = 1;
            return true;
        }
    }

    /** Find where threads keep their tasks, which is there once a task has begun. */
    private boolean find() {
        try {
            for (Class<?> each : contexts != null ? new Class<?>[0] : tools.getAllLoadedClasses()) {
                if (each.getName().equals("org.apache.spark.TaskContext$")) {
                    findContexts(each);
                }
            }
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            contexts = null;
        }
        return contexts != null;
    }

    private void findContexts(Class<?> holder) throws ReflectiveOperationException {
        Object module = holder.getField("MODULE$").get(null);
        locals = Thread.class.getDeclaredField("threadLocals");
        locals.setAccessible(true);
        for (Class<?> map : ThreadLocal.class.getDeclaredClasses()) {
            if (map.getSimpleName().equals("ThreadLocalMap")) {
                table = map.getDeclaredField("table");
                table.setAccessible(true);
                for (Class<?> each : map.getDeclaredClasses()) {
                    if (each.getSimpleName().equals("Entry")) {
                        value = each.getDeclaredField("value");
                        value.setAccessible(true);
                    }
                }
            }
        }
        for (Field each : holder.getDeclaredFields()) {
            if (ThreadLocal.class.isAssignableFrom(each.getType())) {
                each.setAccessible(true);
                contexts = (ThreadLocal<?>) each.get(Modifier.isStatic(each.getModifiers()) ? null : module);
            }
        }
    }

    /** A thread works on another task now, or on none. */
    void follow(Thread thread, boolean works) {
        end(thread);
        if (works) {
            unplaced.put(thread, RARELY);
        } else {
            unplaced.remove(thread);
        }
    }

    /** Read columns that somebody else adds, of a stage or of none (-1), until they end. */
    Task begin(Object key, int stage, int partition) {
        Task row = new Task(null, stage, partition, 0);
        tasks.put(key, row);
        return row;
    }

    /** Nothing, if nobody has added columns by this key. */
    void end(Object key) {
        Task row = tasks.get(key);
        if (row != null) {
            row.ended = changed = true;
        }
    }

    /** Whether what is read is out of date: a task has begun or ended. One that takes long to begin can wait. */
    boolean isStale() {
        return changed || unplaced.values().stream().anyMatch(left -> left > 0);
    }

    /**
     * Read everything: the values of the tasks that were described before, some for the last time, and then, if tasks
     * have begun or ended, those of the new ones, which are described in `say`. Null where there is nothing to read.
     */
    ByteBuffer[] look(StringBuilder say) {
        ByteBuffer before = tasks.isEmpty() || layout == 0 ? null : values(); // none is described yet
        boolean differs = changed && tasks.values().removeIf(task -> task.ended);
        changed = false;
        for (var each = unplaced.entrySet().iterator(); each.hasNext(); ) {
            Map.Entry<Thread, Integer> thread = each.next();
            Task task = begin(thread.getKey());
            if (task != null) {
                tasks.put(thread.getKey(), task);
                differs = true;
            }
            if (task != null) {
                each.remove();
            } else {
                thread.setValue(thread.getValue() - 1);
            }
        }
        for (Task task : tasks.values()) {
            differs |= renew(task);
        }
        if (differs) {
            describe(say);
        }
        return new ByteBuffer[] {before, differs && !tasks.isEmpty() ? values() : null};
    }

    private void describe(StringBuilder say) {
        StringBuilder order = new StringBuilder();
        for (Task task : tasks.values()) {
            order.append(order.length() == 0 ? "" : ",").append(task.number);
            if (task.looks == 1) {
                say.append("task\t").append(task.number).append('\t').append(task.stage).append('\t');
                say.append(task.partition).append('\t').append(String.join(",", task.names)).append('\n');
            }
        }
        quickest = Long.MAX_VALUE;
        say.append("tasks\t").append(++layout).append('\t').append(order).append('\n');
    }

    /** All values, read again if the thread lost the core meanwhile: they would be of different times. */
    private ByteBuffer values() {
        ByteBuffer all = null;
        for (int tries = 0; tries < TRIES; tries++) {
            long began = System.nanoTime();
            all = values(began);
            long took = System.nanoTime() - began;
            quickest = Math.min(quickest, took);
            if (took <= Math.max(AT_ONCE, 3 * quickest)) {
                break;
            }
        }
        return all;
    }

    private ByteBuffer values(long now) {
        int count = 0;
        for (Task task : tasks.values()) {
            count += task.columns.size();
        }
        ByteBuffer all = ByteBuffer.allocate(4 + 1 + (2 + count) * Long.BYTES);
        all.putInt(1 + (2 + count) * Long.BYTES).put((byte) 0).putLong(now).putLong(layout);
        for (Task task : tasks.values()) {
            for (Column column : task.columns) {
                long number;
                try {
                    number = column.read();
                } catch (Throwable unknown) {
                    number = -1;
                }
                all.putLong(number);
            }
        }
        return all.flip();
    }

    /** The task that a thread works on; null while it has not begun. */
    private Task begin(Thread thread) {
        try {
            Object context = find() ? context(thread) : null;
            if (context == null) {
                return null;
            }
            Task before = tasks.get(thread);
            return before != null && before.context == context ? null : begun(thread, context);
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            return null;
        }
    }

    private Task begun(Thread thread, Object context) throws ReflectiveOperationException {
        int stage = (Integer) inside.field(context, "stageId");
        return new Task(context, stage, (Integer) inside.field(context, "partitionId"), thread.getId());
    }

    /** Its own method to look a thread local up may tidy the table, which only the thread itself may do. */
    private Object context(Thread thread) throws ReflectiveOperationException {
        Object map = locals.get(thread);
        Object[] entries = map == null ? new Object[0] : (Object[]) table.get(map);
        for (Object each : entries) {
            if (each != null && refersTo((Reference<?>) each, contexts)) {
                return value.get(each);
            }
        }
        return null;
    }

    @SuppressWarnings("unchecked")
    private static boolean refersTo(Reference<?> entry, Object local) {
        return ((Reference<Object>) entry).refersTo(local);
    }

    /** Find a task's columns, if there can be new ones; whether there are. */
    private boolean renew(Task task) {
        if (task.context == null) {
            task.looks++;
            return task.takeOver();
        }
        if (task.looks++ > RARELY && task.looks % RARELY != 0) {
            return false;
        }
        try {
            Object measured = inside.field(task.context, "taskMetrics");
            Object accumulators = inside.field(measured, "_externalAccums");
            Object callbacks = inside.field(task.context, "onCompleteCallbacks");
            int count = accumulators == null ? 0 : (Integer) inside.call(accumulators, "size");
            int calls = callbacks == null ? 0 : ((Collection<?>) callbacks).size();
            if (count == task.accumulators && calls == task.callbacks || calls < task.callbacks) {
                return false; // nothing is new, or it is ending, and what it has counted is read to the last
            }
            task.accumulators = count;
            task.callbacks = calls;
            task.names.clear();
            task.columns.clear();
            addRecords(task, measured);
            Method get = count == 0 ? null : indexed(accumulators);
            for (int place = 0; place < count; place++) {
                Object metric = get.invoke(accumulators, place);
                if (metric != null && metric.getClass().getSimpleName().equals("SQLMetric")) {
                    addMetric(task, metric);
                }
            }
            if (callbacks != null) {
                for (Object callback : ((Collection<?>) callbacks).toArray()) {
                    addEnds(task, callback);
                }
            }
            return task.takeOver();
        } catch (ReflectiveOperationException | RuntimeException | LinkageError error) {
            return false; // a task that begins or ends just now
        }
    }

    private void addRecords(Task task, Object measured) {
        task.add("cpu", () -> CLOCK.getThreadCpuTime(task.thread) - task.start);
        String[][] all = {
            {"in", "inputMetrics", "recordsRead"},
            {"out", "outputMetrics", "recordsWritten"},
            {"read", "shuffleReadMetrics", "recordsRead"},
            {"written", "shuffleWriteMetrics", "recordsWritten"},
        };
        for (String[] each : all) {
            try {
                Object group = inside.call(measured, each[1]);
                MethodHandle count = inside.counter(group, each[2]);
                task.add(each[0], () -> (long) count.invokeExact(group));
            } catch (ReflectiveOperationException | RuntimeException absent) {
                // another version of Spark
            }
        }
    }

    private void addMetric(Task task, Object metric) throws ReflectiveOperationException {
        String name = String.valueOf(inside.call(metric, "name")); // an option
        if (name.startsWith("Some(") && !Agent.KINDS.containsKey(name.substring(5, name.length() - 1))) {
            return; // times and the like, of which there are many
        }
        MethodHandle read = metrics.get(metric.getClass());
        if (read == null) {
            for (Method each : metric.getClass().getMethods()) {
                if (each.getName().equals("value") && each.getReturnType() == long.class) {
                    read = Inside.handle(each);
                    metrics.put(metric.getClass(), read);
                }
            }
        }
        if (read != null) {
            MethodHandle count = read;
            long id = (Long) inside.call(metric, "id");
            task.add("metric:" + id, () -> (long) count.invokeExact(metric));
        }
    }

    /** What a task does at its end tells of its sources, readers and writer: each has to be closed then. */
    private void addEnds(Task task, Object callback) throws ReflectiveOperationException {
        Object closing = inside.field(callback, "f$1");
        if (closing == null) {
            return;
        }
        for (Field each : closing.getClass().getDeclaredFields()) {
            each.setAccessible(true);
            Object ends = each.get(Modifier.isStatic(each.getModifiers()) ? null : closing);
            switch (ends == null ? "" : ends.getClass().getSimpleName()) {
                case "StreamingShuffleReader" -> addReader(task, ends);
                case "StreamingShuffleWriter" -> addWriter(task, ends);
                case "DataSourceRDD" -> addSources(task, ends);
                default -> { }
            }
        }
    }

    private void addSources(Task task, Object source) throws ReflectiveOperationException {
        Object states = inside.field(source, "taskStates");
        Object state = states == null ? null : ((Map<?, ?>) states).get(inside.field(task.context, "taskAttemptId"));
        Object parts = inside.field(state, "partitionIterators");
        int count = parts == null ? 0 : (Integer) inside.call(parts, "size");
        if (count == 0) {
            task.callbacks = -1; // it is about to open them: look again
        }
        for (int place = 0; place < count; place++) {
            Object reader = inside.field(indexed(parts).invoke(parts, place), "reader");
            while (reader != null && !reader.getClass().getSimpleName().equals("KafkaBatchPartitionReader")) {
                reader = inside.field(reader, "reader"); // one around it, in Real-Time Mode
            }
            if (reader != null) {
                Object kafka = reader;
                Object client = inside.field(kafka, "consumer");
                task.add("offset:" + place, () -> inside.number(kafka, "nextOffset"));
                task.add("end:" + place, () -> newest(client));
            }
        }
    }

    /** The offset of the newest record of a consumer's partition, as its last answer from Kafka said. */
    private long newest(Object client) throws ReflectiveOperationException {
        Object found = inside.field(client, "_consumer"); // an option
        for (String next : new String[] {"value", "consumer", "delegate", "subscriptions", "assignment", "map"}) {
            found = inside.field(found, next);
        }
        for (Object partition : found == null ? List.of() : ((Map<?, ?>) found).values()) {
            return inside.number(partition, "highWatermark");
        }
        return -1;
    }

    private void addReader(Task task, Object reader) throws ReflectiveOperationException {
        int shuffle = shuffle(reader);
        Collection<?> queue = (Collection<?>) inside.field(reader, "messageQueue");
        Field current = inside.find(reader.getClass(), "currentDataMessage");
        if (task.has("waiting:" + shuffle) || queue == null || current == null) {
            return;
        }
        task.add("waiting:" + shuffle, queue::size);
        task.add("message:" + shuffle, () -> inside.number(current.get(reader), "seqNum"));
        task.add("from:" + shuffle, () -> inside.number(current.get(reader), "shuffleWriterId"));
        if (inside.field(reader, "clientMap") instanceof Map<?, ?> clients) {
            task.add("received:" + shuffle, new Received(clients));
            task.add("writers:" + shuffle, clients::size);
        }
    }

    /** How many messages a reader has got, from all its writers. */
    private final class Received implements Column {
        private final Map<?, ?> clients; // by writer; they come once the task runs
        private final Map<Object, Object> handlers = new IdentityHashMap<>();

        Received(Map<?, ?> clients) {
            this.clients = clients;
        }

        @Override
        public long read() throws ReflectiveOperationException {
            long messages = 0;
            for (Object client : clients.values()) {
                Object handler = handlers.get(client);
                if (handler == null) {
                    handler = handlerOf(client);
                    if (handler == null) {
                        return -1;
                    }
                    handlers.put(client, handler);
                }
                messages += inside.number(handler, "lastSeqNum") + 1;
            }
            return messages;
        }

        /** What takes its messages; null in a version of Spark in which that is another thing. */
        private Object handlerOf(Object client) {
            try {
                Object pipeline = inside.call(inside.field(client, "channel"), "pipeline");
                Method get = pipeline.getClass().getMethod("get", String.class);
                get.setAccessible(true);
                Object requests = inside.field(get.invoke(pipeline, "handler"), "requestHandler");
                Object found = inside.field(requests, "rpcHandler");
                return found == null || inside.find(found.getClass(), "lastSeqNum") == null ? null : found;
            } catch (ReflectiveOperationException | RuntimeException unknown) {
                return null;
            }
        }
    }

    private void addWriter(Task task, Object writer) throws ReflectiveOperationException {
        int shuffle = shuffle(writer);
        Semaphore free = (Semaphore) inside.field(writer, "allocatedBufferBytesSemaphore");
        Object budget = inside.field(writer, "effectiveBudget");
        Object shards = inside.field(writer, "shards");
        if (task.has("held:" + shuffle) || free == null || budget == null || shards == null) {
            return;
        }
        long all = ((Number) budget).longValue();
        Object capacity = inside.field(writer, "BUFFER_SIZE");
        long each = capacity == null ? 0 : ((Number) capacity).longValue();
        task.add("held:" + shuffle, () -> held(all - free.availablePermits(), each, shards));
        task.add("writer:" + shuffle, () -> inside.number(writer, "shuffleWriterId"));
        for (int reader = 0; reader < Array.getLength(shards) && Array.getLength(shards) <= MOST_READERS; reader++) {
            Object shard = Array.get(shards, reader);
            AtomicLong sent = (AtomicLong) inside.field(shard, "lastSentSequenceNum");
            AtomicReference<?> buffer = (AtomicReference<?>) inside.field(shard, "buffer");
            task.add("sent:" + shuffle + ":" + reader, sent::get);
            task.add("filling:" + shuffle + ":" + reader, () -> bytes(buffer.get()));
        }
    }

    /**
     * Bytes that wait: what was set aside for all messages, but of one that is being filled what is in it. One more is
     * kept for the next message, empty.
     */
    private long held(long aside, long each, Object shards) throws Throwable {
        aside -= each;
        for (int reader = 0; reader < Array.getLength(shards); reader++) {
            Object buffer = ((AtomicReference<?>) inside.field(Array.get(shards, reader), "buffer")).get();
            aside -= buffer == null ? 0 : each - bytes(buffer);
        }
        return Math.max(0, aside);
    }

    private long bytes(Object buffer) throws Throwable {
        if (buffer == null) {
            return 0;
        }
        if (filled == null) {
            filled = inside.counter(buffer, "totalByteSize");
        }
        return (long) filled.invokeExact(buffer);
    }

    private int shuffle(Object end) throws ReflectiveOperationException {
        Object handle = inside.field(end, "streamingShuffleHandle");
        return (Integer) inside.call(handle, "shuffleId");
    }

    private static Method indexed(Object sequence) throws NoSuchMethodException {
        Method found = sequence.getClass().getMethod("apply", int.class);
        found.setAccessible(true);
        return found;
    }
}
