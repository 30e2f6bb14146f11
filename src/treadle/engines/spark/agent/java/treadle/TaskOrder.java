package treadle;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

/**
 * Decides in a driver whose tasks get the next free slot.
 *
 * Spark's FIFO scheduler sorts task sets by a number that is the job's at first; here it is the place of the query in an
 * order that is given from outside. Jobs of no query keep their numbers, which are lower. In FAIR mode nothing is changed.
 * It is set under the scheduler's own lock, for some microseconds: no sort may see numbers change.
 */
final class TaskOrder {
    private static final int BEHIND = 1_000_000_000;
    private final Inside inside;
    private final Map<String, Integer> places = new HashMap<>(); // by the run of a query
    private Object scheduler;
    private boolean used = false;

    TaskOrder(Inside inside) {
        this.inside = inside;
    }

    /** Runs of queries; those that come first get slots first. Empty: as Spark has it. */
    void set(List<String> runs) {
        places.clear();
        for (String run : runs) {
            places.put(run, places.size());
        }
    }

    /** See to the task sets that are there now. */
    void apply(Object context) throws ReflectiveOperationException {
        if (!used && places.isEmpty()) {
            return;
        }
        scheduler = inside.call(context, "taskScheduler");
        apply();
        used = !places.isEmpty();
    }

    /** As Spark has it, again. */
    void restore() {
        places.clear();
        try {
            apply();
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            // there is no scheduler any more, so there is nothing to put back
        }
    }

    private void apply() throws ReflectiveOperationException {
        Object pool = scheduler == null ? null : inside.call(scheduler, "rootPool");
        if (pool == null || !inside.call(pool, "schedulingMode").toString().equals("FIFO")) {
            return;
        }
        List<Object> wrong = new ArrayList<>();
        for (Object each : (Iterable<?>) inside.call(pool, "schedulableQueue")) {
            if (wanted(each) != (Integer) inside.call(each, "priority")) {
                wrong.add(each);
            }
        }
        if (!wrong.isEmpty()) {
            synchronized (scheduler) {
                for (Object each : wrong) {
                    inside.call(each, "priority_$eq", wanted(each));
                }
            }
        }
    }

    private int wanted(Object manager) throws ReflectiveOperationException {
        Object tasks = inside.call(manager, "taskSet");
        Properties properties = (Properties) inside.call(tasks, "properties");
        String run = properties == null ? null : properties.getProperty("spark.jobGroup.id");
        Integer place = run == null ? null : places.get(run);
        return place == null ? (Integer) inside.call(tasks, "priority") : BEHIND + place;
    }
}
