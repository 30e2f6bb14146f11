import java.lang.management.ManagementFactory;
import java.util.concurrent.locks.LockSupport;
import javax.management.MXBean;
import javax.management.ObjectName;

/** A program to look into: some threads with names of all sorts, and MBeans. It ends when its input does. */
public class Sample {
    @MXBean
    public interface Lag {
        double getLag();

        double getUnknown();

        String getTopic();

        int getBroken();
    }

    record Gauge(String topic, double lag) implements Lag {
        public double getLag() {
            return lag;
        }

        public double getUnknown() {
            return Double.NaN;
        }

        public String getTopic() {
            return topic;
        }

        public int getBroken() {
            throw new IllegalStateException("not today");
        }
    }

    static void waitForEver() {
        while (true) {
            LockSupport.park();
        }
    }

    static void start(String name, Runnable work) {
        Thread thread = new Thread(work, name);
        thread.setDaemon(true);
        thread.start();
    }

    public static void main(String[] arguments) throws Exception {
        start("waits (TID 1)", Sample::waitForEver);
        start("says \"hello\" #7 prio=5 nid=0x1 é", Sample::waitForEver);
        start("two\n\"lines\"", Sample::waitForEver);
        for (int i = 0; i < 3; i++) {
            ObjectName name = new ObjectName("sample:type=lag,topic=t" + i);
            ManagementFactory.getPlatformMBeanServer().registerMBean(new Gauge("t" + i, 10.5 * i), name);
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {
        }
    }
}
