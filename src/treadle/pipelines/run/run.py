"""Runs a pipeline: starts its hops, lets the gate say which may run, keeps them going, and stops them cleanly.

The control loop ranks hops and the gate grants. How a hop that asks is let go on, `turns` knows; how others are held
back, `outside`. What a policy thinks is the loop's business, how Spark is reached `jvm`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.decide.batch import BatchSizer
from treadle.decide.policy import Policy
from treadle.durations import Duration, seconds
from treadle.enforce import Knob
from treadle.enforce.gate.gate import Gate, GateKnob
from treadle.enforce.gate.pools import PoolKnob
from treadle.enforce.gate.slots import starting_slots
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop
from treadle.loop.trouble import Attempts
from treadle.pipelines.channels.channel import Channel, Source
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.gating.foreach_batch_gate import Outside
from treadle.pipelines.gating.parked_hops import Turns
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops import build
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.hop_engine import ALL_METRICS, HopEngine
from treadle.pipelines.hops.latency import Latency
from treadle.pipelines.hops.options import LEAST_PERIOD, Options, policy_of
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.quality import promises
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.realtime import stages
from treadle.pipelines.run import commands, control_socket, status
from treadle.pipelines.run.channel_set import Joints
from treadle.pipelines.run.feed import Feed
from treadle.pipelines.run.folder import Work
from treadle.pipelines.run.tending import TICK, Tending
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.ending import Stops
from treadle.pipelines.spark.output_rows import OutputRows
from treadle.pipelines.spark.queries import started, told
from treadle.pipelines.spark.session import folder_of, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from treadle.pipelines.api.pipeline import Pipeline

log = logging.getLogger("treadle.pipelines")

LONGEST_PAUSE = 10.0
"""Seconds after which a part of the control thread's work that fails is tried again, at most."""
STOPPING = 5.0
"""Seconds of the time for stopping that Spark has to stop queries, at most half of it."""


def run(
    pipeline: Pipeline, spark: SparkSession | None = None, *, seconds: Duration | None = None, **options: Any
) -> Run:
    """Run until it fails or is interrupted, or for some time; then stop it cleanly."""
    with start(pipeline, spark, **options) as running:
        running.wait(seconds)
    return running


def start(
    pipeline: Pipeline,
    spark: SparkSession | None = None,
    *,
    folder: str | Path | None = None,
    period: Duration = 0.1,
    batch: Duration | None = None,
    cycle: Duration = 2.0,
    keeper: Callable[[Run], Promises | None] = promises.of,
    **options: Any,
) -> Run:
    """Start a pipeline and come back at once.

    `policy` is any of `treadle policies` or a Policy object, `layout` "hops", "fused" or "realtime", `slots` how many
    hops run at once or "auto", `enforce` "gate", "pools" (Spark's FAIR pools) or "none" (Spark alone), `period` how
    often the policy decides, `batch` how long a batch should last, `limit_rows` what a channel may hold, `channels`
    "embedded" or "kafka", with brokers at `kafka`. Where sinks have a `min_accuracy`, every `cycle` it is decided how
    much is shed, unless `shed` is off; `keeper` makes what decides that. Started again with the same `folder`, a
    pipeline goes on where it was.
    """
    known = {field.name for field in fields(Options)}
    for name in options.keys() - known:
        raise ConfigError(f"'{name}' is no option", where="run", remedy=f"use one of {', '.join(sorted(known))}")
    options["period"] = seconds(period, what="period", where="run", least=LEAST_PERIOD)
    options["cycle"] = seconds(cycle, what="cycle", where="run", least=LEAST_PERIOD)
    if batch is not None:
        options["batch"] = seconds(batch, what="batch", where="run")
    chosen = Options(**options)
    return Run(pipeline, spark, Path(folder) if folder is not None else folder_of(pipeline.name), chosen, keeper)


