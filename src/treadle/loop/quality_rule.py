"""Quality of data in the loop: measure the queries, decide which part of its rows each keeps, have the rest dropped.

These are the same three steps as for priorities. What measures and drops is a `Quality`: one for pipelines, one for
applications that run already. Stream-Economics section 5.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from treadle.loop.asker import Asker
from treadle.loop.trouble import Trouble

if TYPE_CHECKING:  # it needs compiled code, which takes as long to load as all the rest
    from treadle.decide.quality import Controller, Decision, Measured

SLIVER = 1e-6
"""The part of a period by which a step may start early."""
ENDING = 30.0
"""The most seconds to wait for the end of a step."""


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
        """What decides, for the queries that there are now."""

    def measure(self, now: float, /) -> Measured | None:
        """What the controller decides on; None if there is nothing to decide now."""

    def carry_out(self, decision: Decision, now: float, /) -> None:
        """Keep that part of the rows of each query, and drop the rest."""

    def keep_all(self) -> None:
        """Drop nothing until the next decision. Called after a failure."""


class QualityRule:
    """Keeps promises at work: it calls `quality` each period. While that fails, nothing is dropped."""

    def __init__(self, quality: Quality, longest_pause: float) -> None:
        self.due = -math.inf
        self.trouble = Trouble(
            "keeping promises", quality.period, longest_pause, "all rows are kept until it works again", traces=True
        )
        self._quality = quality
        self._asker: Asker[bool] | None = None
        self._asked = False

    def round(self, now: float) -> None:
        """Measure, decide and carry out, if that is due and the last time is over."""
        if self._asked:
            assert self._asker is not None
            self._asked = self._asker.answer(0.0) is None
        period = self._quality.period
        if self._asked or now < self.due - SLIVER * period or self.trouble.waits(now):
            return
        missed = math.floor((now - self.due) / period) if math.isfinite(self.due) else 0
        self.due = (self.due if math.isfinite(self.due) else now) + (missed + 1) * period
        if self._quality.in_process:
            self._step(now)
        else:
            self._asker = self._asker or Asker("treadle-quality")
            self._asker.ask(lambda: self._step(now))
            self._asked = True

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
