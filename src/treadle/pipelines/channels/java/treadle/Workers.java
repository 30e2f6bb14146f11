package treadle;

import java.io.IOException;
import java.io.Serializable;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.spark.SparkContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;

/**
 * Lets each executor tell the driver once a second how busy the cores are that it may use, whoever uses them, and how fast
 * they are; for `spark.plugins`. It reads /proc, so it works on Linux only; elsewhere nothing is known.
 */
public final class Workers implements SparkPlugin {
  private static final long PERIOD_MILLIS = 1000;
  private static final int LOOKS = 4; // at running tasks in a period: what a new one used before the first is not known
  private static final String NAME = "TREADLE_WORKER";

  @Override
  public DriverPlugin driverPlugin() {
    return new DriverPlugin() {
      @Override
      public Map<String, String> init(SparkContext context, PluginContext plugin) {
        Places.watch(context);
        return Collections.emptyMap();
      }

      @Override
      public Object receive(Object message) {
        Places.heard((Load) message);
        return null;
      }
    };
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new ExecutorPlugin() {
      private Thread thread;

      @Override
      public void init(PluginContext plugin, Map<String, String> extra) {
        if (plugin.executorID().equals("driver")) {
          return; // local mode: there is one place only
        }
        thread = new Thread(() -> tell(plugin), "treadle-worker");
        thread.setDaemon(true);
        thread.start();
      }

      @Override
      public void shutdown() {
        if (thread != null) {
          thread.interrupt();
        }
      }
    };
  }

  /** What an executor says of itself and its cores. */
  static final class Load implements Serializable {
    private static final long serialVersionUID = 1L;
    String executor;
    String worker;
    int cores;
    double speed;
    double passed;
    double worked;
    double own;
    double python;
    String which;
    HashMap<Long, Double> tasks;

    String numbers() {
      return cores + "\t" + speed + "\t" + passed + "\t" + worked + "\t" + own + "\t" + python + "\t" + which;
    }
  }

  private static void tell(PluginContext plugin) {
    double speed = 0.0;
    TaskThreads threads = new TaskThreads();
    try {
      while (true) {
        speed = Math.max(speed, speed());
        Load load = look();
        load.executor = plugin.executorID();
        load.worker = System.getenv().getOrDefault(NAME, "");
        load.speed = speed;
        load.tasks = threads.seconds();
        plugin.send(load);
        for (int look = 0; look < LOOKS; look++) {
          Thread.sleep(PERIOD_MILLIS / LOOKS);
          threads.seconds();
        }
      }
    } catch (InterruptedException over) {
      return;
    } catch (IOException | RuntimeException unknown) {
      return; // no Linux, or the driver is gone
    }
  }

  private static Load look() throws IOException {
    Load load = new Load();
    Set<String> cores = cores();
    load.cores = cores.size();
    load.which = cores.stream().sorted().collect(Collectors.joining(","));
    for (String line : Files.readAllLines(Path.of("/proc/stat"))) {
      String[] parts = line.split("\\s+");
      if (cores.contains(parts[0])) {
        for (int column = 1; column <= 8; column++) { // guest times, the last two, are in user's already
          double seconds = Long.parseLong(parts[column]) / 100.0;
          load.passed += seconds;
          load.worked += column == 4 || column == 5 ? 0.0 : seconds; // idle, iowait
        }
      }
    }
    load.passed /= Math.max(1, load.cores);
    load.own = cpu(ProcessHandle.current().pid());
    for (ProcessHandle child : ProcessHandle.current().descendants().collect(Collectors.toList())) {
      load.python += cpu(child.pid());
    }
    load.own += load.python;
    return load;
  }

  /** The names in /proc/stat of those that this process may use. */
  private static Set<String> cores() throws IOException {
    Set<String> found = new HashSet<String>();
    for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
      if (line.startsWith("Cpus_allowed_list:")) {
        for (String range : line.substring(line.indexOf(':') + 1).trim().split(",")) {
          String[] ends = range.split("-");
          for (int core = Integer.parseInt(ends[0]); core <= Integer.parseInt(ends[ends.length - 1]); core++) {
            found.add("cpu" + core);
          }
        }
      }
    }
    return found;
  }

  /** Seconds of a process and of those that it started and that have ended. */
  private static double cpu(long process) {
    try {
      String text = Files.readString(Path.of("/proc/" + process + "/stat"));
      String[] parts = text.substring(text.lastIndexOf(')') + 2).split(" ");
      long ticks = 0;
      for (int column = 11; column <= 14; column++) {
        ticks += Long.parseLong(parts[column]);
      }
      return ticks / 100.0;
    } catch (IOException gone) {
      return 0.0;
    }
  }

  /** Simple steps in a nanosecond of the CPU, of a moment's work. */
  private static double speed() {
    ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    int steps = 1_000_000;
    long number = System.nanoTime() | 1;
    long began = threads.getCurrentThreadCpuTime();
    for (int step = 0; step < steps; step++) {
      number ^= number << 13;
      number ^= number >>> 7;
      number ^= number << 17;
    }
    long took = threads.getCurrentThreadCpuTime() - began;
    return number == 0 || took <= 0 ? 0.0 : (double) steps / took;
  }
}
