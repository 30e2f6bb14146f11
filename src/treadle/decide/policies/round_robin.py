"""RR: operators take turns in a ring, so that none starves (AMoS section 2.1).

Operators with nothing to do are passed over. Where operators ask a gate before each batch (they have the metric
`batches`), all get the same priority, and the gate grants equal priorities in the order of the requests: so the ring
turns with each grant. A ring that turned with each decision would synchronise with the batches, and some operators
would get most of the grants.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from treadle.decide.policies.shared.columns import is_empty
from treadle.decide.policies.shared.spec import Options
from treadle.decide.policy import Policy
from treadle.errors import ConfigError
from treadle.values import Schedule, Snapshot


class RoundRobin(Policy):
    """Gives every operator a turn: `step` operators with work in each round, the next ones in the next round.

    At a gate each waiting operator gets one grant in turn, and `step` has no meaning.
    """

    name: ClassVar[str] = "rr"
    aliases: ClassVar[tuple[str, ...]] = ("round-robin",)
    optimises: ClassVar[str] = "fairness"
    paper: ClassVar[str] = "AMoS 2.1"
    wants = ("queue", "external_queue", "batches")

    def __init__(self, step: int = 1) -> None:
        if step < 1:
            raise ConfigError(f"step is {step}", where=f"policy '{self.name}'", remedy="use 1 or more")
        self._step = step
        self._turn = 0

    @classmethod
    def from_options(cls, options: Options) -> RoundRobin:
        return cls(options.integer("step", 1))

    def decide(self, snapshot: Snapshot) -> Schedule:
        count = len(snapshot.topology)
        if count == 0:
            return Schedule(np.empty(0), reason="nothing to schedule")
        if "batches" in snapshot:
            return Schedule(np.zeros(count), reason="by turns, in the order in which they ask")
        ring = (np.arange(count) + self._turn) % count
        busy = ring[~is_empty(snapshot)[ring]]
        priority = np.zeros(count)
        priority[busy] = np.arange(len(busy), 0, -1)
        first = int(busy[0]) if len(busy) else self._turn % count
        if len(busy):
            self._turn = (int(busy[min(self._step, len(busy)) - 1]) + 1) % count
        return Schedule(priority, reason=f"by turns; it is the turn of {snapshot.topology.instances[first].id}")

    def state(self) -> dict[str, Any]:
        return {"turn": self._turn}

    def load(self, state: dict[str, Any]) -> None:
        self._turn = int(state["turn"])
