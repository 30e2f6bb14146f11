package treadle;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/**
 * How much of each stream is kept, in this JVM: set while it runs, read by {@link SampleRows}, which counts rows here.
 *
 * <p>That of the driver is set from Python. Executors connect to it, follow its changes, and report what they count. A JVM
 * that has heard nothing yet keeps everything, and so does an executor that has lost the driver: its connection has ended,
 * or was silent for too long. What was set holds again as soon as it hears from the driver. The driver's JVM does the same
 * when Python has been silent for longer than it said it would be ({@link #hold}).
 */
public final class Shed {
  private static final int BATCHES = 4;
  private static final int MOST_BATCHES = 1000;
  private static final int CHANGES = 64;

  /** One stream. */
  static final class Edge {
    private final LongAdder seen = new LongAdder();
    private final Map<Long, Batch> batches = new LinkedHashMap<Long, Batch>();
    private final ArrayDeque<Change> changes = new ArrayDeque<Change>();
    private volatile double keep = 1.0;
    private Utility utility = new Utility();
    private long forgotten = Long.MIN_VALUE; // the newest batch that was forgotten

    Edge() {
      changes.add(new Change(Long.MIN_VALUE, 1.0));
    }

    double keep() {
      return lost ? 1.0 : keep;
    }

    /** For a batch that began at this time: all that work on it, at whatever time, keep the same part. */
    synchronized double keepAt(long time) {
      if (lost) {
        return 1.0;
      }
      double found = changes.getFirst().keep;
      for (Change change : changes) {
        if (change.time <= time) {
          found = change.keep;
        }
      }
      return found;
    }

    /** Such a part from this time of the driver's clock on, which may have been set back. */
    synchronized void set(double keep, long time) {
      while (changes.size() > 1 && changes.getLast().time >= time) {
        changes.removeLast();
      }
      changes.add(new Change(time, keep));
      if (changes.size() > CHANGES) {
        changes.removeFirst();
      }
      this.keep = keep;
    }

    synchronized Rows rows(long batch, int partition) {
      Batch found = batches.get(batch);
      if (found == null) {
        if (isForgotten(batch)) {
          return new Rows(this, new Batch(), false);
        }
        found = new Batch();
        batches.put(batch, found);
        // An executor reports its batches first, and the driver hears of a batch from several, some of them late.
        forget(follows || server != null ? MOST_BATCHES : BATCHES);
      }
      Batch of = found;
      return found.partitions.computeIfAbsent(partition, ignored -> new Rows(this, of, true));
    }

    /** Whether a batch that is not known was counted before, since the times of batches rise. */
    private boolean isForgotten(long batch) {
      if (follows) {
        return false; // the driver knows what an executor has reported before
      }
      if (forgotten > System.currentTimeMillis()) { // the clock was set back, and batches begin at earlier times now
        forgotten = Long.MIN_VALUE;
      }
      return batch <= forgotten;
    }

    /** All but the last batches: nobody works on those any more. */
    private synchronized void forget(int but) {
      Iterator<Long> oldest = batches.keySet().iterator();
      while (batches.size() > but) {
        forgotten = Math.max(forgotten, oldest.next());
        oldest.remove();
      }
    }

    /** A line for each partition of a batch with more rows than were reported: batch, partition, rows. */
    synchronized void report(String name, boolean all, PrintWriter out) {
      for (Map.Entry<Long, Batch> batch : batches.entrySet()) {
        for (Map.Entry<Integer, Rows> part : batch.getValue().partitions.entrySet()) {
          long counted = part.getValue().news(all);
          if (counted > 0) {
            out.println(name + "\t" + batch.getKey() + "\t" + part.getKey() + "\t" + counted);
          }
        }
      }
      forget(BATCHES);
    }
  }

  private static final class Change {
    final long time;
    final double keep;

    Change(long time, double keep) {
      this.time = time;
      this.keep = keep;
    }
  }

  private static final class Batch {
    final Map<Integer, Rows> partitions = new ConcurrentHashMap<Integer, Rows>();
    Utility before = null; // until somebody asks: most streams need none, and the driver keeps many batches
  }

