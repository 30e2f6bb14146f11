"""Lachesis-RT's congestion-aware policy: every thread by the queue that it empties itself (section 4.1).

A main thread empties its operator's input queue, a helper thread the output queue, a source what waits outside of the
engine.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import column, lead
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class CongestionAware(Policy):
    """Relieves congestion: mains by input queue, helpers by output queue, sources by the external queue.

    A source may also be seen by its engine, and some engines count the external queue there; so the longer one
    counts. A helper whose output queue is unknown follows its main, as in Lachesis.
    """

    name: ClassVar[str] = "congestion-aware"
    aliases: ClassVar[tuple[str, ...]] = ("lachesis-rt",)
    optimises: ClassVar[str] = "throughput"
    paper: ClassVar[str] = "Lachesis-RT 4.1"
    steady = True
    needs = ("queue",)
    wants = ("output_queue", "external_queue")

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology, queue = snapshot.topology, snapshot["queue"]
        waiting = np.where(topology.is_source, np.fmax(queue, column(snapshot, "external_queue")), queue)
        reason = "most congested first" + lead(topology, waiting, "has {:.6g} tuples waiting")
        if "output_queue" not in snapshot:
            return Schedule(waiting, reason=reason)
        leaving = snapshot["output_queue"]
        return Schedule(waiting, helper=np.where(np.isnan(leaving), waiting, leaving), reason=reason)
