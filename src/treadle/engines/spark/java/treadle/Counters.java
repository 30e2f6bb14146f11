package treadle;

import java.lang.instrument.Instrumentation;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.ref.Reference;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Reads the counters of the tasks in this JVM while the tasks run.
 *
 * Each task has a row of columns, which are found once and then only read. A column is `in` or `out` (records that the
 * task took from its source, or wrote to its sink), `read` or `written` (records of ordinary shuffles), `metric:ID` (a
 * SQL metric that counts rows or bytes; the driver knows of which operator it is), `offset:N` and `end:N` (of its Nth
 * Kafka partition, what it reads next and the newest, as far as its consumer has heard), and of a streaming shuffle S `waiting:S` (messages in the
 * reader's queue), `message:S` (sequence number of the message that is being read; -1 for none), `from:S` (the writer
 * of that message), `held:S` (bytes that the writer has not got rid of), `writer:S` (by which it is known to readers),
 * `sent:S:R` (the last sequence number that was sent to reader R) and `filling:S:R` (bytes of the next message to it).
 *
 * Nothing is locked and nothing waits: the tasks go on meanwhile, so a value can be a moment older than the next. What
 * this version of Spark does not have is left out.
 */
final class Counters {
    private static final int MOST_READERS = 64; // of one writer, beyond which sequence numbers are left out
    private static final int RARELY = 20; // looks after which it is seen whether a task has new columns
    private final Map<Thread, Task> tasks = new LinkedHashMap<>();
    private final Map<Thread, Integer> unplaced = new HashMap<>(); // their tasks have not begun; looks that are left
    private final Map<Class<?>, Map<String, Field>> fields = new HashMap<>();
    private final Map<Class<?>, MethodHandle> metrics = new HashMap<>();
    private MethodHandle filled;
    private ThreadLocal<?> contexts;
    private Field locals;
    private Field table;
    private Field value;
    private final Instrumentation tools;
    private boolean ended = false; // whether one of the tasks has
    private int numbers = 0;
    private int layout = 0;

    /** The packages of `java.lang` must be open to us by now. */
    Counters(Instrumentation tools) {
        this.tools = tools;
    }

    /** One column: how its value is read. */
    private interface Column {
        long read() throws Throwable;
    }

    private final class Task {
        final int number = ++numbers;
        final Object context;
        final int stage;
        final int partition;
        final List<String> names = new ArrayList<>();
        final List<Column> columns = new ArrayList<>();
        int accumulators = -1;
        int callbacks = -1;
        int looks = 0;
        boolean ended = false;

        Task(Object context) throws ReflectiveOperationException {
            this.context = context;
            this.stage = (Integer) field(context, "stageId");
            this.partition = (Integer) field(context, "partitionId");
        }

        void add(String name, Column column) {
            names.add(name);
            columns.add(column);
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
        Task before = tasks.get(thread);
        if (before != null) {
            before.ended = ended = true;
        }
        if (works) {
            unplaced.put(thread, RARELY);
        } else {
            unplaced.remove(thread);
        }
    }

    /** Whether what is read is out of date: a task has begun or ended. */
    boolean isStale() {
        return ended || !unplaced.isEmpty();
    }

    /**
     * Read everything: the values of the tasks that were described before, some for the last time, and then, if tasks
     * have begun or ended, those of the new ones, which are described in `say`. Null where there is nothing to read.
     */
    ByteBuffer[] look(StringBuilder say) {
        ByteBuffer before = tasks.isEmpty() ? null : values();
        boolean changed = ended && tasks.values().removeIf(task -> task.ended);
        ended = false;
        for (var each = unplaced.entrySet().iterator(); each.hasNext(); ) {
            Map.Entry<Thread, Integer> thread = each.next();
            Task task = begin(thread.getKey());
            if (task != null) {
                tasks.put(thread.getKey(), task);
                changed = true;
            }
            if (task != null || thread.setValue(thread.getValue() - 1) == 0) {
                each.remove();
            }
        }
        for (Task task : tasks.values()) {
            changed |= renew(task);
        }
        if (changed) {
            describe(say);
        }
        return new ByteBuffer[] {before, changed && !tasks.isEmpty() ? values() : null};
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
        say.append("tasks\t").append(++layout).append('\t').append(order).append('\n');
    }

