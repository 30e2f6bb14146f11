"""Hops that ask before each batch: parked in the JVM until the gate grants them a number of rows.

The JVM tells when a hop is parked; the gate says whose turn it is; a grant goes back to the JVM. Who is how urgent, the
gate knows; hops that don't ask are `outside`'s business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.decide.batch import BatchSizer
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import usable_cores
from treadle.pipelines.hops.hop import Hop, State

ALL_ROWS = 2**53
"""No limit: as many as there are."""
CHEAP = 0.3
"""Seconds up to which a look at timeouts, with Spark's pause after it, needs no slot."""
FIXED_SHARE = 0.25
"""Of the cores, what the fixed parts of batches may take while hops wait for one another: more often is no use."""
WORTH = 2.0
"""A batch whose rows cost so many times its fixed part is worth it at any time."""
LONGEST_PAUSE = 1.0
URGENT = 0.25
"""Share of the pause, and of a latency goal, that a hop lingers which matters more than others do."""


@dataclass(eq=False)
class ParkedHops:
    """`hops` are by their name in the JVM; `sizer` knows what batches cost, and says how many rows one should have.

    Without `sized` a batch has all rows there are, and nobody lingers.

    Each batch has a fixed cost. A hop that runs for every few rows that come takes that from those ranked below it, so
    while others wait it lingers: until its rows are worth a batch, or `pause` seconds have passed since its last one.
    """

    gate: Gate
    stopping: threading.Event
    go_on: Callable[[str, str, str], bool]
    """`Turn.admit` in the JVM. Looked up once: each lookup is a question to the JVM of its own."""
    sizer: BatchSizer
    pool: Callable[[Hop], str]
    lock: threading.RLock
    hops: dict[str, Hop] = field(default_factory=dict)
    pause: float = 0.0
    rest: float = 0.0
    sized: bool = True

    def parked(self, key: str, report: dict[str, Any]) -> None:
        """The JVM says that a hop waits, and what it has done."""
        hop = self.hops[key]
        again: Callable[[], None] | None = None
        with self.lock:  # a hop that had no slot may be granted one by another thread as soon as it counts as parked
            had_slot, hop.has_slot = hop.has_slot, False
        try:
            self._note(hop, report)
            again = self._ready(hop)
        finally:  # whatever went wrong, its slot is not lost
            released = self.gate.release(hop.id, again=again) if had_slot else None
            if released is None and again is not None:
                self.gate.offer(hop.id, again)

    def observe(self, hop: Hop, rows: int, seconds: float) -> None:
        """What a batch took."""
        if hop.batches > 1:  # the first one pays for compiling
            self.sizer.observe(hop.id, rows, seconds)
            cost = self.sizer.cost(hop.id)
            if cost is not None:
                hop.batch_cost, hop.cost = cost

    def rest_of(self, hop: Hop, longest: float) -> float:
        """Seconds from batch to batch of a hop at most, where the CPU is short: fixed parts have their share then."""
        return self._of(hop, min(self.rest, longest))

    @staticmethod
    def _of(hop: Hop, pause: float) -> float:
        return min(pause * (URGENT if hop.urgent else 1.0), URGENT * hop.latency_goal)

    def consider_all(self, but: Hop | None = None, *, thorough: bool = False) -> None:
        """Something has changed: offer whoever could run now. Those that wait at the gate are left out unless asked."""
        for hop in list(self.hops.values()):
            if hop is not but and hop.parked and (thorough or hop.state is not State.WAITING):
                self._consider(hop)

    def look(self) -> None:
        """How long hops linger from now on, and whether those that do have done so long enough. Often."""
        if not self.sized:
            return
        busy, lingering = 0.0, []
        for hop in list(self.hops.values()):
            if hop.state in (State.RUNNING, State.WAITING, State.LINGERING):
                cost = self.sizer.cost(hop.id)
                busy += 0.0 if cost is None else cost.fixed
                if hop.state is State.LINGERING:
                    lingering.append(hop)
        self.rest = busy / (FIXED_SHARE * usable_cores())
        self.pause = min(self.rest, LONGEST_PAUSE)
        for hop in lingering:
            self._consider(hop)

    def halt(self) -> None:
        """No more grants: who waits stays parked, or leaves, so that only batches that run now are waited for."""
        for hop in list(self.hops.values()):
            if hop.parked or hop.state is State.WAITING:
                self.gate.withdraw(hop.id)

    def tick(self, hop: Hop) -> None:
        """Let a hop that has no rows see whether a timeout is due.

        Mostly none is: then Spark does nothing but sleep for a moment, for which it needs no slot.
        """
        if hop.ticked < CHEAP:
            self._admit(hop, "", slot=False)
        else:
            self.gate.offer(hop.id, lambda: self._hand_over(hop, ""))

    def _note(self, hop: Hop, report: dict[str, Any]) -> None:
        with self.lock:
            hop.parked = True
            hop.state = State.IDLE
            rows = hop.record_granted_batch(report)
            if not rows:
                hop.ticked = report["seconds"]
            else:
                self.observe(hop, rows, report["seconds"])
            if hop.output is not None and report["written"]:
                hop.output.refresh()
        if rows or report["written"]:
            self.consider_all(but=hop)  # the gate is to choose among all that could run now

    def _consider(self, hop: Hop) -> None:
        grant = self._ready(hop)
        if grant is not None:
            self.gate.offer(hop.id, grant)

    def _ready(self, hop: Hop) -> Callable[[], None] | None:
        """What lets the hop run, if it is parked, has something worth reading and room for what it writes."""
        rows = sum(backlog.rows for backlog in hop.backlogs())
        with self.lock:
            if self.stopping.is_set() or not hop.parked:
                return None
            if not rows:
                hop.state = State.IDLE
            elif hop.blocked:
                hop.state = State.BLOCKED
            elif hop.state is not State.WAITING:
                hop.state = State.WAITING if self._worth(hop, rows) else State.LINGERING
            return (lambda: self._grant(hop)) if hop.state is State.WAITING else None

    def _worth(self, hop: Hop, rows: int) -> bool:
        """Whether it should run now; where nobody has to wait for it, it should."""
        cost = self.sizer.cost(hop.id) if self.sized else None
        if cost is None or not self.gate.crowded or rows * cost.per_row >= WORTH * cost.fixed:
            return True
        return time.monotonic() - hop.well >= self._of(hop, self.pause)

    def _grant(self, hop: Hop) -> None:
        """So many rows of each input, in proportion to what waits there."""
        backlogs = hop.backlogs()
        waiting = sum(backlog.rows for backlog in backlogs)
        most = self.sizer.rows(hop.id) if self.sized else ALL_ROWS
        share = min(1.0, most / waiting) if waiting else 0.0
        rows = ",".join(
            f"{channel.name}={max(1, round(backlog.rows * share)) if most < waiting else ALL_ROWS}"
            for channel, backlog in zip(hop.inputs, backlogs, strict=True)
            if backlog.rows
        )
        self._hand_over(hop, rows)

    def _hand_over(self, hop: Hop, rows: str) -> None:
        """It has a slot; one that has just ended, or looks at its timeouts at this moment, gives it back."""
        if not self._admit(hop, rows, slot=True):
            self.gate.release(hop.id)

    def _admit(self, hop: Hop, rows: str, *, slot: bool) -> bool:
        """Let it go on in the JVM, with so many rows of each input (name=rows, with commas), if it is parked."""
        with self.lock:
            if not hop.parked:
                return False
            hop.parked, hop.has_slot = False, slot
            hop.state = State.RUNNING
        goes_on = bool(self.go_on(hop.key, rows, self.pool(hop)))
        if not goes_on:
            with self.lock:
                hop.has_slot = False
        return goes_on
