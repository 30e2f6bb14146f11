package treadle;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Counts in a driver what streaming queries have done in micro-batches.
 *
 * A query has the columns `in` and `out` (rows of all batches since Treadle looks; -1: its sink does not say), `batches`
 * (how many of them had rows), `cpu` (nanoseconds of its jobs that are over), `unread` (its jobs that are over, and of which
 * this is not known yet), `jobs` (how many run), `running` (nanoseconds of tasks of these that have
 * ended; of those that run, `Counters` tells), `asked` (a time of System.nanoTime(): when it last looked for new rows),
 * and of its Nth Kafka source `committed:N` and
 * `latest:N` (the sums of all partitions' offsets: what batches have done with, and the newest that it has heard of).
 * Of the batch that runs it has, of its Nth source, `taken:N` (rows that ended tasks have read) and `taken-by:N` (the SQL
 * metric that counts them in tasks that still run; -1: none), and `left` and `left-by` of what leaves its last operator.
 *
 * Plans and their metrics are read from fields where a method would compute them, or wait for the thread that does.
 */
final class Batches {
    private static final int DEEPEST = 200;
    private static final Pattern KEEPS_ROWS =
            Pattern.compile("(Project|WholeStageCodegen|ShuffleExchange|AQEShuffleRead|Sort|ColumnarToRow"
                    + "|WriteToDataSourceV2|EventTimeWatermark|CollectMetrics|Coalesce|ReusedExchange)Exec|InputAdapter");
    private static final Pattern OFFSET = Pattern.compile(":(-?\\d+)");
    private static final Pattern RUN = Pattern.compile("runId = ([0-9a-f-]+)\\]\\z"); // at the end of a thread's name
    private final Inside inside;
    private final Counters counters;
    private final MissedJobs missed;
    private final Map<Thread, Query> queries = new IdentityHashMap<>();
    private final Map<Integer, Job> jobs = new HashMap<>(); // that run

    Batches(Inside inside, Counters counters) {
        this.inside = inside;
        this.counters = counters;
        this.missed = new MissedJobs(inside);
    }

    /** One of a micro-batch, with the scheduler's stages. */
    private record Job(Query query, List<Object> stages) {}

    private final class Query {
        final Object execution;
        final String run;
        final Counters.Task row;
        final Map<Object, Integer> sources = new IdentityHashMap<>();
        final List<long[]> offsets = new ArrayList<>(); // of each source: committed, latest
        final Object[] known = new Object[2]; // the objects in which these were found
        Object last; // the report of its last batch that was counted
        long in = 0;
        long out = 0;
        long batches = 0;
        long cpu = 0;
        long trigger = -1;
        long asks = -1; // since then, and has got no answer yet
        long asked = -1;
        long done = -1; // the number of the last batch that was counted
        final List<Object> scans = new ArrayList<>(); // SQL metrics of the batch that runs
        int sourcesRead = 0; // columns for so many of them
        Object leaving;

        Query(Thread thread, Object execution) throws ReflectiveOperationException {
            this.execution = execution;
            Matcher named = RUN.matcher(thread.getName());
            this.run = named.find() ? named.group(1) : "";
            this.last = inside.call(execution, "lastProgress");
            this.row = counters.begin(thread, -1, (int) thread.getId());
            row.add("in", () -> in);
            row.add("out", () -> out);
            row.add("batches", () -> batches);
            row.add("cpu", () -> cpu);
            row.add("unread", () -> missed.count(run));
            row.add("jobs", () -> jobs.values().stream().filter(job -> job.query == this).count());
            row.add("running", this::running);
            row.add("asked", () -> asked);
            row.add("left", () -> value(leaving));
            row.add("left-by", () -> id(leaving));
        }

        private long running() throws ReflectiveOperationException {
            long sum = 0;
            for (Job job : jobs.values()) {
                sum += job.query == this ? used(job.stages) : 0;
            }
            return sum;
        }

        void look() throws ReflectiveOperationException {
            countBatches();
            long began = inside.number(context(), "currentTriggerStartTimestamp");
            if (began != trigger && began > 0) {
                trigger = began;
                asks = System.nanoTime() - (System.currentTimeMillis() - began) * 1_000_000;
            }
            lookAtPlan();
            read(0, inside.call(execution, "committedOffsets"));
            if (read(1, inside.call(execution, "latestOffsets"))) {
                asked = asks;
            }
        }

        /** What Spark knows of the batch that it works on: in older versions this is the query itself. */
        private Object context() throws ReflectiveOperationException {
            try {
                return inside.call(execution, "getLatestExecutionContext");
            } catch (NoSuchMethodException older) {
                return execution;
            }
        }

        private void countBatches() throws ReflectiveOperationException {
            Object newest = inside.call(execution, "lastProgress");
            if (newest == last) {
                return;
            }
            Object[] reports = (Object[]) inside.call(execution, "recentProgress");
            for (int place = reports.length - 1; place >= 0 && reports[place] != last; place--) {
                long rows = (Long) inside.call(reports[place], "numInputRows");
                in += rows;
                done = rows > 0 ? Math.max(done, (Long) inside.call(reports[place], "batchId")) : done;
                batches += rows > 0 ? 1 : 0;
                long written = (Long) inside.call(inside.call(reports[place], "sink"), "numOutputRows");
                if (rows > 0 || written >= 0) { // without a batch nothing was written, whatever the sink says
                    out = out < 0 || written < 0 ? -1 : out + written;
                }
            }
            last = newest;
        }

        /** What counts the rows of the batch that runs: an adaptive plan changes while it does. */
        private void lookAtPlan() throws ReflectiveOperationException {
            Object planned = inside.call(execution, "lastExecution");
            scans.clear();
            leaving = null;
            if (inside.number(planned, "currentBatchId") > done) {
                Object lazy = inside.field(inside.field(planned, "lazyExecutedPlan"), "tryT");
                Object root = inside.field(lazy == null ? planned : lazy, lazy == null ? "executedPlan" : "value");
                addScans(root, 0);
                leaving = leaving(root);
                for (; sourcesRead < scans.size(); sourcesRead++) {
                    int number = sourcesRead;
                    row.add("taken:" + number, () -> value(number < scans.size() ? scans.get(number) : null));
                    row.add("taken-by:" + number, () -> id(number < scans.size() ? scans.get(number) : null));
                }
            }
        }

        private void addScans(Object node, int depth) throws ReflectiveOperationException {
            if (node == null || depth > DEEPEST) {
                return;
            }
            Object counts = node.getClass().getSimpleName().equals("MicroBatchScanExec") ? rows(node) : null;
            if (counts != null) {
                scans.add(counts);
            }
            for (Object each : inputs(node)) {
                addScans(each, depth + 1);
            }
        }

        /** Offsets by source, in an object that is replaced by the next; whether there are new ones. */
        private boolean read(int which, Object progress) throws ReflectiveOperationException {
            if (progress == null || progress == known[which] || (Boolean) inside.call(progress, "isEmpty")) {
                return false;
            }
            known[which] = progress;
            for (Object each = inside.call(progress, "iterator"); (Boolean) inside.call(each, "hasNext"); ) {
                Object pair = inside.call(each, "next");
                Object offset = inside.call(pair, "_2");
                if (offset.getClass().getSimpleName().startsWith("Kafka")) {
                    long[] of = of(inside.call(pair, "_1"));
                    of[which] = 0;
                    for (Matcher found = OFFSET.matcher((String) inside.call(offset, "json")); found.find(); ) {
                        of[which] += Long.parseLong(found.group(1));
                    }
                }
            }
            return true;
        }

        private long[] of(Object source) {
            int number = sources.computeIfAbsent(source, unseen -> sources.size());
            if (number == offsets.size()) {
                long[] added = {-1, -1};
                offsets.add(added);
                row.add("committed:" + number, () -> added[0]);
                row.add("latest:" + number, () -> added[1]);
            }
            return offsets.get(number);
        }
    }

    /** The operators that feed one, also those of a stage that an adaptive plan has cut off. */
    private List<Object> inputs(Object node) throws ReflectiveOperationException {
        String kind = node.getClass().getSimpleName();
        if (isAdaptive(kind)) {
            Object cut = inside.field(node, kind.endsWith("QueryStageExec") ? "plan" : "currentPhysicalPlan");
            return cut == null ? List.of() : List.of(cut);
        }
        List<Object> found = new ArrayList<>();
        for (Object each = inside.call(inside.call(node, "children"), "iterator"); (Boolean) inside.call(each, "hasNext"); ) {
            found.add(inside.call(each, "next"));
        }
        return found;
    }

    private static boolean isAdaptive(String kind) {
        return kind.equals("AdaptiveSparkPlanExec") || kind.endsWith("QueryStageExec");
    }

    /** The metric that counts the rows that leave an operator; null where it counts none, or has not begun. */
    private Object rows(Object node) throws ReflectiveOperationException {
        Object metrics = inside.field(node, "metrics");
        return metrics == null ? null : inside.get(inside.call(metrics, "get", "numOutputRows"));
    }

    private Object leaving(Object root) throws ReflectiveOperationException {
        Object node = root;
        for (int depth = 0; node != null && depth < DEEPEST; depth++) {
            String kind = node.getClass().getSimpleName();
            Object found = kind.startsWith("WriteTo") ? null : rows(node);
            if (found != null) {
                return found;
            }
            List<Object> inputs = inputs(node);
            boolean keepsRows = KEEPS_ROWS.matcher(kind).matches() || isAdaptive(kind);
            node = keepsRows && inputs.size() == 1 ? inputs.get(0) : null;
        }
        return null;
    }

    private long value(Object metric) throws ReflectiveOperationException {
        return metric == null ? 0 : Math.max(0, (Long) inside.call(metric, "value"));
    }

    private long id(Object metric) throws ReflectiveOperationException {
        return metric == null ? -1 : (Long) inside.call(metric, "id");
    }

    /** A thread that runs a streaming query; in Real-Time Mode there is nothing to count here. */
    void follow(Thread thread) {
        try {
            Object execution = inside.field(thread, "$outer");
            String trigger = inside.call(execution, "trigger").getClass().getSimpleName();
            if (!trigger.startsWith("RealTime") && !trigger.startsWith("Continuous")) {
                queries.put(thread, new Query(thread, execution));
            }
        } catch (ReflectiveOperationException | RuntimeException | LinkageError unknown) {
            // another version of Spark: its micro-batches are not counted
        }
    }

    /** The queries in micro-batches that run now, by their runs. */
    Map<String, Object> running() {
        Map<String, Object> found = new HashMap<>();
        queries.values().forEach(query -> found.put(query.run, query.execution));
        return found;
    }

    void end(Thread thread) {
        queries.remove(thread);
        counters.end(thread);
    }

    /** The query of a job's group, which is its run; null for one in Real-Time Mode, and for jobs of users. */
    private Query find(String group) {
        for (Query query : queries.values()) {
            if (!group.isEmpty() && query.run.equals(group)) {
                return query;
            }
        }
        return null;
    }

    /** See to jobs that nobody saw, after a look at the active ones. */
    void lookForMissed(Object context, Object scheduler, Collection<Integer> known) {
        missed.look(context, scheduler, known, (group, used) -> add(find(group), used));
    }

    /** A job of some run has begun, with these of the scheduler's stages. */
    void begin(int job, String run, List<Object> stages) {
        Query query = find(run);
        if (query != null) {
            jobs.put(job, new Job(query, stages));
        }
    }

    void end(int job) throws ReflectiveOperationException {
        Job over = jobs.remove(job);
        if (over != null) {
            add(over.query, used(over.stages));
        }
    }

    private void add(Query query, long nanoseconds) {
        if (query != null) {
            query.cpu += nanoseconds;
        }
    }

    /** Before all columns are read. */
    void look() {
        for (Query query : queries.values()) {
            try {
                query.look();
            } catch (ReflectiveOperationException | RuntimeException changing) {
                // it is just being replaced, or ends: what was read before holds
            }
        }
    }

    /** Of all tasks that have ended, as the scheduler adds it up. */
    private long used(List<Object> stages) throws ReflectiveOperationException {
        long sum = 0;
        for (Object stage : stages) {
            Object measured = inside.call(inside.call(stage, "latestInfo"), "taskMetrics");
            if (measured != null) {
                sum += (Long) inside.call(measured, "executorCpuTime");
                sum += (Long) inside.call(measured, "executorDeserializeCpuTime");
            }
        }
        return sum;
    }
}