    private ByteBuffer values() {
        int count = 0;
        for (Task task : tasks.values()) {
            count += task.columns.size();
        }
        ByteBuffer all = ByteBuffer.allocate(4 + 1 + (2 + count) * Long.BYTES);
        all.putInt(1 + (2 + count) * Long.BYTES).put((byte) 0).putLong(System.nanoTime()).putLong(layout);
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
            return before != null && before.context == context ? null : new Task(context);
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            return null;
        }
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
        if (task.looks++ > RARELY && task.looks % RARELY != 0) {
            return false;
        }
        try {
            Object measured = field(task.context, "taskMetrics");
            Object accumulators = field(measured, "_externalAccums");
            Object callbacks = field(task.context, "onCompleteCallbacks");
            int count = accumulators == null ? 0 : (Integer) method(accumulators, "size").invoke(accumulators);
            int calls = callbacks == null ? 0 : ((Collection<?>) callbacks).size();
            if (count == task.accumulators && calls == task.callbacks) {
                return false;
            }
            task.accumulators = count;
            task.callbacks = calls;
            task.names.clear();
            task.columns.clear();
            task.looks = 1;
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
            return true;
        } catch (ReflectiveOperationException | RuntimeException | LinkageError error) {
            return false; // a task that begins or ends just now
        }
    }

    private void addRecords(Task task, Object measured) {
        String[][] all = {
            {"in", "inputMetrics", "recordsRead"},
            {"out", "outputMetrics", "recordsWritten"},
            {"read", "shuffleReadMetrics", "recordsRead"},
            {"written", "shuffleWriteMetrics", "recordsWritten"},
        };
        for (String[] each : all) {
            try {
                Object group = method(measured, each[1]).invoke(measured);
                MethodHandle count = handle(method(group, each[2]));
                task.add(each[0], () -> (long) count.invokeExact(group));
            } catch (ReflectiveOperationException | RuntimeException absent) {
                // another version of Spark
            }
        }
    }

    private void addMetric(Task task, Object metric) throws ReflectiveOperationException {
        String name = String.valueOf(method(metric, "name").invoke(metric)); // an option
        if (name.startsWith("Some(") && !Agent.KINDS.containsKey(name.substring(5, name.length() - 1))) {
            return; // times and the like, of which there are many
        }
        MethodHandle read = metrics.get(metric.getClass());
        if (read == null) {
            for (Method each : metric.getClass().getMethods()) {
                if (each.getName().equals("value") && each.getReturnType() == long.class) {
                    read = handle(each);
                    metrics.put(metric.getClass(), read);
                }
            }
        }
        if (read != null) {
            MethodHandle count = read;
            long id = (Long) method(metric, "id").invoke(metric);
            task.add("metric:" + id, () -> (long) count.invokeExact(metric));
        }
    }

    /** What a task does at its end tells of its sources, readers and writer: each has to be closed then. */
    private void addEnds(Task task, Object callback) throws ReflectiveOperationException {
        Object closing = field(callback, "f$1");
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
        Object states = field(source, "taskStates");
        Object state = states == null ? null : ((Map<?, ?>) states).get(field(task.context, "taskAttemptId"));
        Object parts = field(state, "partitionIterators");
        int count = parts == null ? 0 : (Integer) method(parts, "size").invoke(parts);
        if (count == 0) {
            task.callbacks = -1; // it is about to open them: look again
        }
        for (int place = 0; place < count; place++) {
            Object reader = field(indexed(parts).invoke(parts, place), "reader");
            while (reader != null && !reader.getClass().getSimpleName().equals("KafkaBatchPartitionReader")) {
                reader = field(reader, "reader"); // one around it, in Real-Time Mode
            }
            if (reader != null) {
                Object kafka = reader;
                Object client = field(kafka, "consumer");
                task.add("offset:" + place, () -> number(kafka, "nextOffset"));
                task.add("end:" + place, () -> end(client));
            }
        }
    }

    /** The offset of the newest record of a consumer's partition, as its last answer from Kafka said. */
    private long end(Object client) throws ReflectiveOperationException {
        Object found = field(client, "_consumer"); // an option
        for (String next : new String[] {"value", "consumer", "delegate", "subscriptions", "assignment", "map"}) {
            found = field(found, next);
        }
        for (Object partition : found == null ? List.of() : ((Map<?, ?>) found).values()) {
            return number(partition, "highWatermark");
        }
        return -1;
    }

