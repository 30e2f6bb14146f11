"""The gate: grants K slots to waiting hops (streaming queries), best rank first. It knows names and ranks, not batches.

This is the execution task of Haren (section 5, Alg. 1) reversed: Haren's threads search for an operator that can run,
here an operator that can run asks for a slot. Haren runs neglected operators after a delay d; here they may go first
after `patience` seconds, but only in a share of all grants, so that urgent operators stay urgent under overload.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

from treadle.enforce.gate.groups import Groups, Line, Seats, regrouped
from treadle.enforce.gate.stats import GateStats
from treadle.enforce.gate.turns import Hop, Turn
from treadle.errors import ConfigError, EngineError, TargetGone

log = logging.getLogger("treadle.gate")

Now = Callable[[], float]
"""A monotonic clock, in seconds."""


class Gate:
    """K slots for hops, which are known by name. All methods may be called from any thread.

    The waiting hop with the highest rank is granted first; among equal ranks, the hop with the longest wait. A hop
    without a rank goes first until it has run once, since it must run to be measured; from then on it counts as the
    lowest known rank. A hop that has waited for more than `patience` seconds may go ahead of better ranks, the longest
    wait first; this is at most one of any ceil(1 / aged_share) grants in a row, and none with `aged_share` 0. So a hop
    with p hops before it in the line is granted within (p + 1) * ceil(1 / aged_share) grants from then on.

    While all slots are held, up to `express` more hops may get a slot if their rank is strictly above that of every
    holder, so that a short urgent batch need not wait for the end of a long one. Express hops count as holders: for
    each of them, one later release makes no slot free.

    After `assign` each slot serves only the hops in its group: see `groups`. Each slot is a group of its own, unless
    `seat` has set other groups.
    """

    def __init__(
        self, slots: int, *, patience: float = 5.0, aged_share: float = 0.1, express: int = 0, now: Now = time.monotonic
    ) -> None:
        if not patience >= 0:
            raise ConfigError(f"its patience can't be {patience}", where="gate", remedy="use seconds, 0 or more")
        if not 0 <= aged_share <= 1:
            raise ConfigError(f"aged_share can't be {aged_share}", where="gate", remedy="use a share from 0 to 1")
        self.patience = patience
        self.express = checked_count(express, "express", 0)
        self._seats = Seats(tuple(range(checked_count(slots, "slots", 1))))
        self._opened = False
        self._aged_every = math.ceil(1 / aged_share) if aged_share > 0 else math.inf
        self._since_aged = 0
        self._now = now
        # Re-entrant, since a signal handler may run at any point and put ranks back.
        self._lock = threading.RLock()
        self._here = threading.local()
        self._hops: dict[str, Hop] = {}
        self._waiting: dict[str, Turn] = {}  # in the order of their offers, so the first has waited longest
        self._holding: dict[str, Turn] = {}
        self._groups: Groups | None = None
        """None while all slots serve one line."""
        self._lowest: float | None = None
        self._looked = now()
        self._idle = 0.0
        self._past = Hop("")

    @property
    def slots(self) -> int:
        """K, the number of slots. An increase takes effect at once, a decrease as hops release their slots."""
        return len(self._seats.groups)

    @slots.setter
    def slots(self, slots: int) -> None:
        self._seat(self._seats.resized(checked_count(slots, "slots", 1)))

    @property
    def group_count(self) -> int:
        """The number of groups that the slots are in, whether hops are assigned to them or not."""
        return self._seats.group_count

    def seat(self, groups: Sequence[int], among: int) -> None:
        """Set the group of each slot. If the number of slots changes later, they are spread over `among` groups."""
        self._seat(Seats(tuple(groups), among))

    @property
    def opened(self) -> bool:
        """Whether all hops are granted at once, however many slots there are: nothing is held back."""
        return self._opened

    @opened.setter
    def opened(self, opened: bool) -> None:
        with self._lock:
            self._tick()
            self._opened = opened
        self._dispatch()

    @property
    def crowded(self) -> bool:
        """Whether any hop waits at this moment."""
        return bool(self._waiting)

    def register(self, name: str) -> None:
        """Make a hop known, so that it can have a rank and offer itself. No effect if it is known already."""
        with self._lock:
            if name not in self._hops:
                self._hops[name] = Hop(name)

    def withdraw(self, name: str) -> None:
        """Remove a hop that has ended, with its place in the line, slot and rank. No effect if it is not known.

        A `turn` that waits for the hop ends with TargetGone. A call of its `grant` that has begun is not interrupted.
        """
        with self._lock:
            if (hop := self._hops.pop(name, None)) is None:
                return
            self._lowest = None
            turn = hop.turn
            if turn is not None:
                self._end(turn)
            self._past.add(hop)
        if turn is not None and turn.gone is not None:
            turn.gone()
        self._dispatch()

    def offer(self, name: str, grant: Callable[[], None]) -> bool:
        """Queue a hop that could run now. When it gets a slot, `grant` is called once, in whichever thread grants it.

        `grant` must only hand over, not run the batch itself. It may call the gate. If it raises, the slot goes to the
        next hop. False, with no effect, if the hop waits or holds a slot already, or is not registered (any more).
        """
        return self._enter(name, grant) is not None

    def release(self, name: str, *, again: Callable[[], None] | None = None) -> float | None:
        """End the hop's batch. Return the seconds for which the hop held its slot; None if it held none.

        With `again`, the hop is queued again, with `again` as its `grant`, before the free slot is granted: so it is a
        candidate for that slot, too.
        """
        with self._lock:
            if (turn := self._holding.get(name)) is None:
                return None
            held = self._end(turn)
            if again is not None:
                turn.hop.turn = self._waiting[name] = Turn(turn.hop, again, None, self._tick())
        self._dispatch()
        return held

    @contextmanager
    def turn(self, name: str, timeout: float | None = None) -> Iterator[None]:
        """Wait for a slot and hold it for the body of a `with`, however the body ends."""
        called = threading.Event()
        turn = self._enter(name, called.set, called.set)
        if turn is None:
            self.rank(name)  # raises TargetGone if the hop is not registered
            remedy = "give each query a name of its own"
            raise EngineError(f"'{name}' waits or runs already", where="gate", remedy=remedy)
        try:
            called.wait(timeout)
            self._check_granted(turn, timeout)
            yield
        finally:
            with self._lock:
                if turn.hop.turn is turn:
                    self._end(turn)
            self._dispatch()

    @contextmanager
    def turn_if_there(self, name: str) -> Iterator[bool]:
        """Like `turn`, and yield True. If the hop is withdrawn or not registered, yield False: the body has no slot."""
        with ExitStack() as turn:
            granted = False
            with suppress(TargetGone):
                turn.enter_context(self.turn(name))
                granted = True
            yield granted

    @property
    def ranks(self) -> dict[str, float]:
        """The rank of every registered hop; NaN where none is set."""
        with self._lock:
            return {name: hop.rank for name, hop in self._hops.items()}

    def rank(self, name: str) -> float:
        """The rank of a hop; NaN if none is set."""
        with self._lock:
            return self._known(name).rank

    def set_rank(self, name: str, rank: float) -> None:
        """Set the rank of a hop: higher is more urgent; NaN removes it. The new rank counts from the next grant on.

        This call grants no slot: while a round sets ranks one by one, old and new ranks can't be compared.
        """
        if math.isinf(rank):
            raise ConfigError(f"the rank of '{name}' can't be {rank}", where="gate", remedy="use a finite number")
        with self._lock:
            self._known(name).rank = rank
            self._lowest = None

    @property
    def groups(self) -> dict[str, int]:
        """The group of every registered hop; `groups.ANY` where it may use any slot."""
        with self._lock:
            return {name: hop.group for name, hop in self._hops.items()}

    def group(self, name: str) -> int:
        """The group of a hop; `groups.ANY` if it may use any slot."""
        with self._lock:
            return self._known(name).group

    def assign(self, groups: Mapping[str, int]) -> None:
        """Put hops into groups, all at once. A hop in no group may use any slot.

        Hops that are not named, or not registered, stay as they are. A batch that runs keeps its slot to its end.
        """
        with self._lock:
            self._tick()
            for name in groups.keys() & self._hops.keys():
                self._hops[name].group = groups[name]
            self._groups = regrouped(self._groups, self._hops.values(), self._holding.values(), self._seats)
        self._dispatch()

    @property
    def stats(self) -> GateStats:
        """The gate's counts and times at this moment."""
        with self._lock:
            now, count = self._tick(), self.group_count
            hops = {name: hop.stats(now, count) for name, hop in self._hops.items()}
            every = [self._past.stats(now, count), *hops.values()]
            groups = () if self._groups is None else self._groups.stats(hops, self._holding, now)
            return GateStats(
                self.slots,
                tuple(self._waiting),
                tuple(self._holding),
                sum(hop.grants for hop in every),
                sum(hop.aged for hop in every),
                sum(hop.waited for hop in every),
                sum(hop.held for hop in every),
                self._idle,
                hops,
                groups,
            )

    def _seat(self, seats: Seats) -> None:
        with self._lock:
            self._tick()
            self._seats = seats
            if self._groups is not None:
                self._groups.follow(seats, self._holding.values())
        self._dispatch()

    def _enter(self, name: str, grant: Callable[[], None], gone: Callable[[], None] | None = None) -> Turn | None:
        with self._lock:
            hop = self._hops.get(name)
            if hop is None or hop.turn is not None:
                return None
            turn = hop.turn = self._waiting[name] = Turn(hop, grant, gone, self._tick())
        self._dispatch()
        return turn

    def _end(self, turn: Turn) -> float:
        """End a turn; return the seconds for which it held a slot. Call with the lock held."""
        now, hop = self._tick(), turn.hop
        hop.turn = None
        if self._waiting.pop(hop.name, None) is not None:
            hop.waited += now - turn.offered
            return 0.0
        del self._holding[hop.name]
        hop.tried = True
        hop.held += now - turn.granted
        if self._groups is not None:
            self._groups.ended(turn, now)
        return now - turn.granted

    def _dispatch(self) -> None:
        """Grant slots until no hop can have one. Call without the lock.

        If a `grant` releases or offers in the same thread, the loop that called this `grant` makes the next grants:
        with recursion, a thousand hops would be a thousand calls deep.
        """
        if getattr(self._here, "dispatching", False):
            return
        self._here.dispatching = True
        turn: Turn | None = None
        interrupt: BaseException | None = None
        try:
            while (turn := self._choose(turn)) is not None:
                try:
                    turn.grant()
                    turn.hop.failing = False
                except BaseException as error:
                    self._take_back(turn, error)
                    if not isinstance(error, Exception):
                        interrupt = error
        finally:
            self._here.dispatching = False
        if interrupt is not None:
            raise interrupt

    def _choose(self, before: Turn | None) -> Turn | None:
        """Choose the next turn and give it a slot; None if there is none. `before` is the turn granted last."""
        with self._lock:
            now = self._tick()
            if before is not None and before.hop.turn is before:
                self._idle += now - before.granted  # the time that the grant took
            if self._groups is not None and not self._opened:
                line = Line(self._waiting, self._holding, self._best, self.express, self.patience, now)
                found = self._groups.choose(line, self._aged_every)
                return None if found is None else self._granted(found[0], now, aged=found[1])
            free = math.inf if self._opened else self.slots - len(self._holding)
            best, rank = self._best(self._waiting) if free > -self.express else (None, -math.inf)
            if best is None:
                return None
            oldest = next(iter(self._waiting.values()))
            due = self._since_aged >= self._aged_every - 1 and now - oldest.offered > self.patience
            if free <= 0 and (due or rank <= self._best(self._holding)[1]):
                return None  # a hop that is due waits for an ordinary slot, and express grants must not delay it
            aged = due and oldest is not best
            turn = oldest if aged else best
            self._since_aged = 0 if aged else self._since_aged + 1
            return self._granted(turn, now, aged=aged)

    def _granted(self, turn: Turn, now: float, *, aged: bool) -> Turn:
        hop = turn.hop
        self._holding[hop.name] = self._waiting.pop(hop.name)
        turn.granted = now
        hop.grants += 1
        hop.aged += aged
        hop.waited += now - turn.offered
        return turn

    def _best(self, turns: Mapping[str, Turn]) -> tuple[Turn | None, float]:
        """Return the first turn with the highest rank, and that rank. Hops without a rank count as in `Gate`."""
        lowest = self._lowest_rank()
        best, highest = None, -math.inf
        for turn in turns.values():
            hop = turn.hop
            rank = hop.rank
            if rank != rank:
                rank = lowest if hop.tried else math.inf
            if best is None or rank > highest:
                best, highest = turn, rank
        return best, highest

    def _lowest_rank(self) -> float:
        if self._lowest is None:
            self._lowest = min((hop.rank for hop in self._hops.values() if hop.rank == hop.rank), default=-math.inf)
        return self._lowest

    def _tick(self) -> float:
        """Add the time since the last call in which slots were free while hops waited; return the current time.

        Call it with the lock held, before slots or turns change.
        """
        now = self._now()
        busy = len(self._holding) if self._groups is None else self._groups.busy(self._holding)
        lost = min(self.slots - busy, len(self._waiting))
        if lost > 0:
            self._idle += lost * (now - self._looked)
        self._looked = now
        return now

    def _take_back(self, turn: Turn, error: BaseException) -> None:
        """Take the slot back after a failed grant. Logged once, until a grant of the hop works again."""
        hop = turn.hop
        with self._lock:
            if hop.turn is turn:
                self._end(turn)
            told, hop.failing = hop.failing, True
        if not told and isinstance(error, Exception):
            log.warning(
                "hop '%s' could not start its batch: %s", hop.name, error, exc_info=error, extra={"hop": hop.name}
            )

    def _check_granted(self, turn: Turn, timeout: float | None) -> None:
        name = turn.hop.name
        with self._lock:
            if turn.hop.turn is not turn:
                raise TargetGone(f"'{name}' was withdrawn while it waited for its turn", where="gate")
            if math.isnan(turn.granted):
                remedy = "wait longer, use more slots, or smaller batches"
                raise EngineError(f"'{name}' had no turn within {timeout} seconds", where="gate", remedy=remedy)

    def _known(self, name: str) -> Hop:
        hop = self._hops.get(name)
        if hop is None:
            remedy = "register it when it starts"
            raise TargetGone(f"'{name}' is not registered at the gate", where="gate", remedy=remedy)
        return hop


def checked_count(value: object, what: str, least: int) -> int:
    """Return a whole number of at least `least`; anything else raises a ConfigError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{what} can't be {value!r}", where="gate", remedy=f"use a whole number, {least} or more")
    return value
