package treadle;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

/**
 * Where each streaming query is to run, in the driver's JVM, and what is known of the executors: whether they live, how busy
 * their machines are, and how long tasks of each query ran on each.
 */
public final class Places {
  private static final Map<String, String> CHOSEN = new ConcurrentHashMap<String, String>();
  private static final Map<String, Executor> EXECUTORS = new ConcurrentHashMap<String, Executor>();
  private static final Map<String, Double> RAN = new ConcurrentHashMap<String, Double>();

  /** One executor, since it came. */
  private static final class Executor {
    volatile String host = "";
    volatile int slots = 0;
    volatile boolean lives = true;
    volatile Workers.Load load = null;
  }

  private Places() {}

  /** From its next stage on, tasks of the query go to this executor; to any if it is empty. */
  public static void set(String query, String executor) {
    if (executor.isEmpty()) {
      CHOSEN.remove(query);
    } else {
      CHOSEN.put(query, executor);
    }
  }

  public static String get(String query) {
    return CHOSEN.getOrDefault(query, "");
  }

  /** As Spark's scheduler spells it; null if its tasks may be anywhere, as they may where the executor is gone. */
  static String location(String query) {
    String id = CHOSEN.get(query);
    Executor executor = id == null ? null : EXECUTORS.get(id);
    return executor == null || !executor.lives || executor.host.isEmpty() ? null : "executor_" + executor.host + "_" + id;
  }

  /**
   * A line for each executor that was ever heard of: id, whether it lives, host, its worker's name, task slots, cores, speed, and
   * seconds so far: passed, in which its cores worked for anybody, and of the CPU for it and all that it started; its cores. By
   * a tab.
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

  /** A line for each query and executor: both, and the seconds that its tasks ran there. By a tab. */
  public static String ran() {
    StringBuilder text = new StringBuilder();
    for (Map.Entry<String, Double> entry : RAN.entrySet()) {
      text.append(entry.getKey()).append('\t').append(entry.getValue()).append('\n');
    }
    return text.toString();
  }

  static void heard(Workers.Load load) {
    executor(load.executor).load = load;
  }

  private static Executor executor(String id) {
    return EXECUTORS.computeIfAbsent(id, ignored -> new Executor());
  }

  /** Hears of executors that come and go, and of tasks that end. */
  static final class Listener extends SparkListener {
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
    public void onTaskEnd(SparkListenerTaskEnd event) {
      String query = queries.get(event.stageId());
      if (query != null && event.taskMetrics() != null) {
        TaskMetrics done = event.taskMetrics();
        double seconds = (done.executorRunTime() + done.executorDeserializeTime()) / 1e3;
        RAN.merge(query + '\t' + event.taskInfo().executorId(), seconds, Double::sum);
      }
    }
  }
}