    private void addReader(Task task, Object reader) throws ReflectiveOperationException {
        int shuffle = shuffle(reader);
        Collection<?> queue = (Collection<?>) field(reader, "messageQueue");
        Field current = find(reader.getClass(), "currentDataMessage");
        if (task.names.contains("waiting:" + shuffle) || queue == null || current == null) {
            return;
        }
        task.add("waiting:" + shuffle, queue::size);
        task.add("message:" + shuffle, () -> number(current.get(reader), "seqNum"));
        task.add("from:" + shuffle, () -> number(current.get(reader), "shuffleWriterId"));
    }

    private void addWriter(Task task, Object writer) throws ReflectiveOperationException {
        int shuffle = shuffle(writer);
        Semaphore free = (Semaphore) field(writer, "allocatedBufferBytesSemaphore");
        Object budget = field(writer, "effectiveBudget");
        Object shards = field(writer, "shards");
        if (task.names.contains("held:" + shuffle) || free == null || budget == null || shards == null) {
            return;
        }
        long all = ((Number) budget).longValue();
        Object capacity = field(writer, "BUFFER_SIZE");
        long each = capacity == null ? 0 : ((Number) capacity).longValue();
        task.add("held:" + shuffle, () -> held(all - free.availablePermits(), each, shards));
        task.add("writer:" + shuffle, () -> number(writer, "shuffleWriterId"));
        for (int reader = 0; reader < Array.getLength(shards) && Array.getLength(shards) <= MOST_READERS; reader++) {
            Object shard = Array.get(shards, reader);
            AtomicLong sent = (AtomicLong) field(shard, "lastSentSequenceNum");
            AtomicReference<?> buffer = (AtomicReference<?>) field(shard, "buffer");
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
            Object buffer = ((AtomicReference<?>) field(Array.get(shards, reader), "buffer")).get();
            aside -= buffer == null ? 0 : each - bytes(buffer);
        }
        return Math.max(0, aside);
    }

    private long bytes(Object buffer) throws Throwable {
        if (buffer == null) {
            return 0;
        }
        if (filled == null) {
            filled = handle(method(buffer, "totalByteSize"));
        }
        return (long) filled.invokeExact(buffer);
    }

    private int shuffle(Object end) throws ReflectiveOperationException {
        Object handle = field(end, "streamingShuffleHandle");
        return (Integer) method(handle, "shuffleId").invoke(handle);
    }

    private long number(Object of, String name) throws ReflectiveOperationException {
        Object found = of == null ? null : field(of, name);
        return found == null ? -1 : ((Number) found).longValue();
    }

    private static MethodHandle handle(Method method) throws IllegalAccessException {
        method.setAccessible(true);
        return MethodHandles.lookup().unreflect(method).asType(MethodType.methodType(long.class, Object.class));
    }

    private static Method method(Object of, String name) throws NoSuchMethodException {
        for (Class<?> kind = of.getClass(); kind != null; kind = kind.getSuperclass()) {
            for (Method each : kind.getDeclaredMethods()) {
                if (each.getName().equals(name) && each.getParameterCount() == 0 && !each.isBridge()) {
                    each.setAccessible(true);
                    return each;
                }
            }
        }
        throw new NoSuchMethodException(name + " of " + of.getClass());
    }

    private static Method indexed(Object sequence) throws NoSuchMethodException {
        Method found = sequence.getClass().getMethod("apply", int.class);
        found.setAccessible(true);
        return found;
    }

    private Object field(Object of, String name) throws ReflectiveOperationException {
        Field found = of == null ? null : find(of.getClass(), name);
        return found == null ? null : found.get(of);
    }

    /** A field by its name, or by the long one that Scala gives it. */
    private Field find(Class<?> kind, String name) {
        Map<String, Field> known = fields.computeIfAbsent(kind, each -> new HashMap<>());
        if (!known.containsKey(name)) {
            Field found = null;
            for (Class<?> at = kind; at != null && found == null; at = at.getSuperclass()) {
                for (Field each : at.getDeclaredFields()) {
                    if (each.getName().equals(name) || each.getName().endsWith("$$" + name)) {
                        each.setAccessible(true);
                        found = each;
                    }
                }
            }
            known.put(name, found);
        }
        return known.get(name);
    }
}
