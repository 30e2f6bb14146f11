"""Quality of data in the loop: measure the queries, decide which share of its rows each keeps, drop the other rows.

These are the same three steps as for priorities. A `Quality` measures and drops: there is one for pipelines, and one
for applications that run already. Stream-Economics section 5.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from treadle.loop.rule import SLIVER
from treadle.loop.trouble import Trouble
from treadle.loop.watch import Asker

if TYPE_CHECKING:  # it needs compiled code, which takes as long to load as all the rest
    from treadle.decide.quality import Controller, Decision, Measured

ENDING = 30.0
"""Seconds for which `QualityRule.rest` waits for the present step to end."""


class Quality(Protocol):
    """Measures queries that have promises, and drops their rows."""

    @property
    def period(self) -> float:
        """Seconds between two calls of `measure`."""

    @property
    def in_process(self) -> bool:
        """Whether it answers at once; otherwise it is called in a thread of its own, which delays no round."""

    @property
    def controller(self) -> Controller | None:
        """The controller that decides for the current queries; None if there is none to decide for."""

    def measure(self, now: float, /) -> Measured | None:
        """Return the measurements on which the controller decides; None if there is nothing to decide now."""

    def carry_out(self, decision: Decision, now: float, /) -> None:
        """Keep the decided share of each query's rows, and drop the others."""

    def keep_all(self) -> None:
        """Drop nothing until the next decision. Called after a failure."""


class QualityRule:
    """Runs a step (measure, decide, carry out) in each period of `quality`. While steps fail, nothing is dropped."""

    def __init__(self, quality: Quality, longest_pause: float) -> None:
        self._due = -math.inf
        self.trouble = Trouble(
            "keeping promises", quality.period, longest_pause, "all rows are kept until it works again", traces=True
        )
        self._quality = quality
        self._asker: Asker[bool] | None = None
        self._asked = False

    @property
    def next_due(self) -> float:
        """Loop time of the next step; after a failure, not before its pause has ended."""
        return max(self._due, self.trouble.retry_at)

    def round(self, now: float) -> None:
        """Run a step if one is due; skip it if the last one still runs."""
        period = self._quality.period
        if self._asked:
            assert self._asker is not None
            answer = self._asker.answer(0.0)
            self._asked = answer is None
            if isinstance(answer, BaseException):
                self.trouble.failed(now, answer)
        if now < self.next_due - SLIVER * period:
            return
        begin = self._due if math.isfinite(self._due) else now
        self._due = begin + (math.floor((now - begin) / period + SLIVER) + 1) * period
        if self._asked:
            return
        if self._quality.in_process:
            self._step(now)
        else:
            self._asker = self._asker or Asker("treadle-quality")
            self._asker.ask(lambda: self._step(now))
            self._asked = True

    def pause(self) -> None:
        """Keep all rows until the next call of `round`."""
        self.rest()
        self._quality.keep_all()

    def rest(self) -> None:
        """End the thread, once its present step is done."""
        if self._asker is not None:
            self._asker.dismiss()
            self._asker.thread.join(ENDING)
            self._asker, self._asked = None, False

    def _step(self, now: float) -> bool:
        quality = self._quality
        try:
            seen = quality.measure(now)
            if seen is not None and quality.controller is not None:
                quality.carry_out(quality.controller.cycle(seen), now)
        except Exception as error:
            self.trouble.failed(now, error)
            quality.keep_all()
        else:
            self.trouble.worked()
        return True
