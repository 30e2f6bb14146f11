package treadle;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;

/**
 * Decides in a driver which streaming queries may begin their next micro-batch, so that only some of them run at once.
 *
 * Spark's trigger asks a clock to wait between two batches. Queries without a trigger interval get a clock whose wait ends
 * when it is their turn; a query with an interval of its own is left alone. A query waits before it asks its sources for
 * new rows, so the batch has all rows that arrived in the meantime. A turn ends when the query waits again.
 *
 * Nobody waits for longer than `LONGEST`, whatever the other side does or does not send, and a batch that runs for longer
 * no longer counts. Spark's pause after a look at its sources that found nothing is made here, outside of the turn.
 */
final class BatchTurns {
    private static final long MILLI = 1_000_000;
    private static final long LONGEST = 10_000 * MILLI;
    private static final long RECHECK = 50; // milliseconds
    private static final long IDLE_PAUSE = 100 * MILLI; // before a query without new rows asks again: Spark's own is 10
    private final Inside inside;
    private final Map<Object, Turn> turns = new IdentityHashMap<>(); // by query
    private Map<String, Integer> places = Map.of(); // of runs, in the order in which they get their turns
    private int slots = 0; // 0: nobody waits
    private long spacing = 0; // nanoseconds between the beginnings of two batches of a query, while others wait

    BatchTurns(Inside inside) {
        this.inside = inside;
    }

    /** How many may run at once, how far apart batches should begin, and whose turn comes first. */
    synchronized void set(int slots, long spacing, List<String> runs) {
        Map<String, Integer> next = new HashMap<>();
        for (String run : runs) {
            next.put(run, next.size());
        }
        this.slots = slots;
        this.spacing = spacing * MILLI;
        places = next;
        notifyAll();
    }

    /** See to the queries that run now, by their runs. Called by the agent's thread. */
    void apply(Map<String, Object> queries) {
        if (slots == 0 && turns.isEmpty()) {
            return;
        }
        List<Object> ended = new ArrayList<>();
        for (Object query : turns.keySet()) {
            if (slots == 0 || !queries.containsValue(query)) {
                ended.add(query);
            }
        }
        ended.forEach(this::end);
        for (Map.Entry<String, Object> each : slots == 0 ? Map.<String, Object>of().entrySet() : queries.entrySet()) {
            if (!turns.containsKey(each.getValue())) {
                begin(each.getKey(), each.getValue());
            }
        }
    }

    /** As Spark has it, again. */
    void restore() {
        set(0, 0, List.of());
        apply(Map.of());
    }

    private void begin(String run, Object query) {
        try {
            Object trigger = inside.field(query, "triggerExecutor");
            Field clock = trigger == null ? null : inside.find(trigger.getClass(), "clock");
            Field interval = trigger == null ? null : inside.find(trigger.getClass(), "intervalMs");
            if (clock == null || interval == null || interval.getLong(trigger) != 0 || !clock.getType().isInterface()) {
                return; // it has an interval of its own, or runs once, or continuously
            }
            Field pause = inside.find(query.getClass(), "pollingDelayMs");
            Turn turn = new Turn(
                    run, query, inside.method(query.getClass(), "lastProgress", 0), trigger, clock, interval, pause);
            synchronized (this) {
                turns.put(query, turn);
            }
            synchronized (BatchTurns.class) { // another agent may be ending in this JVM
                turn.hold();
            }
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            synchronized (this) { // another version of Spark: this query is not held back
                turns.remove(query);
            }
        }
    }

    private void end(Object query) {
        Turn turn;
        synchronized (this) {
            turn = turns.remove(query);
            notifyAll();
        }
        try {
            synchronized (BatchTurns.class) {
                turn.release();
            }
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            // its class was changed meanwhile: its turn comes at once from now on
        }
    }

