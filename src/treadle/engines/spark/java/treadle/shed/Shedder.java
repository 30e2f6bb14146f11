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
import java.util.function.Consumer;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.streaming.RealTimeTrigger;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.streaming.StreamingQueryProgress;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * In a driver: says how far each streaming query is, and has it drop a part of its rows from its next batch on.
 *
 * <p>It is loaded with the path of a Unix socket, calls there and says `shed protocol`. A line `keep run part` sets a part,
 * `look` is answered by lines and an empty one: `query run id real-time seen kept name`, then `progress run json` for each
 * that is new. Fields are apart by tabs. When the call ends, by whatever, every query keeps all of its rows from its next
 * batch on.
 */
public final class Shedder {
  private static final int PROTOCOL = 1;
  private final Map<String, Keep> rules = new HashMap<>();
  private final Map<String, String> told = new HashMap<>();

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
        String[] words = line.split("\t");
        if (words[0].equals("keep") && rules.containsKey(words[1])) {
          rules.get(words[1]).part = Double.parseDouble(words[2]);
        } else if (words[0].equals("look")) {
          Option<SparkSession> session = SparkSession.getDefaultSession();
          if (!session.isEmpty()) {
            look(session.get(), out);
          }
          out.write('\n');
          out.flush();
        }
      }
    } catch (IOException | RuntimeException | LinkageError gone) {
      // whoever called hears of it by the end of the connection
    } finally {
      rules.values().forEach(Keep::leave);
    }
  }

  private void look(SparkSession session, BufferedWriter out) throws IOException {
    Map<String, StreamExecution> active = new HashMap<>();
    session.sharedState().activeStreamingQueries().forEach((id, query) -> active.put(query.runId().toString(), query));
    rules.keySet().retainAll(active.keySet());
    told.keySet().retainAll(active.keySet());
    for (Map.Entry<String, StreamExecution> each : active.entrySet()) {
      tell(each.getKey(), each.getValue(), out);
    }
  }

  private void tell(String run, StreamExecution query, BufferedWriter out) throws IOException {
    if (!rules.containsKey(run)) {
      Keep rule = new Keep(query);
      change(query, all -> all.add(rule));
      rules.put(run, rule);
    }
    long[] counts = rules.get(run).counts();
    boolean realTime = query.trigger() instanceof RealTimeTrigger;
    String name = query.name() == null ? "" : query.name().replace('\t', ' ').replace('\n', ' ');
    line(out, "query", run, query.id(), realTime, counts[0], counts[1], name);
    String last = told.getOrDefault(run, "");
    for (StreamingQueryProgress progress : query.recentProgress()) {
      if (progress.timestamp().compareTo(last) > 0) {
        told.put(run, progress.timestamp());
        line(out, "progress", run, progress.json());
      }
    }
  }

  private static void line(BufferedWriter out, Object... fields) throws IOException {
    for (int place = 0; place < fields.length; place++) {
      out.write(place == 0 ? "" : "\t");
      out.write(String.valueOf(fields[place]));
    }
    out.write('\n');
  }

  static void remove(Keep rule) {
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