  /** The rows of a partition in one batch, which are counted once however often they are worked on. */
  static final class Rows {
    private final Edge edge;
    private final Batch batch;
    private final boolean counted;
    private long seen = 0;
    private long reported = 0;

    /** Those of a batch that was forgotten are not {@code counted}: they were before. */
    Rows(Edge edge, Batch batch, boolean counted) {
      this.edge = edge;
      this.batch = batch;
      this.counted = counted;
    }

    /** So many have come, by whoever works on the partition: this JVM, an executor, or another one that does it again. */
    synchronized void count(long rows) {
      if (rows > seen) {
        if (counted) {
          edge.seen.add(rows - seen);
        }
        seen = rows;
      }
    }

    /** The rows so far, if there are more than were reported, or {@code all} are to be reported again; else 0. */
    synchronized long news(boolean all) {
      if (seen == reported && !all) {
        return 0;
      }
      reported = seen;
      return seen;
    }

    /** What was known of the use of rows when the batch began. Who takes it goes on from there; the last one is remembered. */
    Utility utility() {
      synchronized (edge) {
        if (batch.before == null) {
          batch.before = edge.utility.copy();
        }
        edge.utility = batch.before.copy();
        return edge.utility;
      }
    }
  }

  private static final String LOST = "lost";
  private static final int REPORT_MILLIS = 500;
  private static final long SILENT_NANOS = 10 * REPORT_MILLIS * 1_000_000L;
  private static final ConcurrentHashMap<String, Edge> EDGES = new ConcurrentHashMap<String, Edge>();
  private static final Map<String, Follower> FOLLOWERS = new ConcurrentHashMap<String, Follower>();
  private static final String OWN_ID = UUID.randomUUID().toString();
  private static volatile ServerSocket server = null;
  private static String token = "";
  private static volatile boolean follows = false;
  private static volatile boolean lost = false;
  private static boolean expires = false;
  private static long holdsUntil = 0; // by System.nanoTime(), where it expires
  private static Thread watcher = null;

  private Shed() {}

  /** What is set holds for so long, and then everything is kept until the next call. Without any call it holds for ever. */
  public static synchronized void hold(double seconds) {
    holdsUntil = System.nanoTime() + (long) (seconds * 1e9);
    expires = true;
    lost = false;
    if (watcher == null) {
      watcher = start("treadle-shed-hold", Shed::watch);
    }
  }

  /** What is set holds for ever again. */
  public static synchronized void release() {
    expires = false;
    lost = false;
  }

  private static void watch() {
    while (true) {
      synchronized (Shed.class) {
        lost = expires && System.nanoTime() - holdsUntil > 0;
      }
      pause();
    }
  }

  static Edge edge(String name) {
    Edge found = EDGES.get(name);
    return found != null ? found : EDGES.computeIfAbsent(name, ignored -> new Edge());
  }

  /** Keep such a part of a stream from now on, in this JVM and in all that follow it. */
  public static void set(String name, double keep) {
    long now = System.currentTimeMillis();
    edge(name).set(keep, now);
    for (Follower follower : FOLLOWERS.values()) {
      follower.send(name, keep, now);
    }
  }

  public static double get(String name) {
    return edge(name).keep();
  }

  /** Streams whose names begin so are kept whole, and counted from nothing, if they come back. */
  public static void forget(String prefix) {
    for (String name : EDGES.keySet()) {
      if (name.startsWith(prefix)) {
        set(name, 1.0);
        EDGES.remove(name);
      }
    }
  }

