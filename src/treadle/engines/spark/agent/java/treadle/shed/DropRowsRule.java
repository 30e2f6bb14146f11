package treadle.shed;

import java.util.function.BooleanSupplier;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Rand;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.FilterExec;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec;
import org.apache.spark.sql.execution.adaptive.QueryStageExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecutionContext;
import org.apache.spark.sql.streaming.StreamingQueryProgress;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.collection.Iterator;

/**
 * Has one streaming query keep a part of its rows: a filter above each of its sources, in the plan of every batch.
 *
 * <p>The filter is made of Spark's own expressions, so executors need nothing of ours, and where all is kept there is none.
 * All of a batch is dropped by the same part, and by the same seed however often its plan is computed.
 */
final class DropRowsRule extends Rule<LogicalPlan> {
  /** Added to the part, by which our filter is told from one of the user's. */
  private static final double MARK = 1.7e-11;
  final StreamExecution query;
  private final BooleanSupplier holds;
  volatile double part = 1.0;
  private boolean leaving;
  private long batch;
  private double partOfBatch = 1.0;
  private Planned uncounted;
  private long seen;
  private long kept;

  /** A batch that is planned with our filter. */
  private static final class Planned {
    final IncrementalExecution execution;
    final double part;

    Planned(IncrementalExecution execution, double part) {
      this.execution = execution;
      this.part = part;
    }
  }

  /** From the next batch on: the one that runs may be planned already. In a batch that begins while it does not hold all is kept. */
  DropRowsRule(StreamExecution query, BooleanSupplier holds) {
    this.query = query;
    this.holds = holds;
    StreamExecutionContext now = query.getLatestExecutionContext();
    this.batch = now == null ? -1 : now.batchId();
  }

  /** Be gone when the batch that runs is over, which is to have the same rows until then. */
  synchronized void leave() {
    part = 1.0;
    leaving = true;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    try {
      long number = query.getLatestExecutionContext().batchId();
      count(begin(number));
      return partOfBatch < 1.0 ? shed(plan) : plan;
    } catch (RuntimeException | LinkageError error) {
      return plan; // whatever is wrong with us, the query goes on
    }
  }

  /** Take note of a new batch; what is to be counted of the one before. */
  private synchronized Planned begin(long number) {
    if (number == batch) {
      return null;
    }
    Planned over = uncounted;
    batch = number;
    partOfBatch = holds.getAsBoolean() ? part : 1.0;
    uncounted = partOfBatch < 1.0 ? new Planned(query.lastExecution(), partOfBatch) : null;
    if (leaving) {
      Shedder.remove(this);
    }
    return over;
  }

  private LogicalPlan shed(LogicalPlan node) {
    if (node instanceof Filter && isOurs(((Filter) node).condition(), partOfBatch)) {
      return node;
    }
    if (node.children().isEmpty()) {
      return node.isStreaming() ? new Filter(condition(), node) : node;
    }
    return (LogicalPlan) node.mapChildren(child -> shed((LogicalPlan) child));
  }

  private Expression condition() {
    Literal seed = new Literal(query.runId().getLeastSignificantBits() + batch, DataTypes.LongType);
    return new LessThan(new Rand(seed, false), new Literal(partOfBatch + MARK, DataTypes.DoubleType));
  }

  /** By the part: Spark gives seeds of its own to what it runs. */
  private static boolean isOurs(Expression condition, double part) {
    if (!(condition instanceof LessThan) || !(((LessThan) condition).left() instanceof Rand)) {
      return false;
    }
    Expression limit = ((LessThan) condition).right();
    return limit instanceof Literal && Double.valueOf(part + MARK).equals(((Literal) limit).value());
  }

  /** Rows that came to our filters, and that they have let pass, in all batches that are over. */
  long[] counts() {
    StreamingQueryProgress last = query.lastProgress();
    count(last == null ? null : over(last));
    synchronized (this) {
      return new long[] {seen, kept};
    }
  }

  /** What is to be counted. Where there is nothing to do Spark tells of the batch that will come. */
  private synchronized Planned over(StreamingQueryProgress last) {
    if (last.batchId() < batch || (last.batchId() == batch && last.numInputRows() == 0)) {
      return null;
    }
    Planned over = uncounted;
    uncounted = null;
    return over;
  }

  /** Add what Spark has counted of a batch, which must be over: to ask for a plan that is being made would block. */
  private void count(Planned over) {
    if (over != null) {
      count(over.execution.executedPlan(), over.part);
    }
  }

  private void count(SparkPlan node, double part) {
    if (node instanceof FilterExec && isOurs(((FilterExec) node).condition(), part)) {
      SparkPlan input = ((FilterExec) node).child();
      while (rows(input) < 0 && input.children().size() == 1) {
        input = input.children().head();
      }
      if (rows(input) >= 0) {
        add(rows(input), rows(node));
      }
    } else if (node instanceof AdaptiveSparkPlanExec) {
      count(((AdaptiveSparkPlanExec) node).executedPlan(), part);
    } else if (node instanceof QueryStageExec) {
      count(((QueryStageExec) node).plan(), part);
    }
    for (Iterator<SparkPlan> each = node.children().iterator(); each.hasNext(); ) {
      count(each.next(), part);
    }
  }

  private synchronized void add(long came, long passed) {
    seen += came;
    kept += passed;
  }

  private static long rows(SparkPlan node) {
    Option<SQLMetric> rows = node.metrics().get("numOutputRows");
    return rows.isEmpty() ? -1 : rows.get().value();
  }
}
