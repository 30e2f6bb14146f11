"""Hops that wait in their source before each batch: parked in the JVM until the gate grants them a number of rows.

The JVM reports parked hops, the gate chooses the next one by rank, and the grant is sent to the JVM. Hops that can't
wait in their source are held back by `foreach_batch_gate`.
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
"""A batch with this limit reads all rows that wait."""
CHEAP = 0.3
"""A check for timeouts needs no slot if the last one took less than these seconds, including Spark's pause after it."""
FIXED_SHARE = 0.25
"""Share of the cores that the fixed costs of batches may use while hops wait. It limits how often hops run a batch."""
WORTH = 2.0
"""A batch runs without delay if its rows cost at least this many times its fixed cost."""
LONGEST_PAUSE = 1.0
URGENT = 0.25
"""Share of the pause that a hop of higher priority lingers; any hop lingers at most this share of its latency goal."""


@dataclass(eq=False)
class ParkedHops:
    """The hops that wait in their source, by name in the JVM. `sizer` learns batch costs and sets the rows of a batch.

    Each batch has a fixed cost. A hop that runs a batch for every few rows takes CPU time from hops of lower rank. So
    while other hops wait, a hop lingers (delays its next batch) until its rows are worth a batch, or until `pause`
    seconds have passed since its last batch. If not `sized`, batches have all waiting rows, and no hop lingers.
    """

    gate: Gate
    stopping: threading.Event
    go_on: Callable[[str, str, str], bool]
    """`Turn.admit` in the JVM, looked up once, since each lookup is a call to the JVM."""
    sizer: BatchSizer
    pool: Callable[[Hop], str]
    lock: threading.RLock
    hops: dict[str, Hop] = field(default_factory=dict)
    pause: float = 0.0
    rest: float = 0.0
    sized: bool = True

    def parked(self, key: str, report: dict[str, Any]) -> None:
        """Handle the JVM's report that a hop is parked: record its last batch, release its slot, and offer it again."""
        hop = self.hops[key]
        again: Callable[[], None] | None = None
        with self.lock:  # first: once the hop counts as parked, another thread may grant it a new slot
            had_slot, hop.has_slot = hop.has_slot, False
        try:
            self._note(hop, report)
            again = self._ready(hop)
        finally:  # also after an error, so that its slot is not lost
            released = self.gate.release(hop.id, again=again) if had_slot else None
            if released is None and again is not None:
                self.gate.offer(hop.id, again)

    def observe(self, hop: Hop, rows: int, seconds: float) -> None:
        """Add a batch to its hop's cost estimate."""
        if hop.batches > 1:  # the first one pays for compiling
            self.sizer.observe(hop.id, rows, seconds)
            cost = self.sizer.cost(hop.id)
            if cost is not None:
                hop.batch_cost, hop.cost = cost

    def rest_of(self, hop: Hop, longest: float) -> float:
        """Seconds between the starts of two batches by which fixed costs stay in `FIXED_SHARE`; at most `longest`."""
        return self._of(hop, min(self.rest, longest))

    @staticmethod
    def _of(hop: Hop, pause: float) -> float:
        return min(pause * (URGENT if hop.urgent else 1.0), URGENT * hop.latency_goal)

    def consider_all(self, but: Hop | None = None, *, thorough: bool = False) -> None:
        """Offer to the gate all parked hops that could run now; with `thorough` check again those that wait there."""
        for hop in list(self.hops.values()):
            if hop is not but and hop.parked and (thorough or hop.state is not State.WAITING):
                self._consider(hop)

    def look(self) -> None:
        """Set how long hops linger, and offer to the gate all hops that have lingered long enough.

        The control thread calls this in each of its rounds.
        """
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
        """Withdraw all waiting hops from the gate, so that a stop waits only for the batches that run now."""
        for hop in list(self.hops.values()):
            if hop.parked or hop.state is State.WAITING:
                self.gate.withdraw(hop.id)

    def forget(self, hop: Hop) -> None:
        """Forget a hop whose query has been stopped for good, with its place at the gate and its costs."""
        self.hops.pop(hop.key, None)
        self.gate.withdraw(hop.id)
        self.sizer.forget(hop.id)

    def tick(self, hop: Hop) -> None:
        """Resume a hop that has no rows, so that Spark checks whether a timeout is due.

        If such checks are short, because no timeout is due, they need no slot.
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
            self.consider_all(but=hop)  # so that the gate chooses among all hops that could run

    def _consider(self, hop: Hop) -> None:
        grant = self._ready(hop)
        if grant is not None:
            self.gate.offer(hop.id, grant)

    def _ready(self, hop: Hop) -> Callable[[], None] | None:
        """Update the hop's state; return its grant function if it is parked and could run now, else None."""
        rows = sum(backlog.rows for backlog in hop.backlogs())
        with self.lock:
            if self.stopping.is_set() or hop.leaving or not hop.parked:
                return None
            if not rows:
                hop.state = State.IDLE
            elif hop.blocked:
                hop.state = State.BLOCKED
            elif hop.state is not State.WAITING:
                hop.state = State.WAITING if self._worth(hop, rows) else State.LINGERING
            return (lambda: self._grant(hop)) if hop.state is State.WAITING else None

    def _worth(self, hop: Hop, rows: int) -> bool:
        """Whether the hop should run now instead of lingering. True if no hop waits, or this hop's cost is unknown."""
        cost = self.sizer.cost(hop.id) if self.sized else None
        if cost is None or not self.gate.crowded or rows * cost.per_row >= WORTH * cost.fixed:
            return True
        return time.monotonic() - hop.well >= self._of(hop, self.pause)

    def _grant(self, hop: Hop) -> None:
        """Resume the hop with a number of rows of each input, in proportion to the input's backlog."""
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
        """Resume a hop that has got a slot; release the slot if the hop is not parked any more, as after its end."""
        if not self._admit(hop, rows, slot=True):
            self.gate.release(hop.id)

    def _admit(self, hop: Hop, rows: str, *, slot: bool) -> bool:
        """Resume the hop in the JVM; False if it is not parked. `rows` limits each input, as "clicks=1000,views=20".

        With `slot` the hop releases its slot at its next report.
        """
        with self.lock:
            if not hop.parked or hop.leaving:
                return False
            hop.parked, hop.has_slot = False, slot
            hop.state = State.RUNNING
        goes_on = bool(self.go_on(hop.key, rows, self.pool(hop)))
        if not goes_on:
            with self.lock:
                hop.has_slot = False
        return goes_on
