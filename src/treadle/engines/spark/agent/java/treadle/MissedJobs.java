package treadle;

import java.lang.reflect.InvocationTargetException;
import java.util.Collection;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The CPU time of jobs that begin and end between two looks, as Spark writes it down for its UI.
 *
 * Jobs are numbered, so a number that was given to none of those that were seen is of such a job.
 */
final class MissedJobs {
    private static final long PATIENCE = 10_000_000_000L; // nanoseconds in which Spark writes down what a job did
    private final Inside inside;
    private final Map<Integer, Job> awaited = new TreeMap<>();
    private int next = -1;
    private boolean fails;
    private Class<?> jobData;

    MissedJobs(Inside inside) {
        this.inside = inside;
    }

    /** What a job has used. */
    interface Found {
        void add(String group, long nanoseconds);
    }

    private static final class Job {
        final long since;
        String group; // null while nobody knows it

        Job(long since) {
            this.since = since;
        }
    }

    /** How many jobs were missed that are, or may be, of a group, and of which it is not known yet what they have used. */
    long count(String group) {
        long open = awaited.values().stream().filter(job -> job.group == null || job.group.equals(group)).count();
        return fails ? Math.max(1, open) : open;
    }

    /** After a look at the active jobs, of which these are known. A Spark that has no such thing tells nothing of them. */
    void look(Object context, Object scheduler, Collection<Integer> known, Found found) {
        try {
            tryLook(context, scheduler, known, found);
            fails = false;
        } catch (ReflectiveOperationException | RuntimeException | LinkageError unknown) {
            fails = true;
        }
    }

    private void tryLook(Object context, Object scheduler, Collection<Integer> known, Found found)
            throws ReflectiveOperationException {
        int newest = ((AtomicInteger) inside.field(scheduler, "nextJobId")).get();
        long now = System.nanoTime();
        for (int job = next < 0 ? newest : next; job < newest; job++) {
            awaited.put(job, new Job(now));
        }
        next = newest;
        awaited.keySet().removeAll(known);
        if (awaited.isEmpty()) {
            return;
        }
        Object status = inside.call(context, "statusStore");
        for (Iterator<Map.Entry<Integer, Job>> each = awaited.entrySet().iterator(); each.hasNext(); ) {
            Map.Entry<Integer, Job> job = each.next();
            if (read(status, job.getKey(), job.getValue(), found) || now - job.getValue().since > PATIENCE) {
                each.remove();
            }
        }
    }

    /** Whether the job is over, and was read. */
    private boolean read(Object status, Integer number, Job job, Found found) throws ReflectiveOperationException {
        Object store = inside.call(status, "store");
        if (jobData == null) {
            jobData = Class.forName("org.apache.spark.status.JobDataWrapper", true, status.getClass().getClassLoader());
        }
        Object data;
        try {
            Object wrapped = store.getClass().getMethod("read", Class.class, Object.class).invoke(store, jobData, number);
            data = inside.field(wrapped, "info");
        } catch (InvocationTargetException notYet) {
            return false;
        }
        Object group = inside.get(inside.call(data, "jobGroup"));
        job.group = group == null ? "" : (String) group;
        if (inside.get(inside.call(data, "completionTime")) == null) {
            return false;
        }
        long used = 0;
        Object stages = inside.call(inside.call(data, "stageIds"), "iterator");
        while ((Boolean) inside.call(stages, "hasNext")) {
            used += used(status, inside.call(stages, "next"));
        }
        found.add(job.group, used);
        return true;
    }

    private long used(Object status, Object stage) throws ReflectiveOperationException {
        try {
            Object data = inside.call(status, "lastStageAttempt", stage);
            return (Long) inside.call(data, "executorCpuTime") + (Long) inside.call(data, "executorDeserializeCpuTime");
        } catch (InvocationTargetException skipped) {
            return 0;
        }
    }
}
