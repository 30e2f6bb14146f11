package treadle;

import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.SortOrder;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.ColumnarRule;
import org.apache.spark.sql.execution.CollectLimitExec;
import org.apache.spark.sql.execution.CollectTailExec;
import org.apache.spark.sql.execution.LeafExecNode;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.TakeOrderedAndProjectExec;
import org.apache.spark.sql.execution.exchange.Exchange;
import scala.collection.Iterator;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;
import scala.collection.mutable.ListBuffer;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * The last step of a stage in the plan of a streaming query that has a place: its tasks prefer the executors that {@link
 * Places} names when they are scheduled, each partition the one whose turn it is.
 *
 * <p>What a stage does is as before; Spark's delay scheduling holds its tasks back until that executor has room, and where
 * the executor is gone they go to any other.
 */
public final class Placed extends SparkPlan {
  private static final long serialVersionUID = 1L;
  static final String QUERY = "sql.streaming.queryId";
  private static final ClassTag<InternalRow> ROW = ClassTag$.MODULE$.apply(InternalRow.class);

  private final SparkPlan child;

  public Placed(SparkPlan child) {
    this.child = child;
  }

  @Override
  public RDD<InternalRow> doExecute() {
    RDD<InternalRow> rows = child.execute();
    String query = sparkContext().getLocalProperty(QUERY);
    return query == null ? rows : new Rows(rows, query);
  }

  @Override
  public Seq<Attribute> output() {
    return child.output();
  }

  @Override
  public Partitioning outputPartitioning() {
    return child.outputPartitioning();
  }

  @Override
  public Seq<SortOrder> outputOrdering() {
    return child.outputOrdering();
  }

  @Override
  public Seq<SparkPlan> children() {
    return one(child);
  }

  @Override
  public SparkPlan withNewChildrenInternal(IndexedSeq<SparkPlan> children) {
    return new Placed(children.head());
  }

  @Override
  public int productArity() {
    return 1;
  }

  @Override
  public Object productElement(int number) {
    return child;
  }

  @Override
  public boolean canEqual(Object other) {
    return other instanceof Placed;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Placed && child.equals(((Placed) other).child);
  }

  @Override
  public int hashCode() {
    return 31 * child.hashCode() + 1;
  }

  private static <T> Seq<T> one(T item) {
    ListBuffer<T> items = new ListBuffer<T>();
    items.addOne(item);
    return items.toList();
  }

  /** The rows of a stage, where its query is to be. */
  private static final class Rows extends RDD<InternalRow> {
    private static final long serialVersionUID = 1L;
    private final String query;

    Rows(RDD<InternalRow> before, String query) {
      super(before, ROW);
      this.query = query;
    }

    @Override
    public Partition[] getPartitions() {
      return firstParent(ROW).partitions();
    }

    @Override
    public Iterator<InternalRow> compute(Partition part, TaskContext context) {
      return firstParent(ROW).iterator(part, context);
    }

    @Override
    public Seq<String> getPreferredLocations(Partition part) {
      ListBuffer<String> found = new ListBuffer<String>();
      String location = Places.location(query, part.index());
      if (location != null) {
        found.addOne(location);
      }
      return found.toList();
    }
  }

  /** Makes every plan of a session end its stages so; for `spark.sql.extensions`. */
  public static final class Extension extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
      extensions.injectColumnar(
          new AbstractFunction1<org.apache.spark.sql.SparkSession, ColumnarRule>() {
            @Override
            public ColumnarRule apply(org.apache.spark.sql.SparkSession session) {
              return new Stages();
            }
          });
      return BoxedUnit.UNIT;
    }
  }

  private static final class Stages extends ColumnarRule {
    private static final long serialVersionUID = 1L;

    @Override
    public Rule<SparkPlan> postColumnarTransitions() {
      return new Ends();
    }
  }

  /** A stage ends where rows are exchanged, and where the plan does. */
  private static final class Ends extends Rule<SparkPlan> {
    @Override
    public SparkPlan apply(SparkPlan plan) {
      return end(within(plan));
    }

    private SparkPlan within(SparkPlan plan) {
      ListBuffer<SparkPlan> children = new ListBuffer<SparkPlan>();
      boolean changed = false;
      for (Iterator<SparkPlan> all = plan.children().iterator(); all.hasNext(); ) {
        SparkPlan before = all.next();
        SparkPlan after = within(before);
        if (plan instanceof Exchange) {
          after = end(after);
        }
        changed |= after != before;
        children.addOne(after);
      }
      return changed ? plan.withNewChildren(children.toList()) : plan;
    }

    /** Commands have no rows, and what only takes some of them does so in its own way: their children end the stage. */
    private SparkPlan end(SparkPlan plan) {
      if (plan instanceof Placed || plan instanceof Exchange || plan.supportsColumnar()) {
        return plan;
      }
      boolean through =
          plan.output().isEmpty()
              || plan instanceof CollectLimitExec
              || plan instanceof CollectTailExec
              || plan instanceof TakeOrderedAndProjectExec;
      if (!through) {
        return new Placed(plan);
      }
      ListBuffer<SparkPlan> children = new ListBuffer<SparkPlan>();
      for (Iterator<SparkPlan> all = plan.children().iterator(); all.hasNext(); ) {
        children.addOne(end(all.next()));
      }
      return plan instanceof LeafExecNode ? plan : plan.withNewChildren(children.toList());
    }
  }
}
