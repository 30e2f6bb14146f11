"""Lachesis-RT's congestion-aware policy: the priority of a thread is the queue that it empties (section 4.1).

A main thread empties its operator's input queue, a helper thread the output queue, a source the external queue.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import column, lead
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class CongestionAware(Policy):
    """Relieves congestion: mains by input queue, helpers by output queue, sources by the external queue.

    Some engines report the external queue as a source's input queue too, so the longer of both counts. A helper thread
    with unknown output queue follows its main thread, as in Lachesis.
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
