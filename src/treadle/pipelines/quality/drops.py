"""Tracks and logs which share of its rows each sink has received, and since when rows are dropped.

This module only records. `promises` decides how many rows are dropped, and applies users' own accuracy measures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.decide.quality import Flow
from treadle.decide.quality.equations import current_accuracy
from treadle.enforce.shed import EVERYTHING, Count
from treadle.model import Floats

log = logging.getLogger("treadle.pipelines")

MUCH = 0.1
"""A change of the share of rows kept is logged if it is at least this large."""
OVER = 5
"""A period of dropping ends after this many cycles in a row without drops, so that short pauses are not logged."""

Counts = Mapping[str, Count]


@dataclass
class _Period:
    """A period in which rows of a sink are dropped: its start (seconds since 1970) and the counts at its start.

    `logged` is the share of rows kept that was logged last, `whole_for` the present number of cycles without drops.
    """

    since: float
    began: Counts
    logged: float
    whole_for: int = 0


class Drops:
    """The share of its rows that each sink has received, and the periods in which rows were dropped.

    `streams` are the names of the flow's streams, in the flow's order; rows are counted by these names. Sinks in `own`
    were promised an accuracy by a measure of their own, not a share of their rows.
    """

    def __init__(self, flow: Flow, streams: Sequence[str], own: Collection[str] = ()) -> None:
        self._flow = flow
        self._own = own
        self._streams = tuple(streams)
        self._periods: dict[str, _Period] = {}
        self._ever: set[str] = set()
        self._counts: Counts = {}

    def follow(self, flow: Flow) -> None:
        """Report the promises of another flow of the same tasks."""
        self._flow = flow

    def update(self, desired: Floats, counts: Counts) -> None:
        """Record a cycle; log for which sinks dropping begins, changes much or ends.

        `desired` is by task the share of its rows that it should get, `counts` by stream the rows seen and kept so far.
        """
        self._counts = counts
        for task in self._flow.sinks.tolist():
            sink, part = self._flow.tasks[task], float(desired[task])
            period = self._periods.get(sink)
            if part < EVERYTHING and period is None:
                self._ever.add(sink)
                self._periods[sink] = _Period(time.time(), counts, part)
                self._log(
                    logging.WARNING, sink, f"gets {percent(part)} of its rows from now on: there is too little CPU"
                )
            elif period is not None:
                self._go_on(sink, part, period)

    def since(self, sink: str) -> float | None:
        """When the present period of dropping began, in seconds since 1970; None if no rows of the sink are dropped."""
        period = self._periods.get(sink)
        return None if period is None else period.since

    def kept(self, sink: str) -> float:
        """The share of the sink's rows that were not dropped on the way to it, since the start of the run."""
        return self._kept(sink, {})

    def close(self, counts: Counts) -> None:
        """Log for each sink that has lost rows which share of its rows it was given in the whole run."""
        self._counts = counts
        for sink in sorted(self._ever):
            self._log(logging.WARNING, sink, f"was given {percent(self.kept(sink))} of its rows in this run")

    def _go_on(self, sink: str, part: float, period: _Period) -> None:
        period.whole_for = period.whole_for + 1 if part >= EVERYTHING else 0
        if period.whole_for >= OVER:
            del self._periods[sink]
            took, kept = time.time() - period.since, percent(self._kept(sink, period.began))
            self._log(logging.WARNING, sink, f"gets all of its rows again, after {kept} for {took:.0f} s")
        elif part < EVERYTHING and abs(part - period.logged) >= MUCH:
            period.logged = part
            self._log(logging.INFO, sink, f"gets {percent(part)} of its rows now")

    def _kept(self, sink: str, before: Counts) -> float:
        flow, nothing = self._flow, Count(0, 0)
        found = [self._counts.get(name, nothing).since(before.get(name, nothing)).part for name in self._streams]
        local = np.ones(len(flow))
        np.minimum.at(local, flow.end, np.array(found))
        return float(current_accuracy(flow, local)[flow.tasks.index(sink)])

    def _log(self, level: int, sink: str, text: str) -> None:
        promised = f"{percent(self._flow.promises[sink].accuracy)}{' accuracy' if sink in self._own else ''}"
        log.log(level, "sink '%s' %s (promised: %s)", sink, text, promised, extra={"sink": sink})


def percent(part: float) -> str:
    """Format a share as a percentage; less than everything is never shown as 100%."""
    return f"{min(100 * part, 99.9) if part < EVERYTHING else 100:.3g}%"
