import java.io.FileWriter;
import java.io.IOException;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.StageInfo;
import org.apache.spark.util.TaskCompletionListener;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Writes down, from inside of each JVM of an application, which thread serves which streaming query, and when.
 *
 * Tasks say it themselves when they begin and end; whose a shuffle is Spark's scheduler says; the names of all
 * threads with their kernel ids are printed by the JVM. Lines of a file for each process, fields apart by tabs, the
 * first is System.nanoTime(): `task tid number query`, `done tid number`, `idle tid`, `shuffle number query`, `look nanoseconds`
 * (how long the JVM took for it), and after each look what it saw anew: `name tid name`, `gone tid`.
 */
public final class Witness implements SparkPlugin {
    private static final long PERIOD_MS = 100;
    private static final Pattern NID = Pattern.compile("^\"(.*)\" .*\\bnid=(0x[0-9a-f]+|\\d+)");
    private static final Map<Thread, Map.Entry<String, String>> BUSY = new ConcurrentHashMap<>();
    private static PrintWriter out;

    @Override
    public DriverPlugin driverPlugin() {
        return new DriverPlugin() {
            @Override
            public Map<String, String> init(SparkContext spark, PluginContext context) {
                begin(context);
                spark.addSparkListener(new SparkListener() {
                    @Override
                    public void onJobStart(SparkListenerJobStart job) {
                        for (StageInfo stage : CollectionConverters.asJava(job.stageInfos())) {
                            if (stage.shuffleDepId().isDefined()) {
                                write("shuffle\t" + stage.shuffleDepId().get() + "\t" + query(job.properties()));
                            }
                        }
                    }
                });
                return Map.of();
            }
        };
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new ExecutorPlugin() {
            @Override
            public void init(PluginContext context, Map<String, String> extra) {
                begin(context);
            }

            @Override
            public void onTaskStart() {
                TaskContext context = TaskContext.get();
                long number = context.taskAttemptId();
                String tid = tid();
                write("task\t" + tid + "\t" + number + "\t" + query(context.getLocalProperty("spark.job.description")));
                TaskCompletionListener ending = ended -> write("done\t" + tid + "\t" + number);
                context.addTaskCompletionListener(ending);
                BUSY.put(Thread.currentThread(), Map.entry(tid, Thread.currentThread().getName()));
            }
        };
    }

    private static synchronized void begin(PluginContext context) {
        if (out != null) {
            return;
        }
        Path folder = Path.of(context.conf().get("spark.witness.folder"));
        try {
            out = new PrintWriter(new FileWriter(folder.resolve(ProcessHandle.current().pid() + ".witness").toFile()));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
        Thread looking = new Thread(Witness::look, "witness");
        looking.setDaemon(true);
        looking.start();
        Thread waiting = new Thread(Witness::await, "witness of ends");
        waiting.setDaemon(true);
        waiting.start();
    }

    private static synchronized void write(String line) {
        out.println(System.nanoTime() + "\t" + line);
        out.flush();
    }

    private static String query(Properties properties) {
        return query(properties == null ? null : properties.getProperty("spark.job.description"));
    }

    private static String query(String description) {
        return description == null || !description.contains("\nrunId = ") ? "-" : description.split("\n", 2)[0];
    }

    private static String tid() {
        try {
            return Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName().toString();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** A thread works for its task until it is called otherwise: after the task has ended there is more to do. */
    private static void await() {
        try {
            while (true) {
                BUSY.forEach((thread, task) -> {
                    if (!thread.getName().equals(task.getValue()) && BUSY.remove(thread, task)) {
                        write("idle\t" + task.getKey());
                    }
                });
                Thread.sleep(5);
            }
        } catch (InterruptedException error) {
            write("failed\t" + error);
        }
    }

    private static void look() {
        MBeanServer beans = ManagementFactory.getPlatformMBeanServer();
        Map<String, String> known = new HashMap<>();
        try {
            ObjectName commands = new ObjectName("com.sun.management:type=DiagnosticCommand");
            Object[] nothing = {new String[0]};
            String[] types = {String[].class.getName()};
            while (true) {
                long began = System.nanoTime();
                Map<String, String> seen = new HashMap<>();
                for (String line : ((String) beans.invoke(commands, "threadPrint", nothing, types)).split("\n")) {
                    Matcher found = line.startsWith("\"") ? NID.matcher(line) : null;
                    if (found != null && found.find()) {
                        seen.put(Long.decode(found.group(2)).toString(), found.group(1));
                    }
                }
                tell(began, known, seen);
                known = seen;
                Thread.sleep(PERIOD_MS);
            }
        } catch (Exception error) {
            write("failed\t" + error);
        }
    }

    private static synchronized void tell(long began, Map<String, String> known, Map<String, String> seen) {
        StringBuilder text = new StringBuilder(began + "\tlook\t" + (System.nanoTime() - began) + "\n");
        seen.forEach((tid, name) -> {
            if (!name.equals(known.get(tid))) {
                text.append(began).append("\tname\t").append(tid).append('\t').append(name).append('\n');
            }
        });
        known.keySet().stream().filter(tid -> !seen.containsKey(tid))
            .forEach(tid -> text.append(began).append("\tgone\t").append(tid).append('\n'));
        out.print(text);
        out.flush();
    }
}
