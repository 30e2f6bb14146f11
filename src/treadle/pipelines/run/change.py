"""Changes the graph of a running pipeline: starts new sinks, works off and ends others, restarts hops with other code.

What can be refused is refused before anything is changed. While a change is under way, the folder can be started with
the old and with the new version.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.loop import Loop
from treadle.model import Topology
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.hop_engine import HopEngine
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.nodes.difference import Difference, difference, union
from treadle.pipelines.nodes.node import Kind
from treadle.pipelines.quality.flow import may_shed
from treadle.pipelines.run.hop_starter import HopStarter
from treadle.pipelines.run.parts import TICK, Parts
from treadle.pipelines.run.rehearsal import rehearse
from treadle.pipelines.spark.queries import error_summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("treadle.pipelines")


class Change:
    """Changes the pipeline of one run. `promised` is whether rows may be dropped, which fixes the graph."""

    def __init__(
        self, parts: Parts, spark: SparkSession, starter: HopStarter, loop: Loop, engine: HopEngine, *, promised: bool
    ) -> None:
        self._parts = parts
        self._spark = spark
        self._starter = starter
        self._loop = loop
        self._engine = engine
        self._promised = promised

    def to(self, wanted: Definition, *, dry_run: bool, timeout: float) -> Difference:
        """Let the run become this version; return what differs. With `dry_run` it is only checked.

        The rows that wait for hops that end are worked off before, for at most `timeout` seconds.
        """
        with self._alone():
            wanted = wanted.restricted([sink.name for sink in wanted.sinks])
            found = self._checked(wanted)
            if not dry_run and not found.nothing:
                self._carry_out(wanted, found, time.monotonic() + timeout)
                log.info("pipeline '%s' changes: %s", wanted.name, "; ".join(found.lines()))
            return found

    def follow(self) -> None:
        """Let policies decide on the hops that have not ended, with their present priorities and goals."""
        live = self._parts.live
        if live is not None:
            self._schedule(self._topology(live))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        parts = self._parts
        if not parts.changing.acquire(timeout=1.0):
            raise EngineError("another change is under way", where=self._where, remedy="try again when it is done")
        try:
            if self._is_over:
                raise EngineError("the pipeline is ending", where=self._where, remedy="start it with the new version")
            yield
        finally:
            parts.changing.release()

    # ------------------------------------------------------------ checks

    def _checked(self, wanted: Definition) -> Difference:
        """Compare both versions, and raise an error if the change can't be made."""
        parts = self._parts
        found = difference(parts.definition, wanted)
        found.check(self._where)
        if found.nothing:
            return found
        if parts.realtime is not None:
            raise self._fixed("runs in the realtime layout, whose task slots are counted at the start")
        nodes = {node.name: parts.channel_set.with_brokers(node) for node in wanted.nodes}
        if self._promised or may_shed(nodes):
            raise self._fixed("has sinks with a min_accuracy, whose promises are made at the start")
        parts.folder.check_again(wanted.fingerprint())
        parts.channel_set.check(wanted.nodes)
        parts.channel_set.prepare(self._spark)
        rehearse(parts, self._spark, nodes, self._starting(wanted, found))
        return found

    def _fixed(self, why: str) -> ConfigError:
        return ConfigError(f"can't change while it runs: it {why}", where=self._where, remedy="stop it and start it")

    def _starting(self, wanted: Definition, found: Difference) -> list[str]:
        """The hops that start or start again: those of new nodes, and those that run a node with other code."""
        nodes = {node.name: node for node in wanted.nodes}
        touched = {*found.added, *found.changed}
        if self._parts.options.layout == "hops":
            return [name for name in nodes if name in touched and nodes[name].kind.runs]
        sinks = [name for name in nodes if nodes[name].kind.ends]
        return [name for name in sinks if touched & graph.needed_by([name], nodes)]

    # ------------------------------------------------------------ carrying it out

    def _carry_out(self, wanted: Definition, found: Difference, limit: float) -> None:
        parts = self._parts
        before, topology = parts.definition, parts.topology
        both = union(before, wanted)
        starting = self._starting(wanted, found)
        parts.folder.propose(wanted.fingerprint())
        try:
            self._become(both)
            self._start_new([name for name in starting if name not in parts.hops])
        except BaseException as error:
            self._forget(found.added)
            self._become(before, topology)
            parts.folder.settle(before.fingerprint())
            if isinstance(error, TreadleError) or not isinstance(error, Exception):
                raise
            problem = error_summary(str(error))
            raise EngineError(problem, where=self._where, remedy="nothing was changed; see its code") from error
        self._start_again([name for name in starting if name not in found.added], wanted)
        self._schedule(parts.topology)
        if self._work_off(found.removed, limit):
            self._forget(found.removed)
            self._become(wanted)
            self.follow()
            parts.folder.settle(wanted.fingerprint())

    def _become(self, definition: Definition, topology: Topology | None = None) -> None:
        """Let the run have these nodes from now on; policies are not changed yet."""
        parts = self._parts
        parts.definition = definition
        parts.nodes = {node.name: parts.channel_set.with_brokers(node) for node in definition.nodes}
        parts.topology = self._topology(definition) if topology is None else topology
        if parts.options.enforce != "gate":
            parts.gate.slots = max(parts.gate.slots, len(parts.topology))

    def _topology(self, definition: Definition) -> Topology:
        version = max(self._parts.topology.version, self._engine.topology().version) + 1
        return self._parts.topology_of(definition, version)

    def _schedule(self, topology: Topology) -> None:
        """Let policies decide on the hops of a topology. Those that were not started yet must be started before."""
        parts = self._parts
        with self._loop.between_rounds:
            hops = [parts.hops[instance.operators[-1]] for instance in topology.instances]
            for hop in hops:
                hop.follow(topology)
            self._engine.follow(topology, hops)

    def _start_new(self, names: Sequence[str]) -> None:
        parts = self._parts
        for node in parts.nodes.values():
            if node.kind in (Kind.FEED, Kind.TOPIC) and node.name not in parts.channel_set.sources:
                parts.channel_set.outside(node)
        ids = _ids(parts.topology)
        for name in names:
            self._starter.begin(parts.nodes[name], ids[name])

    def _start_again(self, names: Sequence[str], wanted: Definition) -> None:
        """Start hops with other code again, and those that the gate knows by another name, each after its batch.

        An ended sink whose code has changed is started again too, with all that it needs.
        """
        parts, ids = self._parts, _ids(self._parts.topology)
        nodes = {node.name: node for node in wanted.nodes}
        again = {*names, *(hop.name for hop in parts.hops.values() if hop.id != ids[hop.name])}
        for sink in list(parts.failed):
            if sink in nodes and again & graph.needed_by([sink], nodes):
                del parts.failed[sink]
                again |= {name for name in graph.needed_by([sink], nodes) if name in parts.hops}
        for hop in [parts.hops[name] for name in ids if name in again]:
            if hop.name not in names and hop.id == ids[hop.name] and not hop.ended:
                continue
            self._end_after_its_batch(hop)
            if hop.id != ids[hop.name]:
                self._starter.parked_hops.forget(hop)
                hop.id = ids[hop.name]
            hop.failures, hop.error = 0, ""
            self._starter.restart(hop)

    def _work_off(self, names: Sequence[str], limit: float) -> bool:
        """End hops in the order of the data, each when it is done with its rows; False if the run ends meanwhile."""
        parts = self._parts
        ends: dict[str, Any] = {name: channel.end() for name, channel in parts.channel_set.sources.items()}
        for hop in [parts.hops[name] for name in names if name in parts.hops]:
            for channel in hop.inputs:
                if channel.name in names and parts.nodes[channel.name].kind.runs:
                    ends[channel.name] = channel.end()  # its writer has ended, so this is really the end
                if not self._until(partial(_is_done, hop, channel, ends[channel.name]), limit):
                    if self._is_over:
                        return False
                    waits = channel.backlog(hop.name).rows
                    log.warning("hop '%s' ends although %d rows wait for it", hop.name, waits, extra={"hop": hop.name})
            self._end_after_its_batch(hop)
        return not self._is_over

    def _end_after_its_batch(self, hop: Hop) -> None:
        if not hop.ended:
            hop.leaving = True
            time.sleep(TICK)  # a batch that has just been granted begins, and is waited for
            self._until(lambda: self._starter.at_rest(hop), float("inf"))
        self._starter.end(hop)

    def _forget(self, names: Sequence[str]) -> None:
        """Forget hops that have ended, and close the channels that they filled or that only they read."""
        parts = self._parts
        for name in names:
            if name in parts.hops:
                hop = parts.hops[name]
                if not hop.ended:
                    self._starter.end(hop)
                self._starter.forget(hop)
            for channel in parts.channel_set.sources.values():
                channel.leave(name)
            parts.failed.pop(name, None)
        for name in names:
            parts.channel_set.remove(name)

    def _until(self, condition: Callable[[], bool], limit: float) -> bool:
        while not condition():
            if time.monotonic() > limit or self._is_over:
                return False
            time.sleep(TICK)
        return True

    @property
    def _is_over(self) -> bool:
        return self._parts.stopping.is_set() or self._parts.over.is_set()

    @property
    def _where(self) -> str:
        return f"pipeline '{self._parts.definition.name}'"


def _ids(topology: Topology) -> Mapping[str, str]:
    """Hop -> its name at the gate, in the order of the topology."""
    return {instance.operators[-1]: instance.id for instance in topology.instances}


def _is_done(hop: Hop, channel: Source, end: Any) -> bool:
    """Whether a hop has read its channel up to `end`, or has failed for good."""
    return hop.ended or channel.has_read(hop.name, end)
