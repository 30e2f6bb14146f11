package treadle.shed;

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
final class Keep extends Rule<LogicalPlan> {
  /** Added to the part, by which our filter is told from one of the user's. */
  private static final double MARK = 1.7e-11;
  final StreamExecution query;
  volatile double part = 1.0;
  private long batch = -1;
  private double partOfBatch = 1.0;
  private IncrementalExecution uncounted;
  private long seen;
  private long kept;

  Keep(StreamExecution query) {
    this.query = query;
  }

  @Override
  public synchronized LogicalPlan apply(LogicalPlan plan) {
    try {
      long number = query.getLatestExecutionContext().batchId();
      if (number != batch) {
        count();
        batch = number;
        partOfBatch = part;
        uncounted = partOfBatch < 1.0 ? query.lastExecution() : null; // of this batch: it is being planned
      }
      return partOfBatch < 1.0 ? shed(plan) : plan;
    } catch (RuntimeException | LinkageError error) {
      return plan; // whatever is wrong with us, the query goes on
    }
  }

  private LogicalPlan shed(LogicalPlan node) {
    if (node instanceof Filter && isOurs(((Filter) node).condition())) {
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
  private boolean isOurs(Expression condition) {
    if (!(condition instanceof LessThan) || !(((LessThan) condition).left() instanceof Rand)) {
      return false;
    }
    Expression limit = ((LessThan) condition).right();
    return limit instanceof Literal && Double.valueOf(partOfBatch + MARK).equals(((Literal) limit).value());
  }

  /** Rows that came to our filters, and that they have let pass, in all batches that are over. */
  synchronized long[] counts() {
    StreamingQueryProgress last = query.lastProgress();
    if (last != null && last.batchId() >= batch) {
      count();
    }
    return new long[] {seen, kept};
  }

  /** Add what Spark has counted of the batch that is over, if that has not been done. */
  private void count() {
    if (uncounted != null) {
      count(uncounted.executedPlan());
      uncounted = null;
    }
  }

  private void count(SparkPlan node) {
    if (node instanceof FilterExec && isOurs(((FilterExec) node).condition())) {
      SparkPlan input = ((FilterExec) node).child();
      while (rows(input) < 0 && input.children().size() == 1) {
        input = input.children().head();
      }
      if (rows(input) >= 0) {
        seen += rows(input);
        kept += rows(node);
      }
    } else if (node instanceof AdaptiveSparkPlanExec) {
      count(((AdaptiveSparkPlanExec) node).executedPlan());
    } else if (node instanceof QueryStageExec) {
      count(((QueryStageExec) node).plan());
    }
    for (Iterator<SparkPlan> each = node.children().iterator(); each.hasNext(); ) {
      count(each.next());
    }
  }

  private static long rows(SparkPlan node) {
    Option<SQLMetric> rows = node.metrics().get("numOutputRows");
    return rows.isEmpty() ? -1 : rows.get().value();
  }
}
