"""A running pipeline: what users ask it for, and how it is stopped cleanly.

The control loop ranks hops and the gate grants. How a hop that asks is let go on is the business of
`gating.parked_hops`, how others are held back that of `gating.foreach_batch_gate`. `start` makes a `Run`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.decide.policy import Policy
from treadle.durations import Duration, seconds
from treadle.enforce import Knob
from treadle.enforce.gate.gate import Gate, GateKnob
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.hop_engine import ALL_METRICS, HopEngine
from treadle.pipelines.hops.options import Options, policy_of
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.realtime import stages
from treadle.pipelines.realtime.stages import Batches
from treadle.pipelines.run import control_socket, status
from treadle.pipelines.run.feed import Feed
from treadle.pipelines.run.folder import RunFolder
from treadle.pipelines.run.hop_starter import HopStarter
from treadle.pipelines.run.parts import TICK, Parts, log
from treadle.pipelines.run.tending import Tending
from treadle.pipelines.spark.ending import Stops
from treadle.pipelines.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOPPING = 5.0
"""Seconds of the time for stopping that Spark has to stop queries, at most half of it."""
LONGEST_DRAIN = 3600.0
"""Seconds that `treadle ctl stop --drain` waits at most."""


class Run:
    """A running pipeline. As a context manager it stops at the end."""

    spark: SparkSession
    promises: Promises | None = None
    _starter: HopStarter | None = None
    _server: control_socket.Server | None = None
    _thread: threading.Thread

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._feeds: list[Feed] = []

    def begin(self, spark: SparkSession | None, keeper: Callable[[Run], Promises | None]) -> None:
        """Start everything; `keeper` makes what keeps its promises. Called once, by `start`."""
        parts = self._parts
        options = parts.options
        policy = policy_of(options.policy)
        parts.channel_set.check(parts.definition.nodes)
        master = None if parts.realtime is None else stages.master(parts.nodes)
        self.spark = spark or session(self.name, master=master, fair=options.enforce == "pools")
        parts.channel_set.prepare(self.spark)
        self.promises = keeper(self)
        self._starter = HopStarter(parts, self.spark, self.promises)
        # Before any hop: one that runs under the same name here would be disturbed by it.
        self._server = control_socket.serve(self.name, self._commands())
        if parts.realtime is None:
            parts.folder.claim()
        self._starter.start()
        loop = self._make_loop(policy, self._starter)
        parts.steering.begin(loop)
        work = Tending(parts, self._starter, self.promises).work
        self._thread = threading.Thread(target=work, args=(loop,), name="treadle-control", daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """Stop what has been started of a run that could not be started wholly."""
        self._parts.stopping.set()
        self._end(time.monotonic() + STOPPING, Stops())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What the parts of a run ask for

    @property
    def name(self) -> str:
        """That of the pipeline."""
        return self._parts.definition.name

    @property
    def options(self) -> Options:
        """How it is run."""
        return self._parts.options

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name, each after those that it reads."""
        return self._parts.nodes

    @property
    def hops(self) -> Mapping[str, Hop]:
        """All hops by the name of their last node."""
        return self._parts.hops

    @property
    def gate(self) -> Gate:
        """What lets hops run."""
        return self._parts.gate

    @property
    def realtime(self) -> Batches | None:
        """What notes the batches of queries in Real-Time Mode; None in other layouts."""
        return self._parts.realtime

    @property
    def in_real_time(self) -> bool:
        """Whether queries run in Spark's Real-Time Mode."""
        return self.realtime is not None

    @property
    def folder(self) -> RunFolder:
        """Where its channels and checkpoints are."""
        return self._parts.folder

    @property
    def steering(self) -> Steering:
        """What can be changed while it runs."""
        return self._parts.steering

    # What users ask for

    @property
    def channels(self) -> dict[str, Source]:
        """All channels by the node that fills them."""
        return self._parts.channel_set.sources

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
        return status.of(self._parts, self.promises)

    def feed(self, name: str) -> Feed:
        """What fills a feed of this pipeline from this process, until it is closed or the run ends."""
        node = self._parts.definition.node(name)
        if node.kind is not Kind.FEED:
            raise ConfigError("is no feed", where=node.where, remedy="define it with p.feed")
        self._feeds.append(Feed(self.channels[name], self._started.turns.consider_all))
        return self._feeds[-1]

    def wait(self, seconds_: Duration | None = None) -> None:
        """Until a hop fails for good, which is raised, somebody asks for an end (`treadle ctl stop`), or for a time."""
        limit = None if seconds_ is None else seconds(seconds_, what="seconds", where="run")
        self._parts.over.wait(limit)
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
        with self._parts.lock:
            for channel in self.channels.values():
                if channel.asks:  # what a batch has read and written counts at once
                    channel.refresh()
            busy = any(hop.state in (State.RUNNING, State.RESTARTING) for hop in self.hops.values())
            blind = any(not cluster.reachable for cluster in self._parts.channel_set.clusters.values())
            return not busy and not blind and not any(channel.rows for channel in self.channels.values())

    def drain(self, timeout: Duration) -> bool:
        """Wait until what is there is worked off; false if it is not by then, or a hop has failed."""
        return self._until(self.drained, time.monotonic() + seconds(timeout, what="timeout", where="drain"))

    def end(self) -> None:
        """Let whoever waits for it go on, and stop it."""
        self._parts.over.set()

    def stop(self, *, drain: bool = False, timeout: Duration = 30.0) -> None:
        """Stop all hops: after what waits is worked off, or after the batches that run now. A restart goes on there.

        It takes no longer than `timeout`. A batch that can't be interrupted by then is named in the log and goes on
        until it ends by itself; the folder is locked until then.
        """
        length = seconds(timeout, what="timeout", where="stop")
        limit = time.monotonic() + length
        if drain:
            self._parts.attempt("draining", lambda: self._until(self.drained, limit))
        if self._parts.stopping.is_set():
            return
        self._parts.stopping.set()
        batches = limit - min(STOPPING, length / 2)  # Spark needs some time to stop queries
        self._thread.join(max(0.0, batches - time.monotonic()))
        self._started.turns.halt()
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
        if self._starter is not None:
            for hop in self.hops.values():
                stops.begin(hop.name, partial(self._starter.stop, hop))
        late = stops.wait(limit)
        for name, hop in self.hops.items():
            if name in late:
                hop.error = "did not stop in time: its batch goes on until it ends by itself"
                log.warning("hop '%s' %s", name, hop.error, extra={"hop": name})
            elif hop.state is not State.FAILED:
                hop.state = State.STOPPED
        try:
            if self._starter is not None:
                self._starter.close()
        finally:
            for feed in self._feeds:
                feed.close()
            self.steering.close()
            if late:
                threading.Thread(target=self._release, args=(stops,), name="treadle-release", daemon=True).start()
            else:
                self._release(stops)
        stops.check()

    def _release(self, stops: Stops) -> None:
        stops.wait()
        self._parts.channel_set.close()
        self._parts.folder.close()

    # ------------------------------------------------------------ inside

    @property
    def _started(self) -> HopStarter:
        assert self._starter is not None  # since `start` gives nobody a run that has none
        return self._starter

    def _commands(self) -> dict[str, Callable[..., object]]:
        """What can be asked over the control socket: command -> what answers it, with arguments by name."""

        def stop(drain: bool = False) -> bool:
            if drain:
                self.drain(LONGEST_DRAIN)
            self.end()
            return True

        return {**self.steering.commands(), "status": self.status, "stop": stop}

    def _make_loop(self, policy: Policy, starter: HopStarter) -> Loop:
        topology = self._parts.topology
        rows = [self.hops[instance.operators[-1]] for instance in topology.instances]
        knobs: dict[str, Knob] = {"rank": GateKnob(self.gate), "rung": starter.pools}
        engine = HopEngine(topology, rows, knobs, lost=None if self.promises is None else self.promises.lost)
        knob = "rung" if self.options.enforce == "pools" else "rank"
        return Loop([engine], [Binding(policy, knob, period=self.options.period)], metrics=ALL_METRICS)

    def _until(self, condition: Callable[[], bool], limit: float) -> bool:
        while not condition():
            if time.monotonic() > limit or self._parts.over.is_set():
                return False
            time.sleep(TICK)
        return True
