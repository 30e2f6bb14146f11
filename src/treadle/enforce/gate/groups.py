"""Slots in groups that own hops: Haren's processing threads (section 4.1), to which its function f assigns operators.

Each slot is a group, as each of Haren's P threads has operators of its own, or each worker of a cluster is a group of
several slots. A free slot is granted only to hops in its group, and to hops in no group, which may use any slot. Such a
hop is new, or f has left it out, or its group has no slot any more because there are fewer slots or workers now. So no
hop is without a slot that may serve it.
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


class Seats(NamedTuple):
    """The group of each slot."""

    groups: tuple[int, ...]
    among: int | None = None
    """The number of groups that slots are spread over; None: each slot is a group, however many slots there are."""

    @property
    def group_count(self) -> int:
        """The number of groups that have a slot. Groups without one are the last ones."""
        return max(self.groups) + 1

    def resized(self, slots: int) -> Seats:
        """Return this number of slots, spread evenly."""
        groups = range(slots) if self.among is None else sorted(slot % self.among for slot in range(slots))
        return self._replace(groups=tuple(groups))


class Line(NamedTuple):
    """The state of a gate at one moment, as a choice needs it."""

    waiting: Mapping[str, Turn]
    """In the order of their offers."""
    holding: Mapping[str, Turn]
    best: Callable[[Mapping[str, Turn]], tuple[Turn | None, float]]
    express: int
    patience: float
    now: float


class Groups:
    """The slots of a gate as groups. The gate's lock is held during all calls.

    - **Order.** A free slot goes to the best rank among the hops that it may serve.
    - **Patience** counts for each group apart: a hop that has waited too long goes ahead of better ranks in its own
      group, in at most one of any `aged_every` grants of this group. It never takes a slot of another group. So a hop
      is granted as soon as in `Gate`, counted in grants of its own group.
    - **Express.** A hop whose slots are held gets an express slot if it is more urgent than all that run. Express slots
      are in no group, and don't count against the slots of groups.
    - **Fewer slots.** The batches of removed slots run to their end. Until then they count as slots, so that no more
      batches run than there are slots.
    - **Another assignment** does not move a batch that runs.
    """

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._since_aged: Counter[int] = Counter()
        self._held: dict[int, float] = {}

    def seat(self, holders: Collection[Turn]) -> None:
        """Give numbered slots to batches that began without one: a slot of their group, if one is free."""
        for turn in holders:
            turn.slot = STRAY
        free = set(range(len(self._seats.groups)))
        for turn in holders:
            own = [slot for slot in free if self._seats.groups[slot] == self._group_of(turn)]
            if own:
                turn.slot = min(own)
                free.remove(turn.slot)
        for turn in holders:  # the others take slots that their own groups don't need now
            if turn.slot == STRAY and free:
                turn.slot = min(free)
                free.remove(turn.slot)

    def follow(self, seats: Seats, holders: Iterable[Turn]) -> None:
        """Use other slots from now on."""
        self._seats = seats
        if seats.among is not None:  # the slots of batches that run may be in other groups now
            self.seat([turn for turn in holders if turn.slot != EXPRESS])

    def choose(self, line: Line, aged_every: float) -> tuple[Turn, bool] | None:
        """Choose the next turn and note its slot; also return whether it goes ahead of better ranks. None: nobody."""
        if self.busy(line.holding) < len(self._seats.groups):
            free = set(range(len(self._seats.groups))) - {turn.slot for turn in line.holding.values()}
            served = {ANY, *(self._seats.groups[slot] for slot in free)}
            able = {name: turn for name, turn in line.waiting.items() if self._group_of(turn) in served}
            best = line.best(able)[0]
            if best is not None:
                return self._in_group(line, able, best, self._slot(line, best, free), aged_every)
        return self._express(line)

    def busy(self, holding: Mapping[str, Turn]) -> int:
        """Return the number of batches that run, without those on express slots."""
        return sum(turn.slot != EXPRESS for turn in holding.values())

    def ended(self, turn: Turn, now: float) -> None:
        """Add a batch that has ended to the time for which the slots of its group were held."""
        if 0 <= turn.slot < len(self._seats.groups):
            group = self._seats.groups[turn.slot]
            self._held[group] = self._held.get(group, 0.0) + now - turn.granted

    def stats(self, hops: Mapping[str, HopStats], holding: Mapping[str, Turn], now: float) -> tuple[GroupStats, ...]:
        """Return the counts of each group."""
        running: dict[int, list[Turn]] = {group: [] for group in range(self._seats.group_count)}
        for turn in holding.values():
            if 0 <= turn.slot < len(self._seats.groups):
                running[self._seats.groups[turn.slot]].append(turn)
        return tuple(
            GroupStats(
                self._seats.groups.count(group),
                tuple(name for name, hop in hops.items() if hop.group == group),
                tuple(turn.hop.name for turn in turns),
                self._held.get(group, 0.0) + sum(now - turn.granted for turn in turns),
            )
            for group, turns in running.items()
        )

    def _group_of(self, turn: Turn) -> int:
        return turn.hop.group_of(self._seats.group_count)

    def _slot(self, line: Line, turn: Turn, free: set[int]) -> int:
        """Return the slot for a hop; for one that may use any, a free slot of the group for which the fewest wait."""
        group = self._group_of(turn)
        if group != ANY:
            return min(slot for slot in free if self._seats.groups[slot] == group)
        waits = Counter(self._group_of(each) for each in line.waiting.values())
        return min(sorted(free), key=lambda slot: waits[self._seats.groups[slot]])

    def _in_group(
        self, line: Line, able: Mapping[str, Turn], best: Turn, slot: int, aged_every: float
    ) -> tuple[Turn, bool]:
        group = self._seats.groups[slot]
        oldest = next(turn for turn in able.values() if self._group_of(turn) in (group, ANY))
        due = self._since_aged[group] >= aged_every - 1 and line.now - oldest.offered > line.patience
        aged = due and oldest is not best
        self._since_aged[group] = 0 if aged else self._since_aged[group] + 1
        turn = oldest if aged else best
        turn.slot = slot
        return turn, aged

    def _express(self, line: Line) -> tuple[Turn, bool] | None:
        used = len(line.holding) - self.busy(line.holding)
        if used >= line.express or len(line.holding) >= len(self._seats.groups) + line.express:
            return None
        best, rank = line.best(line.waiting)
        if best is None or rank <= line.best(line.holding)[1]:
            return None
        best.slot = EXPRESS
        return best, False


def regrouped(before: Groups | None, hops: Iterable[Hop], holders: Collection[Turn], seats: Seats) -> Groups | None:
    """Return the groups after a new assignment; None if no hop is in a group, so that all slots serve one line."""
    if all(hop.group == ANY for hop in hops):
        return None
    if before is None:
        before = Groups(seats)
        before.seat(holders)
    return before
