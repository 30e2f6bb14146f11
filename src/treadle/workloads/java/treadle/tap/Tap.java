package treadle.tap;

import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * Counts the rows that pass a place in a query, called for each row by the query itself: what Treadle's own figures are
 * compared with. It uses no counter of Spark's, and knows nothing of Treadle.
 *
 * Every 2 ms, in which few rows pass, all counts go into the file that the system property `treadle.tap` names, a line each time:
 * System.nanoTime(), and for each place `name=rows:created:cpu`, by tabs. `created` is what the last row said of itself,
 * `cpu` the nanoseconds that the threads which called it have used between calls.
 */
public final class Tap {
    private static final int SELDOM = 64; // a look at the clock of the CPU costs as much as many rows
    private static final ThreadMXBean CLOCK = ManagementFactory.getThreadMXBean();
    private static final Map<String, Place> PLACES = new ConcurrentHashMap<>();

    /** Each has one caller at a time: a task of one partition. */
    private static final class Place {
        final AtomicLong rows = new AtomicLong();
        final AtomicLong created = new AtomicLong();
        final AtomicLong cpu = new AtomicLong();
        Thread caller;
        long began;

        void pass(long when) {
            created.lazySet(when);
            long count = rows.get() + 1;
            rows.lazySet(count);
            if (count % SELDOM == 0) {
                long now = CLOCK.getCurrentThreadCpuTime();
                if (caller == Thread.currentThread()) {
                    cpu.lazySet(cpu.get() + now - began);
                }
                caller = Thread.currentThread();
                began = now;
            }
        }
    }

    static {
        Thread writer = new Thread(Tap::write, "tap");
        writer.setDaemon(true);
        writer.start();
    }

    private Tap() {}

    /** A row, made at some time, is at a place in a partition. */
    public static boolean pass(String name, int partition, long created) {
        PLACES.computeIfAbsent(name + "/" + partition, ignored -> new Place()).pass(created);
        return true;
    }

    /** As a call of another system would: the thread sleeps. */
    public static boolean block(int microseconds) {
        LockSupport.parkNanos(microseconds * 1000L);
        return true;
    }

    private static void write() {
        try (PrintWriter out = new PrintWriter(System.getProperty("treadle.tap"), StandardCharsets.UTF_8)) {
            while (true) {
                StringBuilder line = new StringBuilder().append(System.nanoTime());
                for (Map.Entry<String, Place> each : PLACES.entrySet()) {
                    Place place = each.getValue();
                    line.append('\t').append(each.getKey()).append('=').append(place.rows.get()).append(':');
                    line.append(place.created.get()).append(':').append(place.cpu.get());
                }
                out.println(line);
                out.flush();
                Thread.sleep(2);
            }
        } catch (IOException | InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
