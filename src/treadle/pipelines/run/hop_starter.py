"""Starts the hops of a run as Spark queries, notes when a query ends, and restarts failed hops."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any

from treadle.decide.batch import BatchSizer
from treadle.enforce.gate.pools import PoolKnob
from treadle.pipelines.channels.channel import Channel
from treadle.pipelines.channels.checkpoint import last_committed, last_planned, remove_torn
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.gating.foreach_batch_gate import ForeachBatchGate
from treadle.pipelines.gating.parked_hops import ParkedHops
from treadle.pipelines.hops import build
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.latency import Latency
from treadle.pipelines.hops.options import BATCH
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.realtime import stages
from treadle.pipelines.run.parts import Parts
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.output_rows import OutputRows
from treadle.pipelines.spark.queries import error_summary, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HopStarter:
    """Starts the hops of one run in one Spark session. `promises` adds expressions that drop rows to their plans."""

    def __init__(self, parts: Parts, spark: SparkSession, promises: Promises | None) -> None:
        self.pools = PoolKnob()
        self._parts = parts
        self._spark = spark
        self._promises = promises
        self._jvm = jvm.load(spark)
        self._output_rows = OutputRows(spark)
        options = parts.options
        sizer, admit = BatchSizer(period=BATCH), self._jvm.treadle.Turn.admit
        sizer.set_size(options.batch)
        gated = options.enforce == "gate"
        self.parked_hops = ParkedHops(parts.gate, parts.stopping, admit, sizer, self._pool, parts.lock, sized=gated)
        limit = self._jvm.treadle.ReadLimits.set
        self._outside = ForeachBatchGate(self.parked_hops, lambda: promises is not None and promises.sheds, limit)
        self._listener = jvm.Listener(self.parked_hops.parked, self._ended)
        self._watch: Any = None
        self._by_run: dict[str, Hop] = {}
        self._starting = RLock()
        """Held while a query is started or ended by us."""

    def start(self) -> None:
        """Start all hops, each after the hops that it reads."""
        parts = self._parts
        self._watch = self._jvm.treadle.Watch(self._listener)
        self._spark._jsparkSession.streams().addListener(self._watch)
        for node in parts.nodes.values():
            if node.kind in (Kind.FEED, Kind.TOPIC):
                parts.channel_set.outside(node)
        instances = {instance.operators[-1]: instance.id for instance in parts.topology.instances}
        ours = [node for node in parts.nodes.values() if node.name in instances]
        if parts.realtime is not None:
            stages.check_slots([self._plan(node, self._key(node)) for node in ours], self._spark)
            parts.folder.claim()
        for node in ours:
            self.begin(node, instances[node.name])
        for channel in parts.channel_set.sources.values():
            channel.forget_others()

    def restart(self, hop: Hop) -> None:
        """Restart a failed hop; if that fails too, retry later, or end the run after too many failures."""
        parts = self._parts
        try:
            self.begin(parts.nodes[hop.name], hop.id)
        except Exception as error:
            with parts.lock:
                hop.leaving = False
                hop.error = error_summary(str(error))
                self._try_again(hop)

    def stop(self, hop: Hop) -> None:
        """Stop the query of a hop; its thread no longer waits for grants of the gate."""
        self._jvm.treadle.Turn.close(hop.key)
        if hop.query is not None:
            hop.query.stop()

    def at_rest(self, hop: Hop) -> bool:
        """Whether the query of a hop that is `leaving` runs no batch, and the batches that it has run are committed."""
        if hop.query is None or hop.state is State.RUNNING or not hop.query.isActive:
            return hop.state is not State.RUNNING
        if hop.gated_by_turn:
            return hop.parked
        checkpoint = self._parts.folder.checkpoint(hop.name)
        return hop.planned is not None or last_committed(checkpoint) >= last_planned(checkpoint)

    def end(self, hop: Hop) -> None:
        """Stop the query of a hop for good; this is no failure."""
        gate = self._parts.gate
        with self._starting:
            if hop.query is not None:
                self._by_run.pop(str(hop.query.runId), None)
            rank = gate.ranks.get(hop.id, math.nan)
            gate.withdraw(hop.id)  # Spark can't stop a batch that waits for its slot
            self.stop(hop)
            with self._parts.lock:
                hop.parked = hop.has_slot = False
                hop.state = State.STOPPED
            gate.register(hop.id)
            gate.set_rank(hop.id, rank)  # in case it starts again: the policy writes only ranks that change

    def forget(self, hop: Hop) -> None:
        """Forget a hop that has ended."""
        self.parked_hops.forget(hop)
        self.pools.withdraw(hop.id)
        self._parts.hops.pop(hop.name, None)

    def close(self) -> None:
        """Remove our listener from Spark."""
        if self._watch is not None:
            self._spark._jsparkSession.streams().removeListener(self._watch)

    # ------------------------------------------------------------ inside

    def _key(self, node: Node) -> str:
        return f"{self._parts.definition.name}/{node.name}"

    def _pool(self, hop: Hop) -> str:
        return self.pools.pool(hop.id) if self._parts.options.enforce == "pools" else ""

    def _plan(self, node: Node, key: str) -> build.Plan:
        parts, promises = self._parts, self._promises
        channels = parts.channel_set.sources
        shed = build.everything if promises is None else promises.shed
        if parts.options.layout == "hops":
            made = build.hop(node, self._spark, channels, key, shed)
        else:
            make = build.fused if parts.realtime is None else stages.plan
            made = make(node, parts.nodes, self._spark, channels, key, shed)
        return made if promises is None else replace(made, rows=promises.watch(made.rows, node.name))

    def begin(self, node: Node, identity: str) -> None:
        """Start the query of a node, for the first time or again."""
        with self._starting:
            self._begin(node, identity)

    def _begin(self, node: Node, identity: str) -> None:
        parts = self._parts
        key = self._key(node)
        hop = parts.hops.get(node.name)
        if hop is not None:
            hop.query = None
        if hop is None or hop.left:  # before the plan is made: where a reader begins is part of it
            for name in self._channels_of(node):
                parts.channel_set.sources[name].register(node.name)
        plan = self._plan(node, key)
        if hop is None:
            hop = self._new_hop(node, identity, key, plan)
        parts.gate.register(identity)
        self.pools.register(identity)
        parts.hops[node.name] = self.parked_hops.hops[key] = hop  # another thread may read the status from now on
        hop.stateful = plan.stateful
        if hop.gated_by_turn:
            self._jvm.treadle.Turn.open(key, self._listener)
        hop.well = time.monotonic()
        hop.state = State.STARTING
        hop.leaving = hop.left = False
        checkpoint = parts.folder.checkpoint(node.name)
        remove_torn(checkpoint)
        if parts.realtime is not None:
            hop.query = stages.started(plan, key, checkpoint, parts.options.batch)
        else:
            hop.query = started(self._writer(node, hop, plan), node, key, checkpoint)
        run_id = str(hop.query.runId)
        self._by_run[run_id] = hop
        if not hop.query.isActive:  # it may have ended before `_by_run` had it
            self._ended(run_id, str(hop.query.exception()))

    def _channels_of(self, node: Node) -> list[str]:
        """The channels that the hop of a node reads."""
        parts = self._parts
        if parts.options.layout == "hops":
            return list(node.inputs)
        return [name for name in graph.needed_by([node.name], parts.nodes) if not parts.nodes[name].kind.runs]

    def _new_hop(self, node: Node, identity: str, key: str, plan: build.Plan) -> Hop:
        parts = self._parts
        output: Channel | None = None
        if not node.kind.ends:
            output = parts.channel_set.between(node.name, plan.rows.schema)
        brokers = [channel.cluster for channel in (*plan.inputs, *((output,) if output else ()))]
        brokers.append(parts.channel_set.brokers_of(node))
        latency = Latency() if node.kind.ends else None
        hop = Hop(identity, node.name, key, plan.inputs, output, plan.stateful, plan.foreign, latency)
        hop.clusters = frozenset(cluster for cluster in brokers if cluster is not None)
        hop.follow(parts.topology)
        hop.output_rows = self._output_rows
        return hop

    def _writer(self, node: Node, hop: Hop, plan: build.Plan) -> Any:
        if hop.gated_by_turn:
            if isinstance(hop.output, Embedded):
                return hop.output.writer(plan.rows, hop.key)
            return build.writer(plan)
        return plan.rows.writeStream.foreachBatch(self._outside.batches(hop, node))

    def _ended(self, run_id: str, error: str | None) -> None:
        parts = self._parts
        hop = self._by_run.pop(run_id, None)
        if hop is None or parts.stopping.is_set():
            return
        with parts.lock:
            hop.parked = hop.has_slot = False
            hop.error = error_summary(error or "its query was stopped from outside")
            self._try_again(hop)
        parts.gate.release(hop.id)  # last: a grant from now on must find the hop not parked

    def _try_again(self, hop: Hop) -> None:
        """Let a failed hop start again later or, after too many failures, end the run if that is wanted."""
        wish = self._parts.on_failure(hop.name)
        if not hop.try_again(math.inf if wish == "retry" else self._parts.options.retries) and wish == "stop":
            self._parts.over.set()
