"""Hops that ask before each batch: parked in the JVM until the gate grants them a number of rows.

The JVM tells when a hop is parked; the gate says whose turn it is; a grant goes back to the JVM. Who is how urgent, the
gate knows; hops that don't ask are `outside`'s business.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.decide.batch import BatchSizer
from treadle.enforce.gate import Gate
from treadle.errors import EngineError
from treadle.pipelines.hop import Hop, State

ALL_ROWS = 2**53
"""No limit: as many as there are."""


@dataclass(frozen=True)
class Turns:
    """`hops` are by their name in the JVM; `sizer` says how many rows a batch should have, None: all there are."""

    gate: Gate
    stopping: threading.Event
    jvm: Any
    sizer: BatchSizer | None
    pool: Callable[[Hop], str]
    lock: threading.RLock
    hops: dict[str, Hop] = field(default_factory=dict)

    def parked(self, key: str, report: dict[str, Any]) -> None:
        """The JVM says that a hop waits, and what it has done."""
        hop = self.hops[key]
        with self.lock:
            rows = hop.done(report)
            hop.parked = True
            hop.state = State.IDLE
            if rows and self.sizer is not None:
                self.sizer.observe(hop.id, rows, report["seconds"])
            if hop.output is not None and report["written"]:
                hop.output.refresh()
        if rows:
            self.consider_all(but=hop)  # the gate is to choose among all that could run now
        again = self._ready(hop)
        if self.gate.release(hop.id, again=again) is None and again is not None:
            self.gate.offer(hop.id, again)

    def consider_all(self, but: Hop | None = None) -> None:
        """Something has changed: offer whoever could run now."""
        for hop in list(self.hops.values()):
            if hop is not but and hop.parked:
                grant = self._ready(hop)
                if grant is not None:
                    self.gate.offer(hop.id, grant)

    def halt(self) -> None:
        """No more grants: who waits stays parked, so that only batches that run now are waited for."""
        for hop in list(self.hops.values()):
            if hop.parked:
                self.gate.withdraw(hop.id)

    def admit(self, hop: Hop, rows: str) -> None:
        """Let it run, with so many rows of each input (name=rows, with commas)."""
        with self.lock:
            hop.parked = False
            hop.state = State.RUNNING
        if not self.jvm.treadle.Turn.admit(hop.key, rows, self.pool(hop)):
            raise EngineError("is not parked in the JVM", where=f"hop '{hop.name}'", remedy="it has just ended")

    def _ready(self, hop: Hop) -> Callable[[], None] | None:
        """What lets the hop run, if it is parked, has something to read and room for what it writes."""
        if self.stopping.is_set() or not hop.parked:
            return None
        if hop.blocked:
            hop.state = State.BLOCKED
            return None
        if not any(backlog.rows for backlog in hop.backlogs()):
            return None
        hop.state = State.WAITING
        return lambda: self._grant(hop)

    def _grant(self, hop: Hop) -> None:
        """So many rows of each input, in proportion to what waits there."""
        backlogs = hop.backlogs()
        waiting = sum(backlog.rows for backlog in backlogs)
        most = ALL_ROWS if self.sizer is None else self.sizer.rows(hop.id)
        share = min(1.0, most / waiting) if waiting else 0.0
        rows = ",".join(
            f"{channel.name}={max(1, round(backlog.rows * share)) if most < waiting else ALL_ROWS}"
            for channel, backlog in zip(hop.inputs, backlogs, strict=True)
            if backlog.rows
        )
        self.admit(hop, rows)
