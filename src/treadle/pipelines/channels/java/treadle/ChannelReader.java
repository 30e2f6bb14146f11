package treadle;

import java.io.FileInputStream;
import java.io.IOException;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Gives the record batches of Arrow segments to Spark as they are, cut to the rows that were asked for. */
final class ChannelReader implements PartitionReader<ColumnarBatch> {
  private final ChannelStream.Slice slice;
  private final BufferAllocator allocator;
  private int next = 0;
  private long row;
  private FileInputStream file;
  private ArrowFileReader reader;
  private VectorSchemaRoot cut;
  private ColumnarBatch batch;

  private ChannelReader(ChannelStream.Slice slice) {
    this.slice = slice;
    this.allocator = ArrowUtils.rootAllocator().newChildAllocator("channel", 0, Long.MAX_VALUE);
  }

  @Override
  public boolean next() throws IOException {
    release();
    while (true) {
      if (reader == null) {
        if (next == slice.segments.length) {
          return false;
        }
        open(slice.segments[next++]);
      }
      if (row >= slice.high || !loaded()) {
        if (row < Math.min(slice.high, segment().end())) {
          throw damaged(new IOException("it ends at row " + row));
        }
        shut();
        continue;
      }
      VectorSchemaRoot root = reader.getVectorSchemaRoot();
      long first = row;
      row += root.getRowCount();
      if (row > slice.low && first < slice.high && root.getRowCount() > 0) {
        take(root, (int) (Math.max(slice.low, first) - first), (int) (Math.min(slice.high, row) - first));
        return true;
      }
    }
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    release();
    shut();
    allocator.close();
  }

  private void open(Segments.Segment segment) throws IOException {
    file = new FileInputStream(segment.file);
    reader = new ArrowFileReader(file.getChannel(), allocator);
    row = segment.first;
  }

  private boolean loaded() throws IOException {
    try {
      return reader.loadNextBatch();
    } catch (Exception unreadable) {
      throw damaged(unreadable);
    }
  }

  private IOException damaged(Exception why) {
    return new IOException("segment " + segment().file + " is damaged (rows " + segment().first + " to " + segment().end()
        + "): put the file back from a copy, then its readers continue", why);
  }

  private Segments.Segment segment() {
    return slice.segments[next - 1];
  }

  private void take(VectorSchemaRoot root, int from, int to) {
    VectorSchemaRoot whole = root;
    if (from > 0 || to < root.getRowCount()) {
      cut = root.slice(from, to - from);
      whole = cut;
    }
    List<FieldVector> vectors = whole.getFieldVectors();
    ColumnVector[] columns = new ColumnVector[vectors.size()];
    for (int i = 0; i < columns.length; i++) {
      columns[i] = new ArrowColumnVector(vectors.get(i));
    }
    batch = new ColumnarBatch(columns, to - from);
  }

  private void release() {
    if (cut != null) {
      cut.close();
      cut = null;
    }
    batch = null;
  }

  private void shut() throws IOException {
    if (reader != null) {
      reader.close();
      file.close();
      reader = null;
    }
  }

  /** Makes readers on executors. */
  static final class Factory implements PartitionReaderFactory {
    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      throw new UnsupportedOperationException("a channel is read in columns");
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new ChannelReader((ChannelStream.Slice) partition);
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }
  }
}
