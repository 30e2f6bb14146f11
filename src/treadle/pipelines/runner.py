"""Runs a pipeline: starts its hops, lets the gate say which may run, keeps them going, and stops them cleanly.

The JVM tells when a hop is parked or has ended; the control loop ranks hops; the gate grants; a grant goes back to the
JVM with the number of rows. What a policy thinks, the loop knows; how Spark is reached, `jvm`.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from treadle.decide import registry
from treadle.decide.batch import BatchSizer
from treadle.durations import Duration, seconds
from treadle.enforce import Knob
from treadle.enforce.elastic import Elastic, starting_slots
from treadle.enforce.gate import Gate, GateKnob
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop
from treadle.observe import METRICS, plannable
from treadle.observe.pressure import Pressure
from treadle.pipelines import build, ctl, jvm, status
from treadle.pipelines.channels.embedded import Embedded, check_limit
from treadle.pipelines.channels.log import Writer
from treadle.pipelines.channels.segment import Rows
from treadle.pipelines.engine import OFFERS, HopEngine
from treadle.pipelines.hop import Hop, State
from treadle.pipelines.latency import Latency
from treadle.pipelines.node import Kind, Node
from treadle.pipelines.pools import PoolKnob
from treadle.pipelines.session import folder_of, session
from treadle.pipelines.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from treadle.pipelines.pipeline import Pipeline

log = logging.getLogger("treadle.pipelines")

ENFORCE = ("gate", "pools", "none")
TICK = 0.02
"""Seconds between looks at what comes from outside: feeds, stateful hops, restarts."""
SLOW_TICK = 1.0
ALL_ROWS = 2**53
"""No limit: as many as there are."""
LONGEST_PAUSE = 30.0
LONGEST_DRAIN = 3600.0


@dataclass(frozen=True)
class Options:
    """How a pipeline is run. `period` and `batch` are in seconds."""

    policy: str = "multi-class"
    layout: str = "hops"
    slots: int | Literal["auto"] = "auto"
    enforce: str = "gate"
    period: float = 0.1
    batch: float = 0.2
    patience: float = 5.0
    express: int = 0
    limit_rows: int = 1_000_000
    retries: int = 3

    def __post_init__(self) -> None:
        if self.enforce not in ENFORCE:
            raise ConfigError(f"enforce can't be {self.enforce!r}", remedy=f"use one of {', '.join(ENFORCE)}")
        if self.slots != "auto" and (isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1):
            raise ConfigError(f"slots can't be {self.slots!r}", remedy="use 'auto' or a whole number from 1 on")
        if self.retries < 0:
            raise ConfigError(f"retries can't be {self.retries}", remedy="use 0 or more")
        check_limit(self.limit_rows)


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
    batch: Duration = 0.2,
    **options: Any,
) -> Run:
    """Start a pipeline and come back at once.

    `policy` is any of `treadle policies`, `layout` "hops" or "fused", `slots` how many hops run at once (or "auto"),
    `enforce` "gate", "pools" (Spark's FAIR pools) or "none" (Spark alone); `period` how often the policy decides and
    `batch` how long a batch should hold its slot; `limit_rows` what a channel may hold. `folder` keeps channels and
    checkpoints: started again with the same one, a pipeline goes on where it was.
    """
    known = {field.name for field in fields(Options)}
    for name in options.keys() - known:
        raise ConfigError(f"'{name}' is no option", where="run", remedy=f"use one of {', '.join(sorted(known))}")
    chosen = Options(
        period=seconds(period, what="period", where="run"), batch=seconds(batch, what="batch", where="run"), **options
    )
    return Run(pipeline, spark, Path(folder) if folder is not None else folder_of(pipeline.name), chosen)


class Run:
    """A running pipeline. As a context manager it stops at the end."""

    def __init__(self, pipeline: Pipeline, spark: SparkSession | None, folder: Path, options: Options) -> None:
        self.pipeline = pipeline
        self.options = options
        self._topology = pipeline.topology(options.layout)
        policy = registry.create(options.policy)
        self.work = Work(folder, pipeline.name, pipeline.fingerprint(), options.layout)
        try:
            self.spark = spark or session(pipeline.name, fair=options.enforce == "pools")
            self._jvm = jvm.load(self.spark)
            self._lock = threading.RLock()
            self._stopping = threading.Event()
            self._over = threading.Event()
            self.channels: dict[str, Embedded] = {}
            self.hops: dict[str, Hop] = {}
            self._nodes = {node.name: node for node in pipeline.nodes}
            gated = options.enforce == "gate"
            slots = starting_slots(options.slots) if gated else max(1, len(self._topology))
            self.gate = Gate(slots, patience=options.patience, express=options.express if gated else 0)
            self.pools = PoolKnob()
            self._sizer = BatchSizer(period=options.batch)
            self._elastic = Elastic(self.gate, Pressure()) if gated and options.slots == "auto" else None
            self._listener = jvm.Listener(self._parked, self._ended)
            self._by_key: dict[str, Hop] = {}
            self._by_run: dict[str, Hop] = {}
            self._start_hops()
            self._loop = self._make_loop(policy)
            self._thread = threading.Thread(target=self._control, name="treadle-control", daemon=True)
            self._thread.start()
            self._server = ctl.Server(ctl.path_for(pipeline.name), self._commands())
        except BaseException:
            self.work.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What users ask for

    @property
    def policy(self) -> str:
        """The policy in charge."""
        return self._policy

    def set_policy(self, spec: str) -> None:
        """From the next round on another policy decides. One that is unknown or can't be served changes nothing."""
        self._loop.rebind(registry.create(spec))
        self._policy = spec
        log.info("policy is now %s", spec, extra={"policy": spec})

    def set_slots(self, count: int) -> None:
        """How many hops may run at once from now on; that is then no more chosen automatically."""
        self.gate.slots = count
        self._elastic = None

    def status(self) -> dict[str, Any]:
        """How everything is at this moment, as JSON can carry it."""
        return status.of(self)

    def feed(self, name: str) -> Feed:
        """What fills a feed of this pipeline from this process."""
        node = self.pipeline.node(name)
        if node.kind is not Kind.FEED:
            raise ConfigError("is no feed", where=node.where, remedy="define it with p.feed")
        return Feed(self, self.channels[name])

    def wait(self, seconds_: Duration | None = None) -> None:
        """Until a hop fails for good, which is raised, somebody asks for an end (`treadle ctl stop`), or for a time."""
        limit = None if seconds_ is None else seconds(seconds_, what="seconds", where="run")
        self._over.wait(limit)
        self.check()

    def check(self) -> None:
        """Raise what a hop failed with."""
        for hop in self.hops.values():
            if hop.state is State.FAILED:
                raise EngineError(hop.error, where=self._nodes[hop.name].where, remedy="mend it and start again")

    def drained(self) -> bool:
        """Whether nothing waits in any channel and no hop runs."""
        with self._lock:
            for channel in self.channels.values():
                channel.refresh()
            busy = any(hop.state is State.RUNNING for hop in self.hops.values())
            return not busy and not any(channel.rows for channel in self.channels.values())

    def stop(self, *, drain: bool = False, timeout: Duration = 30.0) -> None:
        """Stop all hops: after what waits is worked off, or after the batches that run now. A restart goes on there."""
        limit = time.monotonic() + seconds(timeout, what="timeout", where="stop")
        if drain:
            self._until(self.drained, limit)
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._server.close()
        self._thread.join()
        self._until(lambda: not self.gate.stats.holding, limit)
        for hop in self.hops.values():
            self._jvm.treadle.Turn.close(hop.key)
            if hop.query is not None:
                hop.query.stop()
            if hop.state is not State.FAILED:
                hop.state = State.STOPPED
        self.spark._jsparkSession.streams().removeListener(self._watch)
        self.work.close()

    def _commands(self) -> dict[str, Callable[..., object]]:
        """What can be asked over the control socket."""

        def policy(name: str | None = None) -> str:
            if name is not None:
                self.set_policy(name)
            return self.policy

        def slots(count: int | None = None) -> int:
            if count is not None:
                self.set_slots(count)
            return self.gate.slots

        def stop(drain: bool = False) -> bool:
            if drain:
                self._until(self.drained, time.monotonic() + LONGEST_DRAIN)
            self._over.set()
            return True

        return {"policy": policy, "slots": slots, "status": self.status, "stop": stop}

    # Hops

    def _start_hops(self) -> None:
        self._watch = self._jvm.treadle.Watch(self._listener)
        self.spark._jsparkSession.streams().addListener(self._watch)
        for node in self._nodes.values():
            if node.kind is Kind.FEED:
                self._channel(node.name, node.schema)
        instances = {instance.operators[-1]: instance.id for instance in self._topology.instances}
        for node in self._nodes.values():
            if node.name in instances:
                self._start(node, instances[node.name])
        for channel in self.channels.values():
            channel.forget_others()

    def _channel(self, name: str, schema: Any) -> Embedded:
        channel = Embedded(self.work.channel(name), schema, limit_rows=self.options.limit_rows)
        self.channels[name] = channel
        return channel

    def _start(self, node: Node, identity: str) -> None:
        key = f"{self.pipeline.name}/{node.name}"
        if self.options.layout == "hops":
            plan = build.hop(node, self.spark, self.channels, key)
        else:
            plan = build.fused(node, self._nodes, self.spark, self.channels, key)
        output = self.channels.get(node.name)
        if output is None and not node.kind.ends:
            output = self._channel(node.name, plan.rows.schema)
        hop = self.hops.get(node.name)
        if hop is None:
            hop = Hop(
                identity, node.name, key, plan.inputs, output, plan.stateful, Latency() if node.kind.ends else None
            )
            self.hops[node.name] = self._by_key[key] = hop
            self.gate.register(identity)
            self.pools.register(identity)
            for channel in plan.inputs:
                channel.register(node.name)
        if hop.gated_by_turn:
            self._jvm.treadle.Turn.open(key, self._listener)
        hop.query = _started(self._writer(node, hop, plan), node, self.work.checkpoint(node.name))
        self._by_run[str(hop.query.runId)] = hop
        hop.state = State.STARTING

    def _writer(self, node: Node, hop: Hop, plan: build.Plan) -> Any:
        if hop.gated_by_turn:
            if hop.output is not None:
                return hop.output.writer(plan.rows, hop.key)
            if node.kind is Kind.WRITER:
                return plan.rows.writeStream.format(str(node.format)).options(**node.options)
            return plan.rows.writeStream.foreachBatch(build.sink(node))
        return plan.rows.writeStream.foreachBatch(self._gated(hop, node))

    def _gated(self, hop: Hop, node: Node) -> Callable[[DataFrame, int], None]:
        """For rows that come from elsewhere: Spark has read the offsets already, so the gate is around the work."""
        work = None if hop.output is not None else build.sink(node)
        began = time.time()

        def batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal began
            before, began = began, time.time()
            with self.gate.turn(hop.id):
                hop.state = State.RUNNING
                start = time.monotonic()
                if work is not None:
                    work(rows, batch_id)
                elif hop.output is not None:
                    ages = {"oldest": str(int(before * 1e6)), "mean": str(int((before + began) / 2 * 1e6))}
                    born = ages if node.arrival is None else {"born": node.arrival}
                    count = hop.output.append(rows, batch_id, born)
                    hop.tuples_out += count
                    hop.tuples_in += count
                hop.busy += time.monotonic() - start
                hop.batches += 1
                hop.failures = 0
                hop.state = State.IDLE
            self._consider_all()

        return batch

    # What the JVM tells

    def _parked(self, key: str, report: dict[str, Any]) -> None:
        hop = self._by_key[key]
        with self._lock:
            rows = hop.done(report)
            hop.parked = True
            hop.state = State.IDLE
            if rows:
                self._sizer.observe(hop.id, rows, report["seconds"])
            if hop.output is not None and report["written"]:
                hop.output.refresh()
        if rows:
            self._consider_all(but=hop)  # the gate is to choose among all that could run now
        again = self._ready(hop)
        if self.gate.release(hop.id, again=again) is None and again is not None:
            self.gate.offer(hop.id, again)

    def _ended(self, run_id: str, error: str | None) -> None:
        hop = self._by_run.pop(run_id, None)
        if hop is None or self._stopping.is_set():
            return
        self.gate.release(hop.id)
        with self._lock:
            hop.parked = False
            hop.error = _told(error or "its query was stopped by somebody else")
            hop.failures += 1
            if hop.failures > self.options.retries:
                hop.state = State.FAILED
                self._over.set()
                log.error("hop '%s' failed: %s", hop.name, hop.error, extra={"hop": hop.name})
            else:
                hop.state = State.RESTARTING
                hop.retry_at = time.monotonic() + min(0.5 * 2.0**hop.failures, LONGEST_PAUSE)
                log.warning("hop '%s' starts again soon: %s", hop.name, hop.error, extra={"hop": hop.name})

    # The gate

    def _consider_all(self, but: Hop | None = None) -> None:
        for hop in self.hops.values():
            if hop is not but and hop.parked:
                grant = self._ready(hop)
                if grant is not None:
                    self.gate.offer(hop.id, grant)

    def _ready(self, hop: Hop) -> Callable[[], None] | None:
        """What lets the hop run, if it is parked, has something to read and room for what it writes."""
        if self._stopping.is_set() or not hop.parked:
            return None
        if hop.blocked:
            hop.state = State.BLOCKED
            return None
        if not any(backlog.rows for backlog in hop.backlogs()):
            return None
        hop.state = State.WAITING
        return lambda: self._grant(hop)

    def _grant(self, hop: Hop) -> None:
        """Let it run: so many rows of each input, in proportion to what waits there."""
        backlogs = hop.backlogs()
        waiting = sum(backlog.rows for backlog in backlogs)
        most = self._sizer.rows(hop.id) if self.options.enforce == "gate" else ALL_ROWS
        share = min(1.0, most / waiting) if waiting else 0.0
        rows = ",".join(
            f"{channel.name}={max(1, round(backlog.rows * share)) if most < waiting else ALL_ROWS}"
            for channel, backlog in zip(hop.inputs, backlogs, strict=True)
            if backlog.rows
        )
        self._admit(hop, rows)

    def _admit(self, hop: Hop, rows: str) -> None:
        with self._lock:
            hop.parked = False
            hop.state = State.RUNNING
        pool = self.pools.pool(hop.id) if self.options.enforce == "pools" else ""
        if not self._jvm.treadle.Turn.admit(hop.key, rows, pool):
            raise EngineError("is not parked in the JVM", where=f"hop '{hop.name}'", remedy="it has just ended")

    # The control thread

    def _make_loop(self, policy: Any) -> Loop:
        rows = [self.hops[instance.operators[-1]] for instance in self._topology.instances]
        knobs: dict[str, Knob] = {"rank": GateKnob(self.gate), "rung": self.pools}
        self._policy = self.options.policy
        engine = HopEngine(self._topology, rows, knobs)
        knob = "rung" if self.options.enforce == "pools" else "rank"
        return Loop([engine], [Binding(policy, knob, period=self.options.period)], metrics=_ALL_METRICS)

    def _control(self) -> None:
        slow = time.monotonic()
        with self._loop:
            while not self._stopping.wait(TICK):
                try:
                    now = time.monotonic()
                    self._look_outside()
                    if self.options.enforce != "none":
                        self._loop.round()
                    if now >= slow:
                        slow = now + SLOW_TICK
                        self._tend(now)
                except Exception:
                    log.exception("the control thread goes on after an error")

    def _look_outside(self) -> None:
        changed = False
        for name, channel in self.channels.items():
            if self._nodes[name].kind is Kind.FEED:
                changed |= channel.refresh()
        if changed:
            self._consider_all()

    def _tend(self, now: float) -> None:
        if self._elastic is not None:
            self._elastic.step()
        for channel in self.channels.values():
            channel.refresh()
            channel.collect()
        self._consider_all()
        for hop in self.hops.values():
            if hop.state is State.RESTARTING and now >= hop.retry_at:
                self._restart(hop)
            elif hop.stateful and hop.parked and hop.state is State.IDLE:
                self.gate.offer(hop.id, lambda hop=hop: self._admit(hop, ""))  # type: ignore[misc]

    def _restart(self, hop: Hop) -> None:
        try:
            self._start(self._nodes[hop.name], hop.id)
        except Exception as error:
            hop.error = _told(str(error))
            hop.failures += 1
            if hop.failures > self.options.retries:
                hop.state = State.FAILED
                self._over.set()
            hop.retry_at = time.monotonic() + min(0.5 * 2.0**hop.failures, LONGEST_PAUSE)

    def _until(self, condition: Callable[[], bool], limit: float) -> bool:
        while not condition():
            if time.monotonic() > limit or self._over.is_set():
                return False
            time.sleep(TICK)
        return True


_ALL_METRICS = frozenset(name for name in METRICS if plannable(name, OFFERS))
"""All that any policy could want of hops, so that one that comes later finds what it needs."""


class Feed:
    """Fills a feed from this process; its consumers hear of it at once."""

    def __init__(self, run: Run, channel: Embedded) -> None:
        self._run = run
        self._channel = channel
        self._writer = Writer(channel.folder, channel.schema, limit_rows=channel.limit_rows)

    def append(
        self, rows: Rows, *, born: str | tuple[float, float] | None = None, timeout: float | None = None
    ) -> None:
        """Add rows: a pandas or Arrow table or a list of dicts. Waits while the feed is full, at most `timeout`."""
        self._writer.append(rows, born=born, timeout=timeout)
        if self._channel.refresh():
            self._run._consider_all()

    def close(self) -> None:
        self._writer.close()


def _started(writer: Any, node: Node, checkpoint: Path) -> StreamingQuery:
    """Start it in the mode that its plan allows: rows that are final, or, where no row ever is, rows as they change."""
    from pyspark.errors import AnalysisException

    writer = writer.queryName(node.name).option("checkpointLocation", str(checkpoint))
    refused: AnalysisException | None = None
    for mode in ("append", "update"):
        try:
            query: StreamingQuery = writer.outputMode(mode).start()
            return query
        except AnalysisException as error:
            refused = refused or error
            if "output mode" not in str(error).lower():
                break
    raise EngineError(
        f"Spark refuses it: {_told(str(refused))}",
        where=node.where,
        remedy="see its code and the columns of its inputs",
    ) from refused


def _told(error: str) -> str:
    """The line of a Spark error that says what happened: of a Python function that raised, its own last line."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line) and "py4j" not in line.lower()]
    return (raised[-1] if "Traceback" in error and raised else lines[0] if lines else "no reason was given")[:500]
