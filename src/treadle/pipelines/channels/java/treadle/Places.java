package treadle;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.AccumulableInfo;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.scheduler.SparkListenerTaskStart;
import org.apache.spark.scheduler.TaskInfo;
import scala.Option;
import scala.collection.Iterator;

/**
 * Where each streaming query is to run, in the driver's JVM, and what is known of the executors: whether they live, how busy
 * their machines are, and what tasks of each query used on each.
 */
public final class Places {
  private static final Map<String, String> CHOSEN = new ConcurrentHashMap<String, String>();
  private static final Map<String, Executor> EXECUTORS = new ConcurrentHashMap<String, Executor>();
  private static final Map<String, Times> ENDED = new ConcurrentHashMap<String, Times>();
  private static final Map<Long, Running> RUNNING = new ConcurrentHashMap<Long, Running>();
  private static final TaskThreads OWN_TASKS = new TaskThreads(); // of local mode
  private static final String OWN_EXECUTOR = "driver"; // its name in local mode
  private static final String TO_PYTHON = "data sent to Python workers";
  private static SparkContext watched = null;

  /** Seconds of tasks: how long they ran, their threads were on a core, and they were not while Python worked for them. */
  private static final class Times {
    final double ran;
    final double cpu;
    final double python;

    Times(double ran, double cpu, double python) {
      this.ran = ran;
      this.cpu = cpu;
      this.python = python;
    }

    Times plus(Times more) {
      return new Times(ran + more.ran, cpu + more.cpu, python + more.python);
    }
  }

  /** A task that has not ended. */
  private static final class Running {
    final String key;
    final String executor;
    final long began;

    Running(String key, String executor, long began) {
      this.key = key;
      this.executor = executor;
      this.began = began;
    }
  }

  /** One executor, since it came. */
  private static final class Executor {
    volatile String host = "";
    volatile int slots = 0;
    volatile boolean lives = true;
    volatile Workers.Load load = null;
  }

  private Places() {}

  /** From its next stage on, tasks of the query go to these executors, by a comma, in turns; to any if it is empty. */
  public static void set(String query, String executors) {
    if (executors.isEmpty()) {
      CHOSEN.remove(query);
    } else {
      CHOSEN.put(query, executors);
    }
  }

  public static String get(String query) {
    return CHOSEN.getOrDefault(query, "");
  }

  /** As Spark's scheduler spells it; null if its tasks may be anywhere, as they may where the executor is gone. */
  static String location(String query, int partition) {
    String[] chosen = CHOSEN.getOrDefault(query, "").split(",");
    String id = chosen[partition % chosen.length];
    Executor executor = EXECUTORS.get(id);
    return executor == null || !executor.lives || executor.host.isEmpty() ? null : "executor_" + executor.host + "_" + id;
  }

  /**
   * A line for each executor that was ever heard of: id, whether it lives, host, its worker's name, task slots, cores, speed, and
   * seconds so far: passed, in which its cores worked for anybody, of the CPU for it and all that it started, and for the
   * latter alone; its cores. By a tab.
   */
  public static String executors() {
    StringBuilder text = new StringBuilder();
    for (Map.Entry<String, Executor> entry : EXECUTORS.entrySet()) {
      Executor each = entry.getValue();
      if (each.load == null || each.host.isEmpty()) {
        continue;
      }
      text.append(entry.getKey()).append('\t').append(each.lives).append('\t').append(each.host);
      text.append('\t').append(each.load.worker.isEmpty() ? each.host : each.load.worker).append('\t').append(each.slots);
      text.append('\t').append(each.load.numbers()).append('\n');
    }
    return text.toString();
  }

  /**
   * A line for each query and executor: both, and the seconds that its tasks ran there, were on a core, and waited for Python.
   * By a tab. The query of other tasks is empty.
   */
  public static String ran() {
    Map<String, Times> all = new HashMap<String, Times>(ENDED);
    HashMap<Long, Double> own = OWN_TASKS.seconds();
    long now = System.currentTimeMillis();
    for (Map.Entry<Long, Running> entry : RUNNING.entrySet()) {
      Running task = entry.getValue();
      Workers.Load load = executor(task.executor).load;
      Map<Long, Double> tasks = task.executor.equals(OWN_EXECUTOR) ? own : load == null ? null : load.tasks;
      double cpu = tasks == null ? 0.0 : tasks.getOrDefault(entry.getKey(), 0.0);
      all.merge(task.key, new Times((now - task.began) / 1e3, cpu, 0.0), Times::plus);
    }
    StringBuilder text = new StringBuilder();
    for (Map.Entry<String, Times> entry : all.entrySet()) {
      Times times = entry.getValue();
      text.append(entry.getKey()).append('\t').append(times.ran).append('\t').append(times.cpu);
      text.append('\t').append(times.python).append('\n');
    }
    return text.toString();
  }

  /** The CPU seconds of this process, without those that it has started. */
  public static double process() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
  }

  /** Hear of the tasks of a session from now on. */
  public static synchronized void watch(SparkContext context) {
    if (watched != context) {
      watched = context;
      RUNNING.clear();
      context.addSparkListener(new Listener());
    }
  }

  static void heard(Workers.Load load) {
    executor(load.executor).load = load;
  }

  private static Executor executor(String id) {
    return EXECUTORS.computeIfAbsent(id, ignored -> new Executor());
  }

  /** Hears of executors that come and go, and of tasks. */
  private static final class Listener extends SparkListener {
    private final Map<Integer, String> queries = new ConcurrentHashMap<Integer, String>();

    @Override
    public void onExecutorAdded(SparkListenerExecutorAdded event) {
      Executor added = executor(event.executorId());
      added.slots = event.executorInfo().totalCores();
      added.host = event.executorInfo().executorHost();
    }

    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
      executor(event.executorId()).lives = false;
      RUNNING.values().removeIf(task -> task.executor.equals(event.executorId()));
    }

    @Override
    public void onStageSubmitted(SparkListenerStageSubmitted event) {
      String query = event.properties() == null ? null : event.properties().getProperty(Placed.QUERY);
      if (query != null) {
        queries.put(event.stageInfo().stageId(), query);
      }
    }

    @Override
    public void onStageCompleted(SparkListenerStageCompleted event) {
      queries.remove(event.stageInfo().stageId());
    }

    @Override
    public void onTaskStart(SparkListenerTaskStart event) {
      TaskInfo task = event.taskInfo();
      String key = queries.getOrDefault(event.stageId(), "") + '\t' + task.executorId();
      RUNNING.put(task.taskId(), new Running(key, task.executorId(), task.launchTime()));
    }

    @Override
    public void onTaskEnd(SparkListenerTaskEnd event) {
      Running task = RUNNING.remove(event.taskInfo().taskId());
      if (task != null && event.taskMetrics() != null) {
        TaskMetrics done = event.taskMetrics();
        double ran = (done.executorRunTime() + done.executorDeserializeTime()) / 1e3;
        double cpu = (done.executorCpuTime() + done.executorDeserializeCpuTime()) / 1e9;
        double python = asksPython(event.taskInfo()) ? Math.max(ran - cpu, 0.0) : 0.0;
        ENDED.merge(task.key, new Times(ran, cpu, python), Times::plus);
      }
    }

    private static boolean asksPython(TaskInfo task) {
      for (Iterator<AccumulableInfo> all = task.accumulables().iterator(); all.hasNext(); ) {
        Option<String> name = all.next().name();
        if (name.isDefined() && name.get().equals(TO_PYTHON)) {
          return true;
        }
      }
      return false;
    }
  }
}
