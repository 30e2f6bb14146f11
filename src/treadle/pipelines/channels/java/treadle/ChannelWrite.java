package treadle;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** Appends to a channel: tasks write Arrow files that nobody sees, the commit of an epoch makes all of them visible at once. */
final class ChannelWrite implements StreamingWrite, BatchWrite {
  private static final int ROWS_PER_BATCH = 10000;
  private final String folder;
  private final String hop;
  private final StructType schema;
  private final int born;
  private final long epoch;
  private final long oldest;
  private final long mean;

  ChannelWrite(String folder, LogicalWriteInfo info) {
    this.folder = folder;
    this.hop = info.options().get("hop");
    this.schema = info.schema();
    String column = info.options().get("born");
    this.born = column == null ? -1 : schema.fieldIndex(column);
    this.epoch = info.options().getLong("epoch", -1);
    this.oldest = info.options().getLong("oldest", 0);
    this.mean = info.options().getLong("mean", oldest);
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    return new Factory(folder, schema, born);
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    if (epoch < 0) {
      throw new IllegalArgumentException("a batch that is written to a channel needs the option epoch, the batch's number");
    }
    return new Factory(folder, schema, born);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    commit(epoch, messages);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    abort(epoch, messages);
  }

  @Override
  public boolean useCommitCoordinator() {
    return false; // a second attempt writes files of its own, and only those of the first answer are published
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    List<Part> parts = new ArrayList<Part>();
    long rows = 0;
    for (int i = 0; i < messages.length; i++) {
      Part part = (Part) messages[i];
      if (part != null && part.rows > 0) {
        parts.add(part);
        rows += part.rows;
      }
    }
    Turn turn = Turn.of(hop);
    long now = System.currentTimeMillis() * 1000;
    long[] arrived = turn != null ? turn.born() : oldest > 0 ? new long[] {oldest, mean} : new long[] {now, now};
    try {
      if (!parts.isEmpty()) {
        Segments.publish(folder, epoch, parts, arrived[0], arrived[1]);
      }
    } catch (IOException error) {
      throw new IllegalStateException("channel " + folder + ": can't publish batch " + epoch, error);
    }
    if (turn != null) {
      turn.wrote(epoch, rows);
    }
  }

  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {
    for (int i = 0; i < messages.length; i++) {
      if (messages[i] != null && ((Part) messages[i]).rows > 0) {
        new File(((Part) messages[i]).file).delete();
      }
    }
  }

  /** What a task has written. */
  static final class Part implements WriterCommitMessage {
    final String file;
    final long rows;
    final long oldest;
    final long born;
    private final double sum;

    Part(String file, long rows, long born, long oldest, double sum) {
      this.file = file;
      this.rows = rows;
      this.born = born;
      this.oldest = oldest;
      this.sum = sum;
    }

    long mean() {
      return (long) (sum / born);
    }
  }

  private static final class Factory implements StreamingDataWriterFactory, DataWriterFactory {
    private final String folder;
    private final StructType schema;
    private final int born;

    Factory(String folder, StructType schema, int born) {
      this.folder = folder;
      this.schema = schema;
      this.born = born;
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return createWriter(partition, task, 0);
    }

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
      return new Writer(new File(folder, ".tmp-" + epoch + "-" + partition + "-" + UUID.randomUUID()), schema, born);
    }
  }

  private static final class Writer implements DataWriter<InternalRow> {
    private final File target;
    private final int bornColumn;
    private final BufferAllocator allocator;
    private final VectorSchemaRoot root;
    private final ArrowWriter columns;
    private FileOutputStream file;
    private ArrowFileWriter writer;
    private int pending = 0;
    private long rows = 0;
    private long born = 0;
    private long oldest = Long.MAX_VALUE;
    private double sum = 0;

    Writer(File target, StructType schema, int bornColumn) {
      this.target = target;
      this.bornColumn = bornColumn;
      this.allocator = ArrowUtils.rootAllocator().newChildAllocator("channel", 0, Long.MAX_VALUE);
      this.root = VectorSchemaRoot.create(ArrowUtils.toArrowSchema(schema, "UTC", true, false, false), allocator);
      this.columns = ArrowWriter.create(root);
    }

    @Override
    public void write(InternalRow row) throws IOException {
      columns.write(row);
      if (bornColumn >= 0 && !row.isNullAt(bornColumn)) {
        long arrived = row.getLong(bornColumn);
        born++;
        oldest = Math.min(oldest, arrived);
        sum += arrived;
      }
      rows++;
      if (++pending == ROWS_PER_BATCH) {
        flush();
      }
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      if (rows > 0) {
        flush();
        writer.close();
        file.close();
      }
      return new Part(target.getPath(), rows, born, oldest, sum);
    }

    @Override
    public void abort() throws IOException {
      close();
      Files.deleteIfExists(target.toPath());
    }

    @Override
    public void close() throws IOException {
      if (file != null) {
        file.close();
      }
      root.close();
      allocator.close();
    }

    private void flush() throws IOException {
      if (writer == null) { // a task without rows leaves no file
        file = new FileOutputStream(target);
        writer = new ArrowFileWriter(root, null, file.getChannel());
        writer.start();
      }
      if (pending > 0) {
        columns.finish();
        writer.writeBatch();
        columns.reset();
        pending = 0;
      }
    }
  }
}
