package treadle;

import org.apache.spark.sql.streaming.StreamingQueryListener;

/** Tells when a query ends. Progress, which comes with every batch, stays in the JVM: to tell it would cost more than it says. */
public final class Watch extends StreamingQueryListener {
  private final Turn.Listener listener;

  public Watch(Turn.Listener listener) {
    this.listener = listener;
  }

  @Override
  public void onQueryStarted(QueryStartedEvent event) {}

  @Override
  public void onQueryProgress(QueryProgressEvent event) {}

  @Override
  public void onQueryTerminated(QueryTerminatedEvent event) {
    try {
      listener.ended(event.runId().toString(), event.exception().isEmpty() ? null : event.exception().get());
    } catch (RuntimeException gone) {
      return; // Python ends before its JVM: there is nobody left to tell
    }
  }
}
