package treadle;

import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Treadle's embedded channel as a data source of Spark: {@code readStream.format("treadle.Channel").option("path", folder)}.
 *
 * <p>Options: {@code hop} names the turn that decides when and how much is read, {@code consumer} whose position is kept,
 * {@code born} (write) the column with the arrival time of a row. A batch, as in foreachBatch, is written with the option
 * {@code epoch}, its number, and where it has no turn with {@code oldest} and {@code mean}, arrival in microseconds.
 */
public final class Channel implements TableProvider {
  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    File file = new File(path(options), "schema.json");
    try {
      String json = new String(Files.readAllBytes(file.toPath()), StandardCharsets.UTF_8);
      return (StructType) DataType.fromJson(json);
    } catch (IOException error) {
      throw new IllegalArgumentException("there is no channel at " + path(options) + " (no readable schema.json)", error);
    }
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    return new ChannelTable(schema, new CaseInsensitiveStringMap(properties));
  }

  static String path(CaseInsensitiveStringMap options) {
    String path = options.get("path");
    if (path == null) {
      throw new IllegalArgumentException("a channel needs the option path");
    }
    return path.startsWith("file:") ? java.net.URI.create(path).getPath() : path;
  }

  private static final class ChannelTable implements SupportsRead, SupportsWrite {
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    ChannelTable(StructType schema, CaseInsensitiveStringMap options) {
      this.schema = schema;
      this.options = options;
    }

    @Override
    public String name() {
      return "channel " + new File(path(options)).getName();
    }

    @Override
    public StructType schema() {
      return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.MICRO_BATCH_READ, TableCapability.STREAMING_WRITE,
          TableCapability.BATCH_WRITE, TableCapability.ACCEPT_ANY_SCHEMA);
    }

    @Override
    public ScanBuilder newScanBuilder(final CaseInsensitiveStringMap given) {
      return new ScanBuilder() {
        @Override
        public Scan build() {
          return new ChannelScan(schema, given);
        }
      };
    }

    @Override
    public WriteBuilder newWriteBuilder(final LogicalWriteInfo info) {
      return new ChannelWriteBuilder(info);
    }
  }

  /** In update mode a changed row is appended once more, as in Kafka: who reads keeps the last. */
  private static final class ChannelWriteBuilder implements WriteBuilder, SupportsStreamingUpdateAsAppend {
    private final LogicalWriteInfo info;

    ChannelWriteBuilder(LogicalWriteInfo info) {
      this.info = info;
    }

    @Override
    public Write build() {
      return new ChannelSink(info);
    }
  }

  private static final class ChannelScan implements Scan {
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    ChannelScan(StructType schema, CaseInsensitiveStringMap options) {
      this.schema = schema;
      this.options = options;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return "channel " + new File(path(options)).getName();
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      return new ChannelStream(path(options), options);
    }
  }

  private static final class ChannelSink implements Write {
    private final LogicalWriteInfo info;

    ChannelSink(LogicalWriteInfo info) {
      this.info = info;
    }

    @Override
    public String description() {
      return "channel " + new File(path(info.options())).getName();
    }

    @Override
    public BatchWrite toBatch() {
      return new ChannelWrite(path(info.options()), info);
    }

    @Override
    public StreamingWrite toStreaming() {
      return new ChannelWrite(path(info.options()), info);
    }
  }
}
