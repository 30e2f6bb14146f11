package treadle;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Reads a channel by row number: an offset is the number of the first row that has not been read yet. */
final class ChannelStream implements MicroBatchStream, SupportsAdmissionControl {
  private static final long ROWS_PER_PARTITION = 250000;
  private final String folder;
  private final String name;
  private final String hop;
  private final String consumer;
  private final long since;
  private final long maxRows;
  private final int maxPartitions;
  private long done = -1;
  private Turn turn;

  ChannelStream(String folder, CaseInsensitiveStringMap options) {
    this.folder = folder;
    this.name = new java.io.File(folder).getName();
    this.hop = options.get("hop");
    this.consumer = options.get("consumer");
    this.since = options.getLong("since", 0);
    this.maxRows = options.getLong("maxRowsPerTrigger", 0);
    this.maxPartitions = options.getInt("maxPartitions", 2);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return maxRows > 0 ? ReadLimit.maxRows(maxRows) : ReadLimit.allAvailable();
  }

  @Override
  public Offset initialOffset() {
    List<Segments.Segment> segments = Segments.visible(folder);
    return new Row(segments.isEmpty() ? 0 : segments.get(0).first);
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    long from = ((Row) start).number;
    if (consumer != null && from != done) { // the batch before is in Spark's commit log by now
      Segments.done(folder, consumer, from);
      done = from;
    }
    Turn turn = turn();
    long most = turn != null ? turn.ask(this, name, from) : limit instanceof ReadMaxRows ? ((ReadMaxRows) limit).maxRows() : Long.MAX_VALUE;
    if (most == 0) {
      return start;
    }
    long first = Math.max(from, since);
    long end = Math.max(from, Math.min(Segments.end(folder), first + Math.min(most, Long.MAX_VALUE - first)));
    return new Row(turn != null ? turn.end(name, end) : end);
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with a limit");
  }

  @Override
  public Offset reportLatestOffset() {
    return new Row(Segments.end(folder));
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new Row(Long.parseLong(json.trim()));
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    long from = Math.max(((Row) start).number, since); // rows before it were deleted while this reader was suspended
    long to = Math.max(((Row) end).number, from);
    List<Segments.Segment> segments = Segments.between(folder, from, to);
    Turn turn = turn();
    if (turn != null) {
      turn.reads(name, from, to, segments);
    }
    if (to <= from) {
      return new InputPartition[0];
    }
    int count = (int) Math.max(1, Math.min(maxPartitions, (to - from) / ROWS_PER_PARTITION));
    InputPartition[] partitions = new InputPartition[count];
    for (int i = 0; i < count; i++) {
      long low = from + (to - from) * i / count;
      long high = from + (to - from) * (i + 1) / count;
      List<Segments.Segment> mine = new ArrayList<Segments.Segment>();
      for (Segments.Segment segment : segments) {
        if (segment.first < high && segment.end() > low) {
          mine.add(segment);
        }
      }
      partitions[i] = new Slice(low, high, mine.toArray(new Segments.Segment[0]));
    }
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ChannelReader.Factory();
  }

  /** Spark tells so only when it has planned the next batch: for an idle hop too late. */
  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}

  /** Kept once it is found: a hop whose turn has been closed is not one that was never gated, and is given nothing. */
  private Turn turn() {
    if (turn == null) {
      turn = Turn.of(hop);
    }
    return turn;
  }

  /** The number of a row. */
  static final class Row extends Offset {
    final long number;

    Row(long number) {
      this.number = number;
    }

    @Override
    public String json() {
      return Long.toString(number);
    }
  }

  /** Rows [low, high) of some segments. */
  static final class Slice implements InputPartition {
    final long low;
    final long high;
    final Segments.Segment[] segments;

    Slice(long low, long high, Segments.Segment[] segments) {
      this.low = low;
      this.high = high;
      this.segments = segments;
    }
  }
}
