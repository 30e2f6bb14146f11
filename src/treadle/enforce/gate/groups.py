"""Slots in groups that own hops: Haren's processing threads (section 4.1), to which its function f assigns operators.

Each slot is a group, as each of Haren's P threads has operators of its own. A free slot is granted only to hops in its
group, and to hops in no group, which may use any slot. Such a hop is new, or f has left it out, or its group has lost
its slot because there are fewer slots now. So no hop is without a slot that may serve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from treadle.enforce.gate.stats import ANY, GroupStats, HopStats
from treadle.enforce.gate.turns import Hop, Turn

STRAY = -1
"""The slot of a batch that began while all slots served one line, if there was no slot left for it in the groups."""
EXPRESS = -2
"""The slot of a batch that was granted beyond all groups."""


class Line(NamedTuple):
    """The state of a gate at one moment, as a choice needs it."""

    waiting: Mapping[str, Turn]
    """In the order of their offers."""
    holding: Mapping[str, Turn]
    best: Callable[[Mapping[str, Turn]], tuple[Turn | None, float]]
    slots: int
    express: int
    patience: float
    now: float


class Groups:
    """The slots of a gate as groups. The gate's lock is held during all calls.

    - **Order.** A free slot goes to the best rank among the hops that it may serve.
    - **Patience** counts for each slot apart: a hop that has waited too long goes ahead of better ranks in its own
      group, in at most one of any `aged_every` grants of this slot. It never takes the slot of another group. So a hop
      is granted as soon as in `Gate`, counted in grants of its own slot.
    - **Express.** A hop whose slot is held gets an express slot if it is more urgent than all that run. Express slots
      are in no group, and don't count against the slots of groups.
    - **Fewer slots.** The batches of removed slots run to their end. Until then they count as slots, so that no more
      batches run than there are slots.
    - **Another assignment** does not move a batch that runs.
    """

    def __init__(self) -> None:
        self._since_aged: Counter[int] = Counter()
        self._held: dict[int, float] = {}

    def seat(self, holders: Collection[Turn], slots: int) -> None:
        """Give numbered slots to batches that began without one: that of their group, if it is free."""
        for turn in holders:
            turn.slot = STRAY
        free = set(range(slots))
        for turn in sorted(holders, key=lambda turn: turn.hop.group_of(slots) == ANY):
            group = turn.hop.group_of(slots)
            if free:
                turn.slot = group if group in free else min(free)
                free.remove(turn.slot)

    def choose(self, line: Line, aged_every: float) -> tuple[Turn, bool] | None:
        """Choose the next turn and note its slot; also return whether it goes ahead of better ranks. None: nobody."""
        if self.busy(line.holding) < line.slots:
            free = set(range(line.slots)) - {turn.slot for turn in line.holding.values()}
            served = {ANY, *free}
            able = {name: turn for name, turn in line.waiting.items() if turn.hop.group_of(line.slots) in served}
            best = line.best(able)[0]
            if best is not None:
                return self._in_group(line, able, best, self._slot(line, best.hop, free), aged_every)
        return self._express(line)

    def busy(self, holding: Mapping[str, Turn]) -> int:
        """Return the number of batches that run, without those on express slots."""
        return sum(turn.slot != EXPRESS for turn in holding.values())

    def ended(self, turn: Turn, now: float) -> None:
        """Add a batch that has ended to the time for which its slot was held."""
        if turn.slot >= 0:
            self._held[turn.slot] = self._held.get(turn.slot, 0.0) + now - turn.granted

    def stats(
        self, hops: Mapping[str, HopStats], holding: Mapping[str, Turn], slots: int, now: float
    ) -> tuple[GroupStats, ...]:
        """Return the counts of each group."""
        running = {turn.slot: turn for turn in holding.values()}
        held = dict(self._held)
        for slot, turn in running.items():
            held[slot] = held.get(slot, 0.0) + now - turn.granted
        members = [tuple(name for name, hop in hops.items() if hop.group == slot) for slot in range(slots)]
        return tuple(
            GroupStats(members[slot], running[slot].hop.name if slot in running else None, held.get(slot, 0.0))
            for slot in range(slots)
        )

    def _slot(self, line: Line, hop: Hop, free: set[int]) -> int:
        """Return the slot for a hop; for one that may use any, the free slot for which the fewest hops wait."""
        group = hop.group_of(line.slots)
        if group != ANY:
            return group
        waits = Counter(turn.hop.group_of(line.slots) for turn in line.waiting.values())
        return min(sorted(free), key=lambda slot: waits[slot])

    def _in_group(
        self, line: Line, able: Mapping[str, Turn], best: Turn, slot: int, aged_every: float
    ) -> tuple[Turn, bool]:
        oldest = next(turn for turn in able.values() if turn.hop.group_of(line.slots) in (slot, ANY))
        due = self._since_aged[slot] >= aged_every - 1 and line.now - oldest.offered > line.patience
        aged = due and oldest is not best
        self._since_aged[slot] = 0 if aged else self._since_aged[slot] + 1
        turn = oldest if aged else best
        turn.slot = slot
        return turn, aged

    def _express(self, line: Line) -> tuple[Turn, bool] | None:
        used = len(line.holding) - self.busy(line.holding)
        if used >= line.express or len(line.holding) >= line.slots + line.express:
            return None
        best, rank = line.best(line.waiting)
        if best is None or rank <= line.best(line.holding)[1]:
            return None
        best.slot = EXPRESS
        return best, False


def regrouped(before: Groups | None, hops: Iterable[Hop], holders: Collection[Turn], slots: int) -> Groups | None:
    """Return the groups after a new assignment; None if no hop is in a group, so that all slots serve one line."""
    if all(hop.group == ANY for hop in hops):
        return None
    if before is None:
        before = Groups()
        before.seat(holders, slots)
    return before
