package treadle;

import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.SparkContext;

/**
 * Where the thread of a hop waits until it may run its next batch, and what is known of the batch that it runs.
 *
 * <p>Its sources ask here for rows. The first question after a batch parks the thread; who decides is outside (the gate, in
 * Python), is told by {@link Listener}, and lets it go on with {@link #admit}. A parked thread costs nothing and can be
 * interrupted, as Spark does to stop a query.
 */
public final class Turn {
  /** Whoever decides. Called by the hop's own thread; must not block. */
  public interface Listener {
    /** The hop is parked. {@code report} is a JSON object about the batch that is done. */
    void parked(String hop, String report);

    /** A query has ended; {@code error} is null where it was stopped. */
    void ended(String runId, String error);
  }

  private static final ConcurrentHashMap<String, Turn> TURNS = new ConcurrentHashMap<String, Turn>();

  private final String hop;
  private final Listener listener;
  private final Map<String, Long> admitted = new HashMap<String, Long>();
  private final Set<Object> asked = Collections.newSetFromMap(new IdentityHashMap<Object, Boolean>());
  private final Map<String, Long> ends = new HashMap<String, Long>();
  private final Map<String, Long> starts = new LinkedHashMap<String, Long>();
  private final Map<String, Batch> batches = new LinkedHashMap<String, Batch>();
  private boolean running = false;
  private boolean parked = false;
  private boolean free = false;
  private long since = System.nanoTime();
  private long written = 0;
  private long epoch = -1;
  private String pool = "";

  private Turn(String hop, Listener listener) {
    this.hop = hop;
    this.listener = listener;
  }

  /** From now on the sources of this hop ask here. */
  public static Turn open(String hop, Listener listener) {
    Turn turn = new Turn(hop, listener);
    TURNS.put(hop, turn);
    return turn;
  }

  public static void close(String hop) {
    Turn turn = TURNS.remove(hop);
    if (turn != null) {
      turn.free();
    }
  }

  /** The turn of a hop, or null where nobody gates it. */
  static Turn of(String hop) {
    return hop == null ? null : TURNS.get(hop);
  }

  /**
   * Let the parked hop run with at most so many rows of its sources, as in {@code "clicks=1000,views=20"}, in a pool of Spark's
   * FAIR scheduler unless that is empty.
   */
  public static boolean admit(String hop, String rows, String pool) {
    Turn turn = TURNS.get(hop);
    return turn != null && turn.admit(rows, pool);
  }

  private synchronized boolean admit(String rows, String pool) {
    if (!parked) {
      return false;
    }
    this.pool = pool;
    admitted.clear();
    String[] shares = rows.isEmpty() ? new String[0] : rows.split(",");
    for (int i = 0; i < shares.length; i++) {
      int sign = shares[i].lastIndexOf('=');
      admitted.put(shares[i].substring(0, sign), Long.valueOf(shares[i].substring(sign + 1)));
    }
    parked = false;
    since = System.nanoTime();
    notifyAll();
    return true;
  }

  /** Nobody decides any more: it may go on, but is given no rows. */
  private synchronized void free() {
    free = true;
    notifyAll();
  }

  /**
   * How many rows of a source a reader may give from {@code start} on. Parks where a new batch begins, which is when one asks
   * again: a query that joins a source with itself has several readers of it.
   */
  long ask(Object reader, String source, long start) {
    String report = null;
    synchronized (this) {
      if (free) {
        return 0;
      }
      starts.put(source, Long.valueOf(start));
      if (!running || asked.contains(reader)) {
        report = report();
        running = false;
        parked = true;
        asked.clear();
        ends.clear();
        batches.clear();
        written = 0;
        epoch = -1;
      }
    }
    if (report != null) {
      listener.parked(hop, report);
    }
    synchronized (this) {
      try {
        while (parked && !free) {
          wait();
        }
      } catch (InterruptedException stop) {
        parked = false;
        Thread.currentThread().interrupt();
        return 0;
      }
      if (!pool.isEmpty()) { // here, since the jobs of a batch inherit it from the hop's own thread
        SparkContext.getOrCreate().setLocalProperty("spark.scheduler.pool", pool);
      }
      running = true;
      asked.add(reader);
      Long rows = free ? null : admitted.get(source);
      return rows == null ? 0 : rows.longValue();
    }
  }

