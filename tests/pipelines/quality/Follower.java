import java.lang.reflect.Method;

/** As an executor: follows a driver at a port, and prints what part of a stream it keeps whenever that changes. */
public final class Follower {
  public static void main(String[] words) throws Exception {
    Class<?> shed = Class.forName("treadle.Shed");
    Method follow = shed.getDeclaredMethod("follow", String.class, int.class, String.class);
    follow.setAccessible(true);
    follow.invoke(null, "127.0.0.1", Integer.parseInt(words[0]), "secret");
    Method get = shed.getDeclaredMethod("get", String.class);
    Thread printer = new Thread(() -> print(get));
    printer.setDaemon(true);
    printer.start();
    System.in.read(); // until the test ends, in whichever way
  }

  private static void print(Method get) {
    try {
      Object before = null;
      while (true) {
        Object now = get.invoke(null, "stream");
        if (!now.equals(before)) {
          System.out.println(now);
          before = now;
        }
        Thread.sleep(10);
      }
    } catch (ReflectiveOperationException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }
}
