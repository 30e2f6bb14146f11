package treadle;

import java.util.SplittableRandom;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.api.java.UDF1;

/**
 * What a row of a stream counts for: 0 if it is dropped, else one through the probability with which it was kept.
 *
 * <p>Expressions of Spark, so that no row goes through Python. How much is kept is {@link Shed}'s.
 */
public final class Keep {
  private static final double UNIT = 0x1.0p-53;

  /** The least probability of a row where nothing is to be kept: a row that had none could never be corrected for. */
  private static final double LEAST = 0.001;

  private Keep() {}

  /** Where an executor hears how much is kept. */
  private abstract static class Stream implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final String name;
    private final String host;
    private final int port;
    private final String secret;
    private final long seed;
    private transient Shed.Edge edge;
    private transient SplittableRandom random;

    /** A seed of 0 is none; with another one the same rows in the same partitions have the same fate. */
    Stream(String name, String host, int port, String secret, long seed) {
      this.name = name;
      this.host = host;
      this.port = port;
      this.secret = secret;
      this.seed = seed;
    }

    /** Each task has its own copy of this, so nobody else is here at the same time. */
    Shed.Edge edge() {
      if (edge == null) {
        if (!host.isEmpty()) {
          Shed.follow(host, port, secret);
        }
        edge = Shed.edge(name);
        random = seed == 0 ? new SplittableRandom() : new SplittableRandom(31 * seed + TaskContext.getPartitionId());
      }
      return edge;
    }

    /** The part of this stream's rows that is kept at present, above 0. */
    double keep() {
      return Math.max(edge().keep, LEAST);
    }

    /** Between 0 and 1, and 0 where there is no choice. */
    double draw(double probability) {
      return probability >= 1.0 ? 0.0 : random.nextDouble();
    }

    static double counted(Shed.Edge edge, double probability, double drawn) {
      edge.seen.increment();
      if (drawn >= probability) {
        return 0.0;
      }
      edge.kept.increment();
      return 1.0 / probability;
    }
  }

  /** All rows alike. */
  public static final class AtRandom extends Stream implements UDF0<Double> {
    private static final long serialVersionUID = 1L;

    public AtRandom(String name, String host, int port, String secret, long seed) {
      super(name, host, port, secret, seed);
    }

    @Override
    public Double call() {
      double keep = keep();
      return counted(edge(), keep, draw(keep));
    }
  }

  /** All rows of a key or none, by its hash: whoever is kept stays so while more is kept. */
  public static final class ByKey extends Stream implements UDF1<Long, Double> {
    private static final long serialVersionUID = 1L;

    public ByKey(String name, String host, int port, String secret, long seed) {
      super(name, host, port, secret, seed);
    }

    @Override
    public Double call(Long hash) {
      return counted(edge(), keep(), (hash >>> 11) * UNIT);
    }
  }

  /** The larger a row's utility, the more likely it is kept; where it is infinity, NULL or NaN, always ({@link Utility}). */
  public static final class ByUtility extends Stream implements UDF1<Double, Double> {
    private static final long serialVersionUID = 1L;

    public ByUtility(String name, String host, int port, String secret, long seed) {
      super(name, host, port, secret, seed);
    }

    @Override
    public Double call(Double utility) {
      Shed.Edge edge = edge();
      double use = utility == null || utility.isNaN() ? Double.POSITIVE_INFINITY : utility;
      double probability = edge.utility.probability(use, keep());
      return counted(edge, probability, draw(probability));
    }
  }
}