  /** A line for each stream: name and rows, by a tab, of this JVM and all that follow it. */
  public static String counts() {
    StringBuilder text = new StringBuilder();
    for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
      text.append(entry.getKey()).append('\t').append(entry.getValue().seen.sum()).append('\n');
    }
    return text.toString();
  }

  /** Let executors follow this JVM, at this address; returns the port. Whoever does not know the secret is sent away. */
  public static synchronized int serve(String host, String secret) throws IOException {
    if (server == null) {
      token = secret;
      server = new ServerSocket(0, 50, InetAddress.getByName(host));
      start("treadle-shed", Shed::accept);
    }
    return server.getLocalPort();
  }

  /** The secret that the server was started with. */
  public static String secret() {
    return token;
  }

  /** Hear from the driver, once for each JVM; the driver's own hears from nobody. */
  static synchronized void follow(String host, int port, String secret) {
    if (follows || server != null) {
      return;
    }
    follows = true;
    start("treadle-shed", () -> listen(host, port, secret));
  }

  private static void accept() {
    while (true) {
      try {
        Socket socket = server.accept();
        start("treadle-shed-follower", () -> serveOne(socket));
      } catch (IOException closed) {
        return;
      }
    }
  }

  private static void serveOne(Socket socket) {
    try (Socket open = socket;
        BufferedReader in = reader(open);
        PrintWriter out = writer(open)) {
      if (!token.equals(in.readLine())) {
        return;
      }
      Follower follower = new Follower(out);
      FOLLOWERS.put(in.readLine(), follower);
      for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
        Edge edge = entry.getValue();
        synchronized (edge) {
          for (Change change : edge.changes) {
            follower.send(entry.getKey(), change.keep, change.time);
          }
        }
      }
      String line;
      while ((line = in.readLine()) != null) {
        if (line.isEmpty()) { // the end of a report, which is answered, so that the executor hears from us
          follower.sendLine(lost ? LOST : "");
          continue;
        }
        String[] parts = line.split("\t");
        Rows rows = edge(parts[0]).rows(Long.parseLong(parts[1]), Integer.parseInt(parts[2]));
        rows.count(Long.parseLong(parts[3]));
      }
    } catch (IOException gone) {
      return;
    }
  }

  private static void listen(String host, int port, String secret) {
    while (true) {
      try (Socket socket = new Socket(host, port);
          BufferedReader in = reader(socket);
          PrintWriter out = writer(socket)) {
        out.println(secret);
        out.println(OWN_ID);
        socket.setSoTimeout(REPORT_MILLIS);
        boolean all = true; // what was sent before, over a connection that broke, may not have arrived
        long heard = System.nanoTime();
        for (int lines = hear(in); lines >= 0; lines = hear(in)) {
          if (lines > 0) {
            heard = System.nanoTime();
            lost = false;
          } else if (System.nanoTime() - heard > SILENT_NANOS) {
            lost = true;
          }
          for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
            entry.getValue().report(entry.getKey(), all, out);
          }
          out.println();
          all = false;
        }
      } catch (IOException away) {
        // as after an orderly end: keep everything, and try again
      }
      lost = true;
      pause();
    }
  }

  /** Take what the driver says until it is silent for a moment; the number of its lines, or -1 when it has hung up. */
  private static int hear(BufferedReader in) throws IOException {
    int lines = 0;
    try {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        if (line.equals(LOST)) { // the driver's JVM is there, but nobody decides
          lost = true;
          lines = 0;
          continue;
        }
        lines++;
        String[] parts = line.split("\t");
        if (parts.length == 3) {
          edge(parts[0]).set(Double.parseDouble(parts[1]), Long.parseLong(parts[2]));
        }
      }
      return -1;
    } catch (java.net.SocketTimeoutException silent) {
      return lines;
    }
  }

  private static BufferedReader reader(Socket socket) throws IOException {
    return new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
  }

  private static PrintWriter writer(Socket socket) throws IOException {
    return new PrintWriter(socket.getOutputStream(), true, StandardCharsets.UTF_8);
  }

  private static void pause() {
    try {
      Thread.sleep(REPORT_MILLIS);
    } catch (InterruptedException stop) {
      Thread.currentThread().interrupt();
    }
  }

  private static Thread start(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
    return thread;
  }

  /** An executor as the driver knows it. */
  private static final class Follower {
    private final PrintWriter out;

    Follower(PrintWriter out) {
      this.out = out;
    }

    void send(String name, double keep, long time) {
      sendLine(name + "\t" + keep + "\t" + time);
    }

    void sendLine(String line) {
      synchronized (out) {
        out.println(line);
      }
    }
  }
}
