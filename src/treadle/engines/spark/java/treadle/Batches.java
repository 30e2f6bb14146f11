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
 * Counts in a driver what streaming queries and the jobs of their micro-batches have done.
 *
 * A query has the columns `in` and `out` (rows of all batches since Treadle looks; -1: its sink does not say), `asked`
 * (a time of System.nanoTime(): when it last looked for new rows), and of its Nth Kafka source `committed:N` and
 * `latest:N` (the sums of all partitions' offsets: what batches have done with, and the newest that it has heard of).
 * A job of a micro-batch has `cpu` (nanoseconds of the tasks that have ended) and `metric:ID` for each SQL metric that
 * counts rows, added up over the tasks that have ended. Of those that still run, `Counters` tells.
 */
final class Batches {
    private static final Pattern OFFSET = Pattern.compile(":(-?\\d+)");
    private final Inside inside;
    private final Counters counters;
    private final Map<Thread, Query> queries = new IdentityHashMap<>();
    private final Map<Integer, List<Object>> stages = new HashMap<>();

    Batches(Inside inside, Counters counters) {
        this.inside = inside;
        this.counters = counters;
    }

    private final class Query {
        final Object execution;
        final Counters.Task row;
        final Map<Object, Integer> sources = new IdentityHashMap<>();
        final List<long[]> offsets = new ArrayList<>(); // of each source: committed, latest
        final Object[] known = new Object[2]; // the objects in which these were found
        Object last; // the report of its last batch that was counted
        long in = 0;
        long out = 0;
        long trigger = -1;
        long asked = -1;

        Query(Thread thread, Object execution) throws ReflectiveOperationException {
            this.execution = execution;
            this.last = inside.call(execution, "lastProgress");
            this.row = counters.begin(thread, -1, (int) thread.getId());
            row.add("in", () -> in);
            row.add("out", () -> out);
            row.add("asked", () -> asked);
        }

        void look() throws ReflectiveOperationException {
            countBatches();
            long began = inside.number(context(), "currentTriggerStartTimestamp");
            if (began != trigger && began > 0) {
                trigger = began;
                asked = System.nanoTime() - (System.currentTimeMillis() - began) * 1_000_000;
            }
            read(0, inside.call(execution, "committedOffsets"));
            read(1, inside.call(execution, "latestOffsets"));
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
                in += (Long) inside.call(reports[place], "numInputRows");
                long written = (Long) inside.call(inside.call(reports[place], "sink"), "numOutputRows");
                out = out < 0 || written < 0 ? -1 : out + written;
            }
            last = newest;
        }

        /** Offsets by source, in an object that is replaced when one of them changes. */
        private void read(int which, Object progress) throws ReflectiveOperationException {
            if (progress == null || progress == known[which]) {
                return;
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

    void end(Thread thread) {
        if (queries.remove(thread) != null) {
            counters.end(thread);
        }
    }

    /** Whether a run has micro-batches; its number is in the name of its thread. */
    boolean has(String run) {
        return !run.isEmpty() && queries.keySet().stream().anyMatch(thread -> thread.getName().contains(run));
    }

    /** A job has begun, with these of the scheduler's stages. */
    void begin(int job, int first, List<Object> its) {
        stages.put(job, its);
        counters.begin(job, first, -1).add("cpu", () -> cpu(its));
    }

    /** The SQL metrics that count its rows are known now. */
    void count(int job, Collection<Object> metrics, Class<?> contexts) throws ReflectiveOperationException {
        Counters.Task row = stages.containsKey(job) ? counters.of(job) : null;
        if (row != null) {
            Class<?> known = Class.forName("org.apache.spark.util.AccumulatorContext", true, contexts.getClassLoader());
            for (Object id : metrics) {
                Object metric = inside.get(inside.method(known, "get", 1).invoke(null, id));
                if (metric != null) {
                    counters.addMetric(row, metric);
                }
            }
        }
    }

    void end(int job) {
        if (stages.remove(job) != null) {
            counters.end(job);
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
    private long cpu(List<Object> its) throws ReflectiveOperationException {
        long sum = 0;
        for (Object stage : its) {
            Object measured = inside.call(inside.call(stage, "latestInfo"), "taskMetrics");
            if (measured != null) {
                sum += (Long) inside.call(measured, "executorCpuTime");
                sum += (Long) inside.call(measured, "executorDeserializeCpuTime");
            }
        }
        return sum;
    }
}
