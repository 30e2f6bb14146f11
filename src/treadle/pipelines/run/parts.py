"""The objects that make up a run, created before any query or thread starts. `Parts.of` locks the pipeline's folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, RLock
from typing import Any

from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import starting_slots
from treadle.loop.trouble import Attempts
from treadle.model import Topology
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.options import Options
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
    hops: dict[str, Hop] = field(default_factory=dict)
    lock: Any = field(default_factory=RLock)
    stopping: Event = field(default_factory=Event)
    over: Event = field(default_factory=Event)
    """Set when the end was requested, or a hop has failed for good."""
    attempt: Attempts = field(default_factory=_attempts)

    @classmethod
    def of(cls, definition: Definition, folder: Path, options: Options) -> Parts:
        """Make the parts for a pipeline; ConfigError if its nodes don't suit the options."""
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
            steering = Steering(gate, options.policy, elastic=elastic, where=where)
        work = RunFolder(folder, definition.name, definition.fingerprint(), options.layout, options.channels)
        try:
            channel_set = ChannelSet(definition.name, options, work)
            nodes = {node.name: channel_set.with_brokers(node) for node in definition.nodes}
        except BaseException:
            work.close()
            raise
        return cls(definition, options, nodes, topology, gate, work, channel_set, steering, realtime)
