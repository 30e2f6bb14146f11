package treadle;

import java.lang.ref.WeakReference;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.regex.Pattern;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.exchange.ReusedExchangeExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import scala.Option;

/**
 * Rows that left the last operator of a streaming query in a batch.
 *
 * <p>Read from the SQL metrics of the batch's physical plan, which Spark counts anyway: no job, no second pass, nothing added
 * to the plan. A sink that uses its rows twice has both ends of the plan counted twice, so their ratio stays exact.
 *
 * <p>Only what all versions of Spark since 3.5 have under one name is used directly: the gate of existing applications runs
 * on all of them.
 */
public final class OutputRows {
  private static final String[] COUNTERS = {"numOutputRows", "pythonNumRowsReceived"};

  /** Operators without a counter that pass on as many rows as they take in. */
  private static final Pattern KEEPS_ROWS =
      Pattern.compile(
          "(Project|WholeStageCodegen.*|InputAdapter|ColumnarToRow|RowToColumnar|AQEShuffleRead|Exchange|Sort|Coalesce|"
              + "SerializeFromObject|DeserializeToObject|MapElements|AppendColumns|EventTimeWatermark|"
              + "UpdateEventTimeColumn|CollectMetrics|ArrowEvalPython|BatchEvalPython|Window)");

  /** A writer counts only at the end of a batch, so what it reads is counted instead. */
  private static final Pattern WRITES = Pattern.compile("WriteToDataSource.*");

  /** By query the batch that was counted last: Spark may look for new rows and run no batch. */
  private static final Map<Object, WeakReference<Object>> COUNTED =
      Collections.synchronizedMap(new WeakHashMap<Object, WeakReference<Object>>());

  private OutputRows() {}

  /** Of the latest batch of a StreamingQuery, which had so many rows; 0 where that has been counted before. */
  public static double latest(Object query, double rows) throws ReflectiveOperationException {
    Object stream = call(query, "streamingQuery");
    Object execution = call(stream, "lastExecution");
    WeakReference<Object> before = COUNTED.put(stream, new WeakReference<Object>(execution));
    boolean counted = execution == null || (before != null && before.get() == execution);
    return counted ? 0 : of(execution, rows);
  }

  /**
   * Of a batch that had so many rows, by Spark's object of its execution. NaN where Spark does not count what leaves the plan,
   * or the sink used none of its rows.
   */
  public static double of(Object execution, double rows) throws ReflectiveOperationException {
    SparkPlan plan = (SparkPlan) call(execution, "executedPlan");
    if (rows == 0) { // a window closes, a timeout is due
      return put(plan);
    }
    double read = read(plan);
    return read > 0 ? put(plan) / read * rows : Double.NaN;
  }

  /** Rows that leave this operator. */
  private static double put(SparkPlan given) {
    SparkPlan plan = actual(given);
    boolean writes = WRITES.matcher(plan.nodeName()).matches();
    double counted = writes ? Double.NaN : counted(plan);
    if (counted >= 0) {
      return counted;
    }
    List<SparkPlan> inputs = children(plan);
    boolean adds = plan.nodeName().equals("Union");
    boolean keeps = inputs.size() == 1 && (writes || KEEPS_ROWS.matcher(plan.nodeName()).matches());
    double sum = adds || keeps ? 0 : Double.NaN;
    for (SparkPlan input : inputs) {
      sum += put(input);
    }
    return sum;
  }

  /** Rows that the streams gave. One that is scanned in several places gave its rows to each of them. */
  private static double read(SparkPlan plan) throws ReflectiveOperationException {
    Map<Object, double[]> streams = new IdentityHashMap<Object, double[]>();
    collect(plan, streams);
    double sum = streams.isEmpty() ? Double.NaN : 0;
    for (double[] stream : streams.values()) {
      sum += stream[0] / stream[1];
    }
    return sum;
  }

  private static void collect(SparkPlan given, Map<Object, double[]> streams) throws ReflectiveOperationException {
    SparkPlan plan = actual(given);
    List<SparkPlan> inputs = children(plan);
    Object stream = inputs.isEmpty() ? stream(plan) : null;
    if (stream != null) {
      double[] found = streams.computeIfAbsent(stream, key -> new double[2]);
      found[0] += counted(plan);
      found[1] += 1;
    }
    for (SparkPlan input : inputs) {
      collect(input, streams);
    }
  }

  private static double counted(SparkPlan plan) {
    for (String name : COUNTERS) {
      Option<SQLMetric> metric = plan.metrics().get(name);
      if (metric.isDefined()) {
        return (Long) metric.get().value();
      }
    }
    return Double.NaN;
  }

  /** The stream that an operator scans, or null: by interface since Spark 4, before that by its own method. */
  private static Object stream(SparkPlan plan) throws ReflectiveOperationException {
    for (String name : new String[] {"getStream", "stream"}) {
      for (Method method : plan.getClass().getMethods()) {
        if (method.getName().equals(name) && method.getParameterCount() == 0) {
          Object found = method.invoke(plan);
          return found instanceof Option ? ((Option<?>) found).getOrElse(() -> null) : found;
        }
      }
    }
    return null;
  }

  /** What runs in place of a part of the plan that Spark has set or changed on the way. */
  private static SparkPlan actual(SparkPlan plan) {
    if (plan instanceof AdaptiveSparkPlanExec) {
      return actual(((AdaptiveSparkPlanExec) plan).executedPlan());
    }
    if (plan instanceof QueryStageExec) {
      return actual(((QueryStageExec) plan).plan());
    }
    return plan instanceof ReusedExchangeExec ? actual(((ReusedExchangeExec) plan).child()) : plan;
  }

  private static List<SparkPlan> children(SparkPlan plan) {
    List<SparkPlan> found = new ArrayList<SparkPlan>();
    scala.collection.Iterator<SparkPlan> all = plan.children().iterator();
    while (all.hasNext()) {
      found.add(all.next());
    }
    return found;
  }

  private static Object call(Object target, String method) throws ReflectiveOperationException {
    return target.getClass().getMethod(method).invoke(target);
  }
}