    private synchronized void await(Turn turn) {
        turn.runs = false;
        turn.isIdle = turn.isSameReport();
        turn.since = System.nanoTime();
        turn.waits = true;
        while (turn.waits && slots > 0 && turns.get(turn.query) == turn) {
            grant();
            if (turn.waits) {
                try {
                    wait(RECHECK);
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt(); // Spark stops the query: it sees that next
                    break;
                }
            }
        }
        turn.begin();
        notifyAll();
    }

    /** Let begin whoever may. Call with the lock held. */
    private void grant() {
        long now = System.nanoTime();
        for (Turn next = choose(now); next != null; next = choose(now)) {
            next.begin();
            notifyAll();
        }
    }

    private Turn choose(long now) {
        int running = 0;
        int first = Integer.MAX_VALUE;
        Turn best = null;
        Turn oldest = null;
        for (Turn each : turns.values()) {
            if (each.runs && now - each.began <= LONGEST) {
                running++;
                first = Math.min(first, each.place());
            } else if (each.waits && each.isReady(now) && (best == null || each.isBefore(best, now))) {
                best = each;
            }
            if (each.waits && (oldest == null || each.since < oldest.since)) {
                oldest = each;
            }
        }
        if (oldest != null && now - oldest.since > LONGEST) {
            return oldest;
        }
        boolean isUrgent = best != null && running == slots && best.place() < first && best.isSpaced(now);
        return running < slots || isUrgent ? best : null;
    }

    /** A query, and the clock of its trigger. */
    private final class Turn implements InvocationHandler {
        final String run;
        final Object query;
        final Method lastProgress;
        final Object trigger;
        final Field clock;
        final Field interval;
        final Field pause; // null where Spark has none
        final Object found;
        final long paused;
        Object report;
        boolean waits = false;
        boolean runs = true; // until it waits for the first time
        boolean isIdle = false; // its last turn had no rows
        long since = 0;
        long began = System.nanoTime();

        Turn(String run, Object query, Method lastProgress, Object trigger, Field clock, Field interval, Field pause)
                throws ReflectiveOperationException {
            this.run = run;
            this.query = query;
            this.lastProgress = lastProgress;
            this.trigger = trigger;
            this.clock = clock;
            this.interval = interval;
            this.pause = pause;
            this.found = clock.get(trigger);
            this.paused = pause == null ? 0 : pause.getLong(query);
            this.report = lastProgress.invoke(query);
        }

        /** From now on Spark waits for turns. */
        void hold() throws ReflectiveOperationException {
            Class<?> kind = clock.getType();
            clock.set(trigger, Proxy.newProxyInstance(kind.getClassLoader(), new Class<?>[] {kind}, this));
            interval.setLong(trigger, 1); // after the clock: with an interval Spark waits by it
            if (pause != null) {
                pause.setLong(query, 0);
            }
        }

        /** As Spark has it, again. */
        void release() throws ReflectiveOperationException {
            if (pause != null) {
                pause.setLong(query, paused);
            }
            interval.setLong(trigger, 0);
            clock.set(trigger, found);
        }

        @Override
        public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
            switch (method.getName()) {
                case "waitTillTime":
                    await(this);
                    return 0L;
                case "getTimeMillis":
                    return 0L; // by this clock no batch is too long for the interval, so Spark does not warn
                default:
                    return method.invoke(found, arguments);
            }
        }

        void begin() {
            waits = false;
            runs = true;
            began = System.nanoTime();
        }

        boolean isSameReport() {
            try {
                Object before = report;
                report = lastProgress.invoke(query);
                return report == before;
            } catch (ReflectiveOperationException | RuntimeException unknown) {
                return false;
            }
        }

        int place() {
            return places.getOrDefault(run, Integer.MAX_VALUE);
        }

        boolean isReady(long now) {
            return !isIdle || now - since > Math.max(IDLE_PAUSE, paused * MILLI);
        }

        boolean isSpaced(long now) {
            return isIdle || now - began > spacing;
        }

        boolean isBefore(Turn other, long now) {
            if (isSpaced(now) != other.isSpaced(now)) {
                return isSpaced(now);
            }
            return place() != other.place() ? place() < other.place() : since < other.since;
        }
    }
}
