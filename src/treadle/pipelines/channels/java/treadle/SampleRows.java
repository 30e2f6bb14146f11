package treadle;

import org.apache.spark.sql.api.java.UDF3;
import org.apache.spark.sql.api.java.UDF4;

/**
 * Drops rows of a stream: gives each row its weight, which is 0 if the row is dropped, and else one divided by the
 * probability with which it was kept.
 *
 * <p>It is exactly 1 only while all rows are kept. Who adds up rows that are always kept sees by that whether others may be
 * missing.
 *
 * <p>Expressions of Spark, so that no row goes through Python. How much is kept is {@link Shed}'s.
 *
 * <p>A batch may be worked on more than once: a sink has two actions, a task is retried or runs twice. All see the same
 * rows, and they count once, because everything follows from what Spark gives for a row again: the time of its batch, the
 * number of its partition (spark_partition_id), and a random number whose sequence begins anew with each partition (rand).
 */
public final class SampleRows {
  private static final double UNIT = 0x1.0p-53;
  private static final long GOLDEN = 0x9e3779b97f4a7c15L;

  /** The least probability of a row where nothing is to be kept: a row that had none could never be corrected for. */
  private static final double LEAST = 0.001;

  /** What a row counts for that is always kept while others of its stream may be dropped: the least above 1. */
  private static final double ALWAYS = Math.nextUp(1.0);

  private SampleRows() {}

  /** Where an executor hears how much is kept. */
  private abstract static class Stream implements java.io.Serializable {
    private static final long serialVersionUID = 1L;
    private final String name;
    private final String host;
    private final int port;
    private final String secret;
    private final long seed;
    private final boolean live;
    private transient Shed.Edge edge;
    private transient Shed.Rows rows;
    private transient Utility utility;
    private transient long batch;
    private transient int partition;
    private transient double first;
    private transient long place;
    double keep;

    /**
     * A seed of 0 is none; with another one the same rows in the same partitions have the same fate in each batch. A stream
     * that is {@code live} follows changes within a batch, since that is long.
     */
    Stream(String name, String host, int port, String secret, long seed, boolean live) {
      this.name = name;
      this.host = host;
      this.port = port;
      this.secret = secret;
      this.seed = seed;
      this.live = live;
    }

    /** A row comes. Each task has its own copy of this, so nobody else is here at the same time. */
    void begin(long time, int part, double random) {
      if (edge == null) {
        if (!host.isEmpty()) {
          Shed.follow(host, port, secret);
        }
        edge = Shed.edge(name);
      }
      place++;
      if (rows == null || batch != time || partition != part || first == random) {
        batch = time;
        partition = part;
        first = random; // comes again where somebody begins with this partition again
        place = 0;
        rows = edge.rows(time, part);
        keep = Math.max(edge.keepAt(time), LEAST);
        utility = null;
      }
      if (live) {
        keep = Math.max(edge.keep(), LEAST);
      }
    }

    /** What is known of the use of rows: as when the batch began here, and of those of its partition before this one. */
    Utility utility() {
      if (utility == null) {
        utility = rows.utility();
      }
      return utility;
    }

    /** Between 0 and 1, and 0 where there is no choice. In each batch another one for the same place of a partition. */
    double draw(double probability, double random) {
      if (probability >= 1.0) {
        return 0.0;
      }
      return seed != 0 ? random : (mixed(Double.doubleToLongBits(random) + GOLDEN * batch) >>> 11) * UNIT;
    }

    double counted(double probability, double drawn) {
      count();
      if (drawn >= probability) {
        return 0.0;
      }
      return probability >= 1.0 && keep < 1.0 ? ALWAYS : 1.0 / probability;
    }

    void count() {
      rows.count(place + 1);
    }

    /** The finaliser of SplitMix64: each bit of the result depends on each of the number. */
    private static long mixed(long number) {
      long mixed = (number ^ (number >>> 30)) * 0xbf58476d1ce4e5b9L;
      mixed = (mixed ^ (mixed >>> 27)) * 0x94d049bb133111ebL;
      return mixed ^ (mixed >>> 31);
    }
  }

  /** Counts rows where they arrive, and lets all of them pass. It has no part in what was dropped before. */
  public static final class Arrived extends Stream implements UDF3<Long, Integer, Double, Boolean> {
    private static final long serialVersionUID = 1L;

    public Arrived(String name, String host, int port, String secret) {
      super(name, host, port, secret, 0, false);
    }

    @Override
    public Boolean call(Long time, Integer part, Double random) {
      begin(time, part, random);
      count();
      return true;
    }
  }

  /** All rows alike. */
  public static final class AtRandom extends Stream implements UDF3<Long, Integer, Double, Double> {
    private static final long serialVersionUID = 1L;

    public AtRandom(String name, String host, int port, String secret, long seed, boolean live) {
      super(name, host, port, secret, seed, live);
    }

    @Override
    public Double call(Long time, Integer part, Double random) {
      begin(time, part, random);
      return counted(keep, draw(keep, random));
    }
  }

  /** All rows of a key or none, by its hash: whoever is kept stays so while more is kept. */
  public static final class ByKey extends Stream implements UDF4<Long, Integer, Double, Long, Double> {
    private static final long serialVersionUID = 1L;

    public ByKey(String name, String host, int port, String secret, long seed, boolean live) {
      super(name, host, port, secret, seed, live);
    }

    @Override
    public Double call(Long time, Integer part, Double random, Long hash) {
      begin(time, part, random);
      return counted(keep, (hash >>> 11) * UNIT);
    }
  }

  /** The larger a row's utility, the more likely it is kept; where it is infinity, NULL or NaN, always ({@link Utility}). */
  public static final class ByUtility extends Stream implements UDF4<Long, Integer, Double, Double, Double> {
    private static final long serialVersionUID = 1L;

    public ByUtility(String name, String host, int port, String secret, long seed, boolean live) {
      super(name, host, port, secret, seed, live);
    }

    @Override
    public Double call(Long time, Integer part, Double random, Double utility) {
      begin(time, part, random);
      double use = utility == null || utility.isNaN() ? Double.POSITIVE_INFINITY : utility;
      double probability = utility().probability(use, keep);
      return counted(probability, draw(probability, random));
    }
  }
}
