"""What a gate remembers of each hop, and of each wait for a slot."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from treadle.enforce.gate.stats import ANY, HopStats


@dataclass(slots=True, eq=False)
class Hop:
    """A hop that is registered at a gate, and its counts."""

    name: str
    rank: float = math.nan
    group: int = ANY
    tried: bool = False
    """Whether the hop's first turn has ended. Until then a hop without a rank counts as the best of all."""
    failing: bool = False
    turn: Turn | None = None
    grants: int = 0
    aged: int = 0
    waited: float = 0.0
    held: float = 0.0

    def group_of(self, groups: int) -> int:
        """Return the group whose slots the hop may use; ANY also if there are only `groups` groups, without its own."""
        return self.group if self.group < groups else ANY

    def stats(self, now: float, groups: int) -> HopStats:
        waited, held = self.waited, self.held
        if self.turn is not None and math.isnan(self.turn.granted):
            waited += now - self.turn.offered
        elif self.turn is not None:
            held += now - self.turn.granted
        return HopStats(self.rank, self.grants, self.aged, waited, held, self.group_of(groups))

    def add(self, other: Hop) -> None:
        self.grants += other.grants
        self.aged += other.aged
        self.waited += other.waited
        self.held += other.held


@dataclass(slots=True, eq=False)
class Turn:
    """One offer of a hop, from the queue until its slot is released.

    Each offer has an object of its own, so a late call for an older offer can't be mistaken for this one.
    """

    hop: Hop
    grant: Callable[[], None]
    gone: Callable[[], None] | None
    offered: float
    granted: float = math.nan
    slot: int = -1
    """The number of its slot, while slots are in groups; negative if it has none of theirs."""
