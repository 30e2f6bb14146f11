"""How many rows a hop may take at once, so that a batch holds its slot for about the period (Haren's b, from P).

It knows rows and seconds of past batches, not what they did. Haren leaves b to the user: small batches switch often and
pay their fixed part each time, large ones make urgent hops wait (section 5). Here it follows from the measured cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from treadle.errors import ConfigError


class Cost(NamedTuple):
    """What a batch is expected to hold its slot for: `fixed + per_row * rows` seconds."""

    fixed: float
    per_row: float


NOISE = 0.2
"""By which share the seconds of like batches differ."""
WANDERS = Cost(0.02, 0.05)
"""By which share of a batch's seconds the fixed part changes from one batch to the next, and the cost of a row of
its own. The fixed part is Spark's and stays, that of a row is the data's."""
SURPRISE = 3.0
"""Standard deviations from what was expected, beyond which the cost has changed."""
BLAMED = Cost(0.2, 1.0)
"""How much of a surprise each of both may be the cause of."""
FIRST_FIXED = 0.05
"""Seconds of a first batch that are taken for fixed, if they are not more than half: Spark's own part of a batch."""
UNSURE = 0.1
"""Share of a batch's seconds that the fixed part must be known to. Until then, some batches are of another size."""
PROBE_EVERY = 4
"""One in so many."""
PROBE = 4
"""So many times smaller; where there is nothing to divide, twice as large."""
RECENT = 0.2
"""What a new batch counts in the means."""
SLOWEST_FALL = 0.1
"""To which share the cost of a row may fall at once, so that it stays above nothing."""
GROWTH = 4
"""How far beyond the largest batch seen a batch may go."""


class BatchSizer:
    """Rows per batch by hop, for a slot held for `period` seconds.

    Where the fixed part of a batch would be more than `overhead_share` of that, the batch may hold it longer, up to
    `longest` (4 periods unless told). A hop begins with `first` rows and goes at most 4 times beyond what it has had.
    One hop is to be observed by one thread at a time; different hops may be by several.
    """

    def __init__(
        self,
        period: float = 0.2,
        overhead_share: float = 0.1,
        smallest: int = 1,
        largest: int = 1_000_000,
        *,
        longest: float | None = None,
        first: int = 1000,
    ) -> None:
        self.period = period
        self.overhead_share = overhead_share
        self.smallest = smallest
        self.largest = largest
        self.longest = 4 * period if longest is None else longest
        self.first = first
        self._fits: dict[str, _Fit] = {}
        self._check()

    def observe(self, name: str, rows: int, seconds: float) -> None:
        """A batch of the hop had so many rows and held its slot for so long. What can't be is left out."""
        fit = self._fits.get(name)
        if rows < (fit is None) or not 0 < seconds < math.inf:  # a first batch without rows tells nothing of them
            return
        self._fits[name] = _first_fit(rows, seconds) if fit is None else _next_fit(fit, rows, seconds)

    def rows(self, name: str) -> int:
        """How many rows its next batch may have."""
        fit = self._fits.get(name)
        wanted: float = self.first
        if fit is not None:
            wanted = _probed(self._variable(fit) / fit.cost.per_row, fit)
            wanted = min(wanted, max(GROWTH * fit.reach, self.first))
        return int(min(max(wanted, self.smallest), self.largest))

    def cost(self, name: str) -> Cost | None:
        """What its batches are expected to cost; None if there was none yet."""
        fit = self._fits.get(name)
        return None if fit is None else fit.cost

    def forget(self, name: str) -> None:
        """The hop has ended, or will be another one. Harmless if it is not known."""
        self._fits.pop(name, None)

    def _variable(self, fit: _Fit) -> float:
        """The seconds left for rows. The hold is made longer only as far as the fixed part is known.

        Where that fills even the longest hold, they are half a period: a batch of hardly any row helps nobody.
        """
        fixed = fit.cost.fixed
        sure = max(fixed - math.sqrt(fit.fixed_var), 0.0)
        hold = min(max(self.period, sure / self.overhead_share), self.longest)
        return max(hold - fixed, self.period / 2)

    def _check(self) -> None:
        wrong = {
            f"period can't be {self.period}": not 0 < self.period < math.inf,
            f"longest can't be {self.longest}": not self.period <= self.longest < math.inf,
            f"overhead_share can't be {self.overhead_share}": not 0 < self.overhead_share <= 1,
            f"rows can't be from {self.smallest} to {self.largest}": not 1 <= self.smallest <= self.largest,
            f"first can't be {self.first}": self.first < 1,
        }
        for message in (message for message, is_so in wrong.items() if is_so):
            remedy = "use seconds above 0, longest not below the period, a share up to 1, and 1 row or more"
            raise ConfigError(message, where="batch size", remedy=remedy)


class _Fit(NamedTuple):
    """What is known of one hop. It is replaced as a whole, so it needs no lock."""

    cost: Cost
    fixed_var: float
    both_var: float
    per_row_var: float
    batches: int
    mean_rows: float
    mean_seconds: float
    reach: int
    """The largest batch so far."""


def _probed(wanted: float, fit: _Fit) -> float:
    """Batches of one size can't tell what is fixed: while that is not known, some are of another size."""
    if fit.batches % PROBE_EVERY != 1 or fit.fixed_var <= (UNSURE * fit.mean_seconds) ** 2:
        return wanted
    return wanted / PROBE if fit.mean_rows >= 2 * PROBE else 2 * max(wanted, 1.0)


def _first_fit(rows: int, seconds: float) -> _Fit:
    """A first batch says how long it took, not how that splits."""
    fixed = min(FIRST_FIXED, seconds / 2)
    cost = Cost(fixed, (seconds - fixed) / rows)
    return _next_fit(_Fit(cost, (seconds / 2) ** 2, 0.0, cost.per_row**2, 0, rows, seconds, rows), rows, seconds)


def _next_fit(fit: _Fit, rows: int, seconds: float) -> _Fit:
    """A Kalman filter of the line's two numbers: least squares in which old batches fade as the cost may have changed.

    Unlike sums that fade, it forgets nothing of the split while all batches are of one size, which say nothing of it.
    """
    fixed, per_row = fit.cost
    expected = fixed + per_row * rows
    off = seconds - expected
    noise = (NOISE * max(seconds, expected)) ** 2
    fixed_var = fit.fixed_var + (WANDERS.fixed * expected) ** 2
    per_row_var = fit.per_row_var + (WANDERS.per_row * per_row) ** 2
    spread = fixed_var + (2 * fit.both_var + per_row_var * rows) * rows + noise
    if off * off > SURPRISE**2 * spread:
        fixed_var += (BLAMED.fixed * off) ** 2
        per_row_var += (BLAMED.per_row * off / max(rows, 1)) ** 2
    to_fixed = fixed_var + fit.both_var * rows
    to_per_row = fit.both_var + per_row_var * rows
    spread = to_fixed + to_per_row * rows + noise
    return _Fit(
        Cost(
            max(fixed + to_fixed / spread * off, 0.0),
            max(per_row + to_per_row / spread * off, SLOWEST_FALL * per_row),
        ),
        fixed_var - to_fixed * to_fixed / spread,
        fit.both_var - to_fixed * to_per_row / spread,
        per_row_var - to_per_row * to_per_row / spread,
        fit.batches + 1,
        fit.mean_rows + RECENT * (rows - fit.mean_rows),
        fit.mean_seconds + RECENT * (seconds - fit.mean_seconds),
        max(fit.reach, rows),
    )
