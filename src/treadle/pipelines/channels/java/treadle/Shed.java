package treadle;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/**
 * How much of each stream is kept, in this JVM: set while it runs, read by {@link Keep} for every row, and counted.
 *
 * <p>The driver's table is set from outside. Executors connect to the driver, report what they have counted, and are answered
 * with all values. An executor that has heard nothing yet keeps everything, and so does one that has lost the driver: its
 * connection has ended, or was silent for too long. It follows the driver again as soon as it hears from it.
 */
public final class Shed {
  /** One stream. */
  static final class Edge {
    volatile double keep = 1.0;
    final LongAdder seen = new LongAdder();
    final LongAdder kept = new LongAdder();
    final Utility utility = new Utility();
  }

  private static final int REPORT_MILLIS = 500;
  private static final long SILENT_NANOS = 10 * REPORT_MILLIS * 1_000_000L;
  private static final ConcurrentHashMap<String, Edge> EDGES = new ConcurrentHashMap<String, Edge>();
  private static final Map<String, Follower> FOLLOWERS = new ConcurrentHashMap<String, Follower>();
  private static final String OWN_ID = UUID.randomUUID().toString();
  private static volatile ServerSocket server = null;
  private static String token = "";
  private static boolean follows = false;

  private Shed() {}

  static Edge edge(String name) {
    Edge found = EDGES.get(name);
    return found != null ? found : EDGES.computeIfAbsent(name, ignored -> new Edge());
  }

  /** Keep such a part of a stream from now on, in this JVM and in all that follow it. */
  public static void set(String name, double keep) {
    edge(name).keep = keep;
    for (Follower follower : FOLLOWERS.values()) {
      follower.tell(name, keep);
    }
  }

  public static double get(String name) {
    return edge(name).keep;
  }

  /** Streams whose names begin so are kept whole, and counted from nothing, if they come back. */
  public static void forget(String prefix) {
    for (String name : EDGES.keySet()) {
      if (name.startsWith(prefix)) {
        set(name, 1.0);
        EDGES.remove(name);
        for (Follower follower : FOLLOWERS.values()) {
          follower.counted.remove(name);
        }
      }
    }
  }

  /** A line for each stream: name, rows seen, rows kept, by a tab, of this JVM and all that follow it. */
  public static String counts() {
    StringBuilder text = new StringBuilder();
    for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
      long seen = entry.getValue().seen.sum();
      long kept = entry.getValue().kept.sum();
      for (Follower follower : FOLLOWERS.values()) {
        long[] theirs = follower.counted.get(entry.getKey());
        if (theirs != null) {
          seen += theirs[0];
          kept += theirs[1];
        }
      }
      text.append(entry.getKey()).append('\t').append(seen).append('\t').append(kept).append('\n');
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
      Follower before = FOLLOWERS.put(in.readLine(), follower); // stays, for what it counted, also after its end
      if (before != null) {
        follower.counted.putAll(before.counted);
      }
      follower.tellAll();
      String line;
      while ((line = in.readLine()) != null) {
        if (line.isEmpty()) { // the end of a report
          follower.tellAll();
          continue;
        }
        String[] parts = line.split("\t");
        edge(parts[0]);
        follower.counted.put(parts[0], new long[] {Long.parseLong(parts[1]), Long.parseLong(parts[2])});
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
        long heard = System.nanoTime();
        for (int lines = hear(in); lines >= 0; lines = hear(in)) {
          if (lines > 0) {
            heard = System.nanoTime();
          } else if (System.nanoTime() - heard > SILENT_NANOS) {
            keepAll();
          }
          report(out);
        }
      } catch (IOException away) {
        // as after an orderly end: keep everything, and try again
      }
      keepAll();
      pause();
    }
  }

  private static void report(PrintWriter out) {
    for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
      Edge edge = entry.getValue();
      out.println(entry.getKey() + "\t" + edge.seen.sum() + "\t" + edge.kept.sum());
    }
    out.println();
  }

  private static void keepAll() {
    for (Edge edge : EDGES.values()) {
      edge.keep = 1.0;
    }
  }

  /** Take what the driver says until it is silent for a moment; the number of its lines, or -1 when it has hung up. */
  private static int hear(BufferedReader in) throws IOException {
    int lines = 0;
    try {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        lines++;
        int tab = line.lastIndexOf('\t');
        if (tab >= 0) {
          edge(line.substring(0, tab)).keep = Double.parseDouble(line.substring(tab + 1));
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

  private static void start(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
  }

  /** An executor as the driver knows it. */
  private static final class Follower {
    final Map<String, long[]> counted = new ConcurrentHashMap<String, long[]>();
    private final PrintWriter out;

    Follower(PrintWriter out) {
      this.out = out;
    }

    /** All values, and an empty line, so that something is said also where there are none. */
    void tellAll() {
      for (Map.Entry<String, Edge> entry : EDGES.entrySet()) {
        tell(entry.getKey(), entry.getValue().keep);
      }
      synchronized (out) {
        out.println();
      }
    }

    void tell(String name, double keep) {
      synchronized (out) {
        out.println(name + "\t" + keep);
      }
    }
  }
}
