package treadle;

import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import scala.collection.Iterator;
import scala.collection.immutable.Map;

/**
 * How many rows a running query reads of a Kafka topic in its next batch.
 *
 * <p>Spark takes that from an option when a query starts, and asks the source with it before each batch; the limits that it
 * asks with may be replaced between two batches.
 */
public final class ReadLimits {
  private ReadLimits() {}

  /** To be called while a batch of the query runs: its thread then plans the next one with this limit. */
  public static void set(StreamingQueryWrapper query, String topic, long rows) {
    StreamExecution stream = query.streamingQuery();
    Map<SparkDataStream, ReadLimit> limits = stream.uniqueSources();
    Iterator<SparkDataStream> sources = limits.keysIterator();
    while (sources.hasNext()) {
      SparkDataStream source = sources.next();
      if (source.toString().equals("KafkaV2[Subscribe[" + topic + "]]")) {
        limits = limits.updated(source, ReadLimit.maxRows(rows));
      }
    }
    stream.uniqueSources_$eq(limits);
  }
}
