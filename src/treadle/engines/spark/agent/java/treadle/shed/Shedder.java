package treadle.shed;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.lang.instrument.Instrumentation;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.RealTimeTrigger;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.streaming.StreamingQueryProgress;
import org.apache.spark.sql.streaming.Trigger;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * In a driver: reports how far each streaming query is, and has it drop a part of its rows from its next batch on.
 *
 * <p>It is loaded with the path of a Unix socket, connects to it and says `shed protocol`. A line `keep run part` sets a part.
 * `look milliseconds` is answered by lines and an empty one: `silent milliseconds` if parts were suspended since the last
 * answer, `query run id trigger seen kept name` for each active query, then `progress run json` for each of its reports that
 * is new. Fields are separated by tabs.
 *
 * <p>When the connection ends, for whatever reason, every query keeps all of its rows from its next batch on. The same holds
 * while no line has come for the milliseconds that the last `look` named, as from a process that is stopped or hangs: parts
 * are suspended then, and hold again from the next line on.
 */
public final class Shedder {
  private static final int PROTOCOL = 2;
  private final Map<String, DropRowsRule> rules = new HashMap<>();
  private final Map<String, StreamingQueryProgress> reported = new HashMap<>();
  /** When the last line came, and how long the next one may take, in nanoseconds of the JVM's monotonic clock. */
  private volatile long heard = System.nanoTime();

  private volatile long patience = Long.MAX_VALUE;
  /** The longest time for which parts were suspended since the last answer, in nanoseconds. */
  private long suspended = 0;

  private Shedder() {}

  public static void agentmain(String path, Instrumentation tools) throws IOException {
    SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(path));
    Thread thread = new Thread(() -> new Shedder().serve(channel), "treadle-agent-shed");
    thread.setDaemon(true);
    thread.start();
  }

  private void serve(SocketChannel channel) {
    try (channel;
        BufferedReader in = new BufferedReader(Channels.newReader(channel, StandardCharsets.UTF_8));
        BufferedWriter out = new BufferedWriter(Channels.newWriter(channel, StandardCharsets.UTF_8))) {
      line(out, "shed", PROTOCOL);
      out.flush();
      String line;
      while ((line = in.readLine()) != null) {
        note();
        String[] words = line.split("\t");
        if (words[0].equals("keep") && rules.containsKey(words[1])) {
          rules.get(words[1]).part = Double.parseDouble(words[2]);
        } else if (words[0].equals("look")) {
          patience = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words[1]));
          if (suspended > 0) {
            line(out, "silent", TimeUnit.NANOSECONDS.toMillis(suspended));
            suspended = 0;
          }
          Option<SparkSession> session = SparkSession.getDefaultSession();
          if (!session.isEmpty()) {
            look(session.get(), out);
          }
          out.write('\n');
          out.flush();
        }
      }
    } catch (IOException | RuntimeException | LinkageError gone) {
      // the other side sees it by the end of the connection
    } finally {
      rules.values().forEach(DropRowsRule::leave);
    }
  }

  /** Whether parts hold: somebody is there who could take them back. */
  boolean isHeard() {
    return System.nanoTime() - heard < patience;
  }

  private void note() {
    long now = System.nanoTime();
    if (!isHeard() && rules.values().stream().anyMatch(rule -> rule.part < 1.0)) {
      suspended = Math.max(suspended, now - heard);
    }
    heard = now;
  }

  private void look(SparkSession session, BufferedWriter out) throws IOException {
    Map<String, StreamExecution> active = new HashMap<>();
    session.sharedState().activeStreamingQueries().forEach((id, query) -> active.put(query.runId().toString(), query));
    rules.keySet().retainAll(active.keySet());
    reported.keySet().retainAll(active.keySet());
    for (Map.Entry<String, StreamExecution> each : active.entrySet()) {
      report(each.getKey(), each.getValue(), out);
    }
  }

  private void report(String run, StreamExecution query, BufferedWriter out) throws IOException {
    if (!rules.containsKey(run)) {
      DropRowsRule rule = new DropRowsRule(query, this::isHeard);
      change(query, all -> all.add(rule));
      rules.put(run, rule);
    }
    long[] counts = rules.get(run).counts();
    String name = query.name() == null ? "" : query.name().replace('\t', ' ').replace('\n', ' ');
    line(out, "query", run, query.id(), trigger(query), counts[0], counts[1], name);
    StreamingQueryProgress[] recent = query.recentProgress();
    int first = recent.length;
    while (first > 0 && recent[first - 1] != reported.get(run)) { // not by their times: the clock may be set back
      first--;
    }
    for (int place = first; place < recent.length; place++) {
      reported.put(run, recent[place]);
      line(out, "progress", run, recent[place].json());
    }
  }

  private static String trigger(StreamExecution query) {
    if (query.trigger() instanceof RealTimeTrigger) {
      return "real-time";
    }
    boolean ends = query.trigger().equals(Trigger.AvailableNow()) || query.trigger().equals(Trigger.Once());
    return ends ? "ends" : "goes-on";
  }

  private static void line(BufferedWriter out, Object... fields) throws IOException {
    for (int place = 0; place < fields.length; place++) {
      out.write(place == 0 ? "" : "\t");
      out.write(String.valueOf(fields[place]));
    }
    out.write('\n');
  }

  static void remove(DropRowsRule rule) {
    change(rule.query, all -> all.remove(rule));
  }

  /** Of the query's own session, which it has from its start on and shares with none. */
  private static void change(StreamExecution query, Consumer<List<Rule<LogicalPlan>>> how) {
    ExperimentalMethods methods = query.sparkSessionForStream().sessionState().experimentalMethods();
    List<Rule<LogicalPlan>> all = new ArrayList<>(CollectionConverters.asJava(methods.extraOptimizations()));
    how.accept(all);
    methods.extraOptimizations_$eq(CollectionConverters.asScala(all).toSeq());
  }
}
