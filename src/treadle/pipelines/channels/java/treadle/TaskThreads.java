package treadle;

import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The CPU that tasks of this JVM use while they run, by the kernel's clock of their threads. Spark tells it when a task ends,
 * which in Real-Time Mode is at the end of a long batch.
 */
final class TaskThreads {
  private static final Pattern TASK = Pattern.compile("Executor task launch worker for .*\\(TID (\\d+)\\)");
  private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

  private Map<Long, Long> begun = new HashMap<Long, Long>(); // what the thread of a task had used when it was first seen

  /** By task that runs: seconds since it was first seen here. */
  synchronized HashMap<Long, Double> seconds() {
    Map<Long, Long> seen = new HashMap<Long, Long>();
    HashMap<Long, Double> found = new HashMap<Long, Double>();
    for (ThreadInfo each : THREADS.getThreadInfo(THREADS.getAllThreadIds())) {
      Matcher name = TASK.matcher(each == null ? "" : each.getThreadName());
      long used = name.matches() ? THREADS.getThreadCpuTime(each.getThreadId()) : -1;
      if (used >= 0) { // else it is no task, or has ended
        long task = Long.parseLong(name.group(1));
        long first = begun.getOrDefault(task, used);
        seen.put(task, first);
        found.put(task, (used - first) / 1e9);
      }
    }
    begun = seen;
    return found;
  }
}