class Run:
    """A running pipeline. As a context manager it stops at the end."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession | None,
        folder: Path,
        options: Options,
        keeper: Callable[[Run], Promises | None] = promises.of,
    ) -> None:
        self.pipeline = pipeline
        self.options = options
        self._topology = pipeline.topology(options.layout)
        self.realtime = stages.batches(pipeline.nodes, options)
        policy = policy_of(options.policy)
        gated = options.enforce == "gate"
        slots = starting_slots(options.slots) if gated else max(1, len(self._topology))
        self.gate = Gate(slots, patience=options.patience, express=options.express if gated else 0)
        self.work = Work(folder, pipeline.name, pipeline.fingerprint(), options.layout, options.channels)
        where = f"pipeline '{pipeline.name}'"
        if self.realtime is not None:
            self.steering: Steering = stages.Unsteered(self.gate, where)
        else:
            elastic = gated and options.slots == "auto"
            self.steering = Steering(self.gate, options.policy, elastic=elastic, where=where)
        self._joints = Joints(pipeline.name, options, self.work)
        self.hops: dict[str, Hop] = {}
        self._feeds: list[Feed] = []
        self.nodes = {node.name: self._joints.with_brokers(node) for node in pipeline.nodes}
        self._attempt = Attempts(TICK, LONGEST_PAUSE, log)
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._watch: Any = None
        self._server: control_socket.Server | None = None
        self.promises: Promises | None = None
        try:
            self._joints.check(pipeline.nodes)
            master = None if self.realtime is None else stages.master(self.nodes)
            self.spark = spark or session(pipeline.name, master=master, fair=options.enforce == "pools")
            self._joints.prepare(self.spark)
            self._jvm = jvm.load(self.spark)
            self._output_rows = OutputRows(self.spark)
            self.pools = PoolKnob()
            self.promises = keeper(self)
            sizer, admit = BatchSizer(period=options.batch), self._jvm.treadle.Turn.admit
            self._turns = Turns(self.gate, self._stopping, admit, sizer, self._pool, self._lock, sized=gated)
            limit = self._jvm.treadle.ReadLimits.set
            self._outside = Outside(self._turns, lambda: self.promises is not None and self.promises.sheds, limit)
            self._listener = jvm.Listener(self._turns.parked, self._ended)
            self._by_run: dict[str, Hop] = {}
            # Before any hop: one that runs under the same name here would be disturbed by it.
            self._server = control_socket.serve(pipeline.name, commands.of(self))
            if self.realtime is None:
                self.work.claim()
            self._start_hops()
            loop = self._make_loop(policy)
            self.steering.begin(loop)
            work = Tending(self, self._turns, self._attempt, self._restart).work
            self._thread = threading.Thread(
                target=work, args=(loop, self._stopping), name="treadle-control", daemon=True
            )
            self._thread.start()
        except BaseException:
            self._stopping.set()
            with suppress(Exception):  # what went wrong first is to be raised
                self._end(time.monotonic() + STOPPING, Stops())
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What users ask for

    @property
    def channels(self) -> dict[str, Source]:
        """All channels by the node that fills them."""
        return self._joints.sources

    @property
    def policy(self) -> str:
        """The policy in charge."""
        return self.steering.policy

    def set_policy(self, spec: str | Policy) -> None:
        """From the next round on another policy decides. One that is unknown or can't be served changes nothing."""
        self.steering.set_policy(spec)

    def set_slots(self, count: int) -> None:
        """How many hops may run at once from now on; that is then no more chosen automatically."""
        self.steering.set_slots(count)

    def status(self) -> dict[str, Any]:
        """How everything is at this moment, as JSON can carry it."""
        return status.of(self)

    def feed(self, name: str) -> Feed:
        """What fills a feed of this pipeline from this process, until it is closed or the run ends."""
        node = self.pipeline.node(name)
        if node.kind is not Kind.FEED:
            raise ConfigError("is no feed", where=node.where, remedy="define it with p.feed")
        self._feeds.append(Feed(self.channels[name], self._turns.consider_all))
        return self._feeds[-1]

    def wait(self, seconds_: Duration | None = None) -> None:
        """Until a hop fails for good, which is raised, somebody asks for an end (`treadle ctl stop`), or for a time."""
        limit = None if seconds_ is None else seconds(seconds_, what="seconds", where="run")
        self._over.wait(limit)
        self.check()

    def check(self) -> None:
        """Raise what a hop failed with."""
        for hop in self.hops.values():
            if hop.state is State.FAILED:
                raise EngineError(hop.error, where=self.nodes[hop.name].where, remedy="mend it and start again")

    def drained(self) -> bool:
        """Whether nothing waits in any channel and no hop runs."""
        for channel in self.channels.values():
            channel.refresh()
        with self._lock:
            for channel in self.channels.values():
                if channel.asks:  # what a batch has read and written counts at once
                    channel.refresh()
            busy = any(hop.state in (State.RUNNING, State.RESTARTING) for hop in self.hops.values())
            blind = any(not cluster.reachable for cluster in self._joints.clusters.values())
            return not busy and not blind and not any(channel.rows for channel in self.channels.values())

    def drain(self, timeout: Duration) -> bool:
        """Wait until what is there is worked off; false if it is not by then, or a hop has failed."""
        return self._until(self.drained, time.monotonic() + seconds(timeout, what="timeout", where="drain"))

    def end(self) -> None:
        """Let whoever waits for it go on, and stop it."""
        self._over.set()

    def stop(self, *, drain: bool = False, timeout: Duration = 30.0) -> None:
        """Stop all hops: after what waits is worked off, or after the batches that run now. A restart goes on there.

        It takes no longer than `timeout`. A batch that can't be interrupted by then is named in the log and goes on
        until it ends by itself; the folder is locked until then.
        """
        length = seconds(timeout, what="timeout", where="stop")
        limit = time.monotonic() + length
        if drain:
            self._attempt("draining", lambda: self._until(self.drained, limit))
        if self._stopping.is_set():
            return
        self._stopping.set()
        batches = limit - min(STOPPING, length / 2)  # Spark needs some time to stop queries
        self._thread.join(max(0.0, batches - time.monotonic()))
        self._turns.halt()
        while self.gate.stats.holding and time.monotonic() < batches:  # whatever the reason to stop is
            time.sleep(TICK)
        stops = Stops()
        if self.realtime is not None:
            self.realtime.stop(self.hops.values(), batches, stops)
        self._end(limit, stops)

    def _end(self, limit: float, stops: Stops) -> None:
        """Stop what was started, and let go of the folder when all of it has ended."""
        if self._server is not None:
            self._server.close()
        if self.promises is not None:
            self.promises.close()
        for hop in self.hops.values():
            stops.begin(hop.name, partial(self._stop_hop, hop))
        late = stops.wait(limit)
        for name, hop in self.hops.items():
            if name in late:
                hop.error = "did not stop in time: its batch goes on until it ends by itself"
                log.warning("hop '%s' %s", name, hop.error, extra={"hop": name})
            elif hop.state is not State.FAILED:
                hop.state = State.STOPPED
        try:
            if self._watch is not None:
                self.spark._jsparkSession.streams().removeListener(self._watch)
        finally:
            for feed in self._feeds:
                feed.close()
            self.steering.close()
            if late:
                threading.Thread(target=self._release, args=(stops,), name="treadle-release", daemon=True).start()
            else:
                self._release(stops)
        stops.check()

    def _stop_hop(self, hop: Hop) -> None:
        self._jvm.treadle.Turn.close(hop.key)
        if hop.query is not None:
            hop.query.stop()

    def _release(self, stops: Stops) -> None:
        stops.wait()
        self._joints.close()
        self.work.close()

    def _start_hops(self) -> None:
        self._watch = self._jvm.treadle.Watch(self._listener)
        self.spark._jsparkSession.streams().addListener(self._watch)
        for node in self.nodes.values():
            if node.kind in (Kind.FEED, Kind.TOPIC):
                self._joints.outside(node)
        instances = {instance.operators[-1]: instance.id for instance in self._topology.instances}
        ours = [node for node in self.nodes.values() if node.name in instances]
        if self.realtime is not None:
            stages.check_slots([self._plan(node, self._key(node)) for node in ours], self.spark)
            self.work.claim()
        for node in ours:
            self._start(node, instances[node.name])
        for channel in self.channels.values():
            channel.forget_others()

    def _key(self, node: Node) -> str:
        return f"{self.pipeline.name}/{node.name}"

    def _plan(self, node: Node, key: str) -> build.Plan:
        shed = build.everything if self.promises is None else self.promises.shed
        if self.options.layout == "hops":
            made = build.hop(node, self.spark, self.channels, key, shed)
        else:
            make = build.fused if self.realtime is None else stages.plan
            made = make(node, self.nodes, self.spark, self.channels, key, shed)
        return made if self.promises is None else replace(made, rows=self.promises.watch(made.rows, node.name))

    def _start(self, node: Node, identity: str) -> None:
        key = self._key(node)
        hop = self.hops.get(node.name)
        if hop is not None:
            hop.query = None
        plan = self._plan(node, key)
        if hop is None:
            hop = self._new_hop(node, identity, key, plan)
        if hop.gated_by_turn:
            self._jvm.treadle.Turn.open(key, self._listener)
        hop.well = time.monotonic()
        hop.state = State.STARTING
        if self.realtime is not None:
            hop.query = stages.started(plan, key, self.work.checkpoint(node.name), self.options.batch)
        else:
            hop.query = started(self._writer(node, hop, plan), node, key, self.work.checkpoint(node.name))
        run_id = str(hop.query.runId)
        self._by_run[run_id] = hop
        if not hop.query.isActive:  # it may have ended before its end could be noted
            self._ended(run_id, str(hop.query.exception()))

    def _new_hop(self, node: Node, identity: str, key: str, plan: build.Plan) -> Hop:
        output: Channel | None = None
        if not node.kind.ends:
            output = self._joints.between(node.name, plan.rows.schema)
        brokers = [channel.cluster for channel in (*plan.inputs, *((output,) if output else ()))]
        brokers.append(self._joints.brokers_of(node))
        latency = Latency() if node.kind.ends else None
        hop = Hop(identity, node.name, key, plan.inputs, output, plan.stateful, plan.foreign, latency)
        hop.clusters = frozenset(cluster for cluster in brokers if cluster is not None)
        row, priority = self._topology.row_of[identity], self._topology.priority
        hop.urgent, hop.latency_goal = bool(priority[row] > priority.min()), float(self._topology.latency_goal[row])
        hop.output_rows = self._output_rows
        self.gate.register(identity)
        self.pools.register(identity)
        for channel in plan.inputs:
            channel.register(node.name)
        self.hops[node.name] = self._turns.hops[key] = hop  # last: somebody may ask for the status already
        return hop

    def _writer(self, node: Node, hop: Hop, plan: build.Plan) -> Any:
        if hop.gated_by_turn:
            if isinstance(hop.output, Embedded):
                return hop.output.writer(plan.rows, hop.key)
            return build.writer(plan)
        return plan.rows.writeStream.foreachBatch(self._outside.batches(hop, node))

    def _ended(self, run_id: str, error: str | None) -> None:
        hop = self._by_run.pop(run_id, None)
        if hop is None or self._stopping.is_set():
            return
        with self._lock:
            hop.parked = hop.has_slot = False
            hop.error = told(error or "its query was stopped by somebody else")
            if not hop.try_again(self.options.retries):
                self._over.set()
        self.gate.release(hop.id)  # only now: from here on a grant that comes finds nobody parked

    def _pool(self, hop: Hop) -> str:
        return self.pools.pool(hop.id) if self.options.enforce == "pools" else ""

    # For the control thread

    def _make_loop(self, policy: Any) -> Loop:
        rows = [self.hops[instance.operators[-1]] for instance in self._topology.instances]
        knobs: dict[str, Knob] = {"rank": GateKnob(self.gate), "rung": self.pools}
        engine = HopEngine(self._topology, rows, knobs, lost=None if self.promises is None else self.promises.lost)
        knob = "rung" if self.options.enforce == "pools" else "rank"
        return Loop([engine], [Binding(policy, knob, period=self.options.period)], metrics=ALL_METRICS)

    def _restart(self, hop: Hop) -> None:
        try:
            self._start(self.nodes[hop.name], hop.id)
        except Exception as error:
            with self._lock:
                hop.error = told(str(error))
                if not hop.try_again(self.options.retries):
                    self._over.set()

    def _until(self, condition: Callable[[], bool], limit: float) -> bool:
        while not condition():
            if time.monotonic() > limit or self._over.is_set():
                return False
            time.sleep(TICK)
        return True