  /** Where the batch ends in a source: what its first reader found there, for all of them. */
  synchronized long end(String source, long found) {
    Long first = ends.putIfAbsent(source, Long.valueOf(found));
    return first == null ? found : first.longValue();
  }

  /** A source says what the batch reads. */
  synchronized void reads(String source, long start, long end, Iterable<Segments.Segment> segments) {
    Batch batch = new Batch(end);
    for (Segments.Segment segment : segments) {
      batch.add(segment, Math.min(end, segment.end()) - Math.max(start, segment.first));
    }
    batches.put(source, batch);
  }

  /** The sink says what the batch has written. */
  synchronized void wrote(long epoch, long rows) {
    this.epoch = epoch;
    this.written += rows;
  }

  /** Arrival of the oldest source row of this batch and the mean over its rows, in microseconds; now where unknown. */
  synchronized long[] born() {
    long oldest = Long.MAX_VALUE;
    double sum = 0;
    long rows = 0;
    for (Batch batch : batches.values()) {
      oldest = Math.min(oldest, batch.oldest);
      sum += batch.sum;
      rows += batch.rows;
    }
    long now = System.currentTimeMillis() * 1000;
    return rows == 0 ? new long[] {now, now} : new long[] {oldest, (long) (sum / rows)};
  }

  private String report() {
    StringBuilder text = new StringBuilder("{\"seconds\":");
    text.append(running ? (System.nanoTime() - since) / 1e9 : 0.0);
    text.append(",\"time\":").append(System.currentTimeMillis() / 1e3);
    text.append(",\"written\":").append(written).append(",\"epoch\":").append(epoch).append(",\"read\":{");
    String comma = "";
    for (Map.Entry<String, Batch> entry : batches.entrySet()) {
      text.append(comma).append('"').append(entry.getKey()).append("\":").append(entry.getValue().json());
      comma = ",";
    }
    text.append("},\"at\":{");
    comma = "";
    for (Map.Entry<String, Long> entry : starts.entrySet()) {
      text.append(comma).append('"').append(entry.getKey()).append("\":").append(entry.getValue());
      comma = ",";
    }
    return text.append("}}").toString();
  }

  /** What a batch reads of one source: its rows and when they arrived. */
  private static final class Batch {
    private static final int DETAIL = 64;
    private final long end;
    private long rows = 0;
    private long oldest = Long.MAX_VALUE;
    private double sum = 0;
    private final StringBuilder ages = new StringBuilder();
    private long heldRows = 0;
    private long heldOldest = Long.MAX_VALUE;
    private double heldSum = 0;
    private int parts = 0;

    Batch(long end) {
      this.end = end;
    }

    void add(Segments.Segment segment, long count) {
      rows += count;
      oldest = Math.min(oldest, segment.oldest);
      sum += (double) count * segment.mean;
      heldRows += count;
      heldOldest = Math.min(heldOldest, segment.oldest);
      heldSum += (double) count * segment.mean;
      if (parts < DETAIL) { // what comes later is told as one
        flush();
      }
    }

    private void flush() {
      if (heldRows > 0) {
        ages.append(parts++ == 0 ? "[" : ",[").append(heldRows).append(',').append(heldOldest).append(',');
        ages.append((long) (heldSum / heldRows)).append(']');
        heldRows = 0;
        heldOldest = Long.MAX_VALUE;
        heldSum = 0;
      }
    }

    String json() {
      flush();
      return "{\"end\":" + end + ",\"rows\":" + rows + ",\"ages\":[" + ages + "]}";
    }
  }
}
