"""A running pipeline: the methods that users call, and how it is stopped cleanly.

The control loop ranks hops, and the gate grants slots by rank. `gating.parked_hops` resumes hops that wait in their
source, `gating.foreach_batch_gate` holds back all others. `start` makes a `Run`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.control import control_socket
from treadle.control.settings import Changeable, Settings
from treadle.decide.policy import Policy
from treadle.durations import Duration, seconds
from treadle.enforce.gate.gate import Gate
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.gating.ranking import Ranking
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops.hop import Hop, State
from treadle.pipelines.hops.options import Options, policy_of
from treadle.pipelines.hops.totals import OBJECTIVES
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.nodes.difference import Difference
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.quality import live_quality
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.realtime import stages
from treadle.pipelines.realtime.stages import Batches
from treadle.pipelines.run import failures, live_priorities, ranked_hops, status
from treadle.pipelines.run.change import Change
from treadle.pipelines.run.control_thread import ControlThread
from treadle.pipelines.run.failures import Failures
from treadle.pipelines.run.feed import Feed
from treadle.pipelines.run.folder import RunFolder
from treadle.pipelines.run.hop_starter import HopStarter
from treadle.pipelines.run.parts import TICK, Parts, log
from treadle.pipelines.spark.ending import Stops
from treadle.pipelines.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOPPING = 5.0
"""Seconds of the timeout of `stop` that are reserved for Spark to stop queries; at most half of the timeout."""
LONGEST_DRAIN = 3600.0
"""Longest time in seconds that `treadle ctl stop --drain` waits."""


class Run(Changeable):
    """A running pipeline. A `with` block stops it at its end."""

    spark: SparkSession
    promises: Promises | None = None
    _starter: HopStarter | None = None
    _change: Change
    _server: control_socket.Server | None = None
    _thread: threading.Thread

    def __init__(self, parts: Parts, pipeline: Definition) -> None:
        self._parts = parts
        self._pipeline = pipeline
        """What the user has defined. Sinks of it may not run, or not any more."""
        self._feeds: list[Feed] = []

    def begin(self, spark: SparkSession | None, keeper: Callable[[Run], Promises | None]) -> None:
        """Start everything; `keeper` makes the `Promises` of this run. Called once, by `start`."""
        parts = self._parts
        options = parts.options
        ranking = Ranking(policy_of(options.policy), options.rules, options.period, OBJECTIVES, "pipelines")
        parts.channel_set.check(parts.definition.nodes)
        master = None if parts.realtime is None else stages.master(parts.nodes)
        self.spark = spark or session(self.name, master=master, fair=options.enforce == "pools")
        parts.channel_set.prepare(self.spark)
        self.promises = keeper(self)
        failures.check(parts, promised=self.promises is not None)
        self._starter = HopStarter(parts, self.spark, self.promises)
        # Before any hop: it raises if a pipeline of this name runs already, which our hops would disturb.
        self._server = control_socket.serve(self.name, self._commands())
        if parts.realtime is None:
            parts.folder.claim()
        self._starter.start()
        engine = ranked_hops.make_engine(parts, self._starter.pools, self.promises)
        loop = ranked_hops.make_loop(parts, ranking, engine, self.promises)
        self._change = Change(parts, self.spark, self._starter, loop, engine, promised=self.promises is not None)
        more = {
            "priorities": live_priorities.setting(parts, self._change.follow, self.promises),
            "quality": live_quality.setting(self.name, parts.nodes, self.promises),
        }
        parts.steering.begin(loop, ranking, None if parts.realtime else self._starter.parked_hops.sizer, more)
        work = ControlThread(parts, self._starter, Failures(parts, self._starter, self._change.follow)).work
        self._thread = threading.Thread(target=work, args=(loop,), name="treadle-control", daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """Stop the parts that were started, after a start that failed."""
        self._parts.stopping.set()
        self._end(time.monotonic() + STOPPING, Stops())

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # For the other parts of a run

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._parts.definition.name

    @property
    def options(self) -> Options:
        """The options of this run."""
        return self._parts.options

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes by name, each after the nodes that it reads."""
        return self._parts.nodes

    @property
    def hops(self) -> Mapping[str, Hop]:
        """All hops by the name of their last node."""
        return self._parts.hops

    @property
    def gate(self) -> Gate:
        """The gate that grants slots to hops."""
        return self._parts.gate

    @property
    def realtime(self) -> Batches | None:
        """The counter of batches in Real-Time Mode; None in other layouts."""
        return self._parts.realtime

    @property
    def in_real_time(self) -> bool:
        """Whether queries run in Spark's Real-Time Mode."""
        return self.realtime is not None

    @property
    def folder(self) -> RunFolder:
        """The folder of its channels and checkpoints."""
        return self._parts.folder

    @property
    def steering(self) -> Steering:
        """The object that changes policy and slots during the run."""
        return self._parts.steering

    # For users

    @property
    def channels(self) -> dict[str, Source]:
        """All channels, by the name of the node that fills each."""
        return self._parts.channel_set.sources

    @property
    def policy(self) -> str:
        """The current policy: its spec, or its name if it was set as an object."""
        return self.steering.policy

    def set_policy(self, spec: str | Policy) -> None:
        """Change the policy from the next round on; an unknown one, or one without its metrics, is refused."""
        self.steering.set_policy(spec)

    def set_slots(self, count: int) -> None:
        """Set how many hops may run at once; this ends the automatic choice."""
        self.steering.set_slots(count)

    @property
    def settings(self) -> Settings:
        return self.steering.settings

    def status(self) -> dict[str, Any]:
        """The current state of all parts, as JSON values."""
        return status.of(self._parts, self.promises)

    def feed(self, name: str) -> Feed:
        """Return a writer for a feed, which works until it is closed or the run ends."""
        node = self._parts.definition.node(name)
        if node.kind is not Kind.FEED:
            raise ConfigError("is not a feed", where=node.where, remedy="define it with p.feed")
        self._feeds.append(Feed(self.channels[name], self._started.parked_hops.consider_all))
        return self._feeds[-1]

    def wait(self, seconds_: Duration | None = None) -> None:
        """Wait until the end is requested (`treadle ctl stop`), a hop has failed for good, or `seconds_` have passed.

        Raises the error of a hop that has failed for good, that is, without further restarts.
        """
        limit = None if seconds_ is None else seconds(seconds_, what="seconds", where="run")
        self._parts.over.wait(limit)
        self.check()

    def check(self) -> None:
        """Raise the error of a hop that has failed for good, unless the others go on without it."""
        for hop in list(self.hops.values()):
            if hop.state is State.FAILED and (self._parts.on_failure(hop.name) == "stop" or self._parts.live is None):
                raise EngineError(hop.error, where=self.nodes[hop.name].where, remedy="fix it and start again")

    @property
    def failed(self) -> dict[str, str]:
        """The sinks that have ended while the others go on (`on_failure="continue"`), with the reasons."""
        return dict(self._parts.failed)

    def add(self, *sinks: str, dry_run: bool = False) -> Difference:
        """Start sinks that the pipeline has and that do not run yet or any more, with all that only they need.

        A new reader of a channel begins with the oldest row that is still there. Return what differs; with `dry_run`
        nothing is changed.
        """
        running = [sink.name for sink in self._parts.definition.sinks]
        return self._change_to(self._pipeline.restricted(dict.fromkeys([*running, *sinks])), dry_run=dry_run)

    def remove(self, *sinks: str, dry_run: bool = False, timeout: Duration = LONGEST_DRAIN) -> Difference:
        """End sinks and all that only they need, after the rows that wait for them now, at most after `timeout`.

        Their channels and checkpoints are kept, so that `add` continues them.
        """
        running = [sink.name for sink in self._parts.definition.sinks]
        for name in sinks:
            if name not in running:
                raise ConfigError(f"no sink '{name}' runs", where=f"pipeline '{self.name}'",
                                  remedy=f"name some of {', '.join(running)}")  # fmt: skip
        staying = [name for name in running if name not in sinks]
        if not staying:
            raise ConfigError("no sink would be left", where=f"pipeline '{self.name}'", remedy="stop it")
        return self._change_to(self._parts.definition.restricted(staying), dry_run=dry_run, timeout=timeout)

    def reload(
        self, version: Definition | str | Path, *, dry_run: bool = False, timeout: Duration = LONGEST_DRAIN
    ) -> Difference:
        """Let the run become another version of its pipeline, given as a Pipeline or as its file.

        What is new starts, what is gone ends as with `remove`, what has other code starts again, and the rest goes on.
        """
        wanted = version if isinstance(version, Definition) else self._pipeline.other_version(str(version))
        found = self._change_to(wanted, dry_run=dry_run, timeout=timeout)
        if not dry_run:
            self._pipeline = wanted
        return found

    def _change_to(self, wanted: Definition, *, dry_run: bool, timeout: Duration = LONGEST_DRAIN) -> Difference:
        limit = seconds(timeout, what="timeout", where="change")
        found = self._change.to(wanted, dry_run=dry_run, timeout=limit)
        if not dry_run and not found.nothing:
            self.settings.note("nodes", [*found.removed, *found.changed], [*found.added, *found.changed])
        return found

    def drained(self) -> bool:
        """Whether no rows wait in channels, no hop runs and all brokers are reachable."""
        for channel in self.channels.values():
            channel.refresh()
        with self._parts.lock:
            for channel in self.channels.values():
                if channel.asks:  # locked: rows that a batch read and wrote change together
                    channel.refresh()
            hops = [hop for hop in self.hops.values() if not hop.ended]
            busy = any(hop.state in (State.RUNNING, State.RESTARTING) for hop in hops)
            blind = any(not cluster.reachable for cluster in self._parts.channel_set.clusters.values())
            waits = any(backlog.rows for hop in hops for backlog in hop.backlogs())
            return not busy and not blind and not waits

    def drain(self, timeout: Duration) -> bool:
        """Wait until all backlogs are processed; False if the time or the run is over first."""
        return self._until(self.drained, time.monotonic() + seconds(timeout, what="timeout", where="drain"))

    def end(self) -> None:
        """Request the end of the run: `wait` returns, and its caller should call `stop`."""
        self._parts.over.set()

    def stop(self, *, drain: bool = False, timeout: Duration = 30.0) -> None:
        """Stop all hops: with `drain` after all backlogs are processed, else after the batches that run now.

        A later start continues where this run stopped. Stopping takes no longer than `timeout`. A batch that can't be
        interrupted by then is logged and runs to its end; the folder stays locked until that end.
        """
        length = seconds(timeout, what="timeout", where="stop")
        limit = time.monotonic() + length
        if drain:
            self._parts.attempt("draining", lambda: self._until(self.drained, limit))
        if self._parts.stopping.is_set():
            return
        self._parts.stopping.set()
        if self._parts.changing.acquire(timeout=length):  # a change sees `stopping`, and ends what it is doing
            self._parts.changing.release()
        batches = limit - min(STOPPING, length / 2)  # Spark needs some time to stop queries
        self._thread.join(max(0.0, batches - time.monotonic()))
        self._started.parked_hops.halt()
        while self.gate.stats.holding and time.monotonic() < batches:  # `_until` would end early if `over` is set
            time.sleep(TICK)
        stops = Stops()
        if self.realtime is not None:
            self.realtime.stop(self.hops.values(), batches, stops)
        self._end(limit, stops)

    def _end(self, limit: float, stops: Stops) -> None:
        """Stop all that was started, and unlock the folder when all queries have ended."""
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
        assert self._starter is not None  # `begin` has set it before `start` returns a run
        return self._starter

    def _commands(self) -> dict[str, Callable[..., object]]:
        """Handlers for the control socket: command -> function that takes the arguments by name."""

        def stop(drain: bool = False) -> bool:
            if drain:
                self.drain(LONGEST_DRAIN)
            self.end()
            return True

        def reload(file: str, dry_run: bool = False) -> list[str]:
            _ = self.settings  # refuses while the run is still starting
            return self.reload(file, dry_run=dry_run is True).lines()

        return {**self.steering.commands(), "status": self.status, "stop": stop, "reload": reload}

    def _until(self, condition: Callable[[], bool], limit: float) -> bool:
        while not condition():
            if time.monotonic() > limit or self._parts.over.is_set():
                return False
            time.sleep(TICK)
        return True
