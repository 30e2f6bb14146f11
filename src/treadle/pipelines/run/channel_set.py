"""Opens the channels of a run, and decides from the options the kind, the folder and the brokers of each channel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels import encoded
from treadle.pipelines.channels.channel import Channel, Source
from treadle.pipelines.channels.checkpoint import last_planned
from treadle.pipelines.channels.cluster import Cluster
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.channels.kafka import KafkaChannel
from treadle.pipelines.channels.readers import ROWS_PER_BATCH
from treadle.pipelines.channels.topic import FIRST_ROWS, Topic
from treadle.pipelines.hops.options import Options
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.run.folder import RunFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROKERS = "kafka.bootstrap.servers"


class ChannelSet:
    """All channels of a run, by the name of the node that fills each."""

    def __init__(self, pipeline: str, options: Options, work: RunFolder) -> None:
        self.sources: dict[str, Source] = {}
        """Node name -> the channel that hops read."""
        self.clusters: dict[str, Cluster] = {}
        self._pipeline = pipeline
        self._options = options
        self._work = work

    def check(self, nodes: tuple[Node, ...]) -> None:
        """Connect to the brokers that the run needs, before Spark is started and would have to wait for them."""
        if self._options.channels == "kafka":
            self._cluster(self._options.kafka)
        for node in nodes:
            self.brokers_of(node)

    def prepare(self, spark: SparkSession) -> None:
        """Refuse embedded channels on a cluster; load Spark's Kafka classes if needed."""
        master = str(spark.sparkContext.master)
        folders = self._options.channels == "embedded" and self._options.layout != "realtime"
        if folders and not master.startswith("local"):
            raise ConfigError(
                f"embedded channels are folders of this machine, but the master is {master}",
                where="channels",
                remedy="use channels='kafka' on a cluster, or a local master",
            )
        if self.clusters:
            encoded.load(spark)

    def outside(self, node: Node) -> None:
        """Open a channel that no hop fills: a feed, or a topic that other applications write to."""
        if node.kind is Kind.FEED and self._options.channels == "embedded":
            self.sources[node.name] = self._embedded(node.name, node.schema)
            return
        own = node.kind is Kind.FEED
        cluster = self._cluster(self._options.kafka) if own else self.brokers_of(node)
        assert cluster is not None
        self.sources[node.name] = Topic(
            node.name,
            self._own_topic(node.name) if own else str(node.topic),
            encoded.checked(node.schema, node.name) if own else node.schema,
            cluster=cluster,
            limit_rows=self._options.limit_rows,
            checkpoint=self._work.checkpoint,
            options={name: value for name, value in node.options.items() if name != _BROKERS},
            make=own,
            batch_rows=None if self._options.layout == "realtime" else self._batch_rows,
        )

    def between(self, name: str, schema: Any) -> Channel:
        """Open the channel that a hop fills."""
        if self._options.channels == "embedded":
            made: Channel = self._embedded(name, schema)
        else:
            made = KafkaChannel(
                self._work.channel(name),
                self._own_topic(name),
                schema,
                cluster=self._cluster(self._options.kafka),
                limit_rows=self._options.limit_rows,
                checkpoint=self._work.checkpoint,
                batch_rows=self._batch_rows,
            )
        self._check_order(name, made)
        self.sources[name] = made
        return made

    def remove(self, name: str) -> None:
        """Close a channel that no hop of this run reads any more. Its rows are kept."""
        source = self.sources.pop(name, None)
        if isinstance(source, Embedded):
            source.close()
        elif source is not None and source.cluster is not None:
            source.cluster.unwatch(name)

    def brokers_of(self, node: Node) -> Cluster | None:
        """The brokers of a topic or Kafka writer: its own, else the run's. None for other nodes."""
        if node.kind is Kind.TOPIC or (node.kind is Kind.WRITER and node.format == "kafka"):
            return self._cluster(node.options.get(_BROKERS, self._options.kafka))
        return None

    def with_brokers(self, node: Node) -> Node:
        """Return the node; a Kafka writer that names no brokers gets the run's brokers."""
        if node.kind is Kind.WRITER and node.format == "kafka" and _BROKERS not in node.options:
            return replace(node, options={**node.options, _BROKERS: self._options.kafka})
        return node

    def close(self) -> None:
        for source in self.sources.values():
            if isinstance(source, Embedded):
                source.close()
        for cluster in self.clusters.values():
            cluster.close()

    def _check_order(self, name: str, channel: Channel) -> None:
        """Refuse a channel that is ahead of its hop's checkpoint, which is then lost or too old.

        Spark records each batch in the checkpoint before the batch is written to the channel.
        """
        planned = last_planned(self._work.checkpoint(name))
        if channel.batch > planned:
            raise EngineError(
                f"its channel has batch {channel.batch}, but its checkpoint has {'none' if planned < 0 else planned}",
                where=f"hop '{name}' in {self._work.folder}",
                remedy="put the checkpoint back; to start from nothing, delete the whole folder",
            )

    def _cluster(self, bootstrap: str) -> Cluster:
        if bootstrap not in self.clusters:
            self.clusters[bootstrap] = Cluster(bootstrap)
            self.clusters[bootstrap].start()
        return self.clusters[bootstrap]

    def _embedded(self, name: str, schema: Any) -> Embedded:
        return Embedded(self._work.channel(name), schema, limit_rows=self._options.limit_rows)

    @property
    def _batch_rows(self) -> int:
        return FIRST_ROWS if self._options.enforce == "gate" else ROWS_PER_BATCH

    def _own_topic(self, name: str) -> str:
        return f"{self._pipeline}.{name}"
