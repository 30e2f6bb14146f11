import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A stage's thread that polls, and never sleeps, for what an ordinary thread of the same process brings.
 *
 * A row is the CPU time in seconds which that takes. When a row is begun and when it is done is written down.
 */
public final class Livelock {
    private static final Path NOTES = Path.of(System.getProperty("livelock"));
    private static final AtomicLong WANTED = new AtomicLong();
    private static volatile boolean brought;

    static {
        Thread helper = new Thread(Livelock::help, "helper of " + Livelock.class.getName());
        helper.setDaemon(true);
        helper.start();
    }

    private Livelock() {}

    public static String row(String text) throws IOException {
        long cost = (long) (Double.parseDouble(text) * 1e9);
        if (cost > 0) {
            note("begun");
            brought = false;
            WANTED.set(cost);
            while (!brought) {
                Thread.onSpinWait();
            }
            note("done");
        }
        return text;
    }

    private static void help() {
        var threads = ManagementFactory.getThreadMXBean();
        try {
            while (true) {
                long cost = WANTED.getAndSet(0);
                if (cost > 0) {
                    long end = threads.getCurrentThreadCpuTime() + cost;
                    while (threads.getCurrentThreadCpuTime() < end) {
                        Thread.onSpinWait();
                    }
                    brought = true;
                } else {
                    Thread.sleep(1);
                }
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }

    /** With the time on the clock that Python calls monotonic. */
    private static void note(String what) throws IOException {
        Files.writeString(NOTES, what + " " + System.nanoTime() / 1e9 + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    }
}
