"""The objects that make up a run, created before any query or thread starts. `Parts.of` locks the pipeline's folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, RLock
from typing import Any

from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import starting_slots
from treadle.loop.trouble import Attempts
from treadle.model import Topology
from treadle.pipelines.gating.assigning import Assign, Assigning
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.options import Options
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.nodes.node import Node
from treadle.pipelines.realtime import stages
from treadle.pipelines.realtime.stages import Batches
from treadle.pipelines.run.channel_set import ChannelSet
from treadle.pipelines.run.folder import RunFolder

log = logging.getLogger("treadle.pipelines")

TICK = 0.02
"""Seconds between two passes of the control thread, and between two checks in a wait."""
LONGEST_PAUSE = 10.0
"""Longest pause in seconds before a failed part of the control thread's work is tried again."""


def _attempts() -> Attempts:
    return Attempts(TICK, LONGEST_PAUSE, log)


@dataclass
class Parts:
    """The objects of one run, which the control thread, Spark's listener and the user's threads share."""

    definition: Definition
    options: Options
    nodes: Mapping[str, Node]
    topology: Topology
    gate: Gate
    folder: RunFolder
    channel_set: ChannelSet
    steering: Steering
    realtime: Batches | None
    """Counts the batches of queries in Real-Time Mode; None in other layouts."""
    priorities: dict[str, float] = field(default_factory=dict)
    """By sink and operator: the priorities that were set while it runs, in place of the declared ones."""
    hops: dict[str, Hop] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)
    stopping: Event = field(default_factory=Event)
    changing: Any = field(default_factory=Lock)
    """Held while sinks are added, removed or ended."""
    failed: dict[str, str] = field(default_factory=dict)
    """Sinks that have ended while the others go on, with the reasons."""
    over: Event = field(default_factory=Event)
    """Set when the end was requested, or a hop has failed for good."""
    attempt: Attempts = field(default_factory=_attempts)

    @property
    def live(self) -> Definition | None:
        """The pipeline without the sinks that have ended; None if all have."""
        sinks = [sink.name for sink in self.definition.sinks if sink.name not in self.failed]
        return self.definition.restricted(sinks) if sinks else None

    def topology_of(self, definition: Definition, version: int) -> Topology:
        """The topology of a version of the pipeline, with the names and the priorities that hold now."""
        named = {name: instance.query for instance in self.topology.instances for name in instance.operators}
        declared = definition.topology(self.options.layout, named=named)
        nodes = {node.name: node for node in definition.nodes}
        own = {name: priority for name, priority in self.priorities.items() if name in nodes}
        return graph.with_priorities(declared, nodes, own, version)

    def sinks_of(self, name: str) -> list[str]:
        """The sinks that need a node and have not ended."""
        sinks = [node.name for node in self.nodes.values() if node.kind.ends and node.name not in self.failed]
        return [sink for sink in sinks if name in graph.needed_by([sink], self.nodes)]

    def on_failure(self, name: str) -> str:
        """What happens when a hop fails for good: the first of stop, retry and continue that a sink behind it wants."""
        wishes = {self.nodes[sink].on_failure or self.options.on_failure for sink in self.sinks_of(name)}
        return next((wish for wish in ("stop", "retry", "continue") if wish in wishes), "continue")

    def needless(self) -> list[Hop]:
        """The hops that only ended sinks need."""
        if not self.failed:
            return []
        live = self.live
        needed = set() if live is None else {node.name for node in live.nodes}
        return [hop for hop in list(self.hops.values()) if hop.name not in needed]

    @classmethod
    def of(cls, definition: Definition, folder: Path, options: Options) -> Parts:
        """Make the parts for a pipeline; ConfigError if its nodes don't suit the options."""
        definition = definition.restricted([sink.name for sink in definition.sinks])
        topology = definition.topology(options.layout)
        realtime = stages.batches(definition.nodes, options)
        gated = options.enforce == "gate"
        slots = starting_slots(options.slots) if gated else max(1, len(topology))
        gate = Gate(slots, patience=options.patience, express=options.express if gated else 0)
        where = f"pipeline '{definition.name}'"
        if realtime is not None:
            steering: Steering = stages.NoGateSteering(gate, where)
        else:
            elastic = gated and options.slots == "auto"
            assigning = Assigning(gate, Assign(options.assign, options.assign_period), where) if gated else None
            steering = Steering(gate, options.policy, elastic=elastic, where=where, assigning=assigning)
        work = RunFolder(folder, definition.name, definition.fingerprint(), options.layout, options.channels)
        try:
            channel_set = ChannelSet(definition.name, options, work)
            nodes = {node.name: channel_set.with_brokers(node) for node in definition.nodes}
        except BaseException:
            work.close()
            raise
        return cls(definition, options, nodes, topology, gate, work, channel_set, steering, realtime)
