"""Batch sizing: how many rows a hop may take at once, so that a batch holds its slot for about the period (Haren's b).

Haren leaves b to the user: small batches switch often and pay their fixed cost each time, large ones make urgent hops
wait (section 5). Here b follows from the measured cost: the rows and seconds of past batches.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from treadle.durations import seconds
from treadle.errors import ConfigError

_ROWS = re.compile(r"\s*(\d[\d_,]*)\s*rows?\s*")


class Rows(int):
    """Haren's b as the user gives it: a number of rows."""

    def __str__(self) -> str:
        return f"{int(self)} rows"


def batch_size(value: Any, where: str = "", least: float = 0.0) -> float | Rows:
    """Return how long a batch should hold its slot, in seconds, or how many rows it may have, as "1000 rows"."""
    if isinstance(value, Rows):
        return value
    found = _ROWS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return seconds(value, what="batch", where=where, least=least)
    rows = int(re.sub("[_,]", "", found[1]))
    if rows < 1:
        raise ConfigError(f"batch can't be {value!r}", where=where, remedy="use 1 row or more")
    return Rows(rows)


class Cost(NamedTuple):
    """The expected time for which a batch holds its slot: `fixed + per_row * rows` seconds."""

    fixed: float
    per_row: float


NOISE = 0.2
"""Relative standard deviation of the seconds of equal batches."""
WANDERS = Cost(0.02, 0.05)
"""Drift from one batch to the next, as a standard deviation: of the fixed cost, relative to the batch's seconds, and of
the cost of a row, relative to itself. Spark's fixed cost hardly changes; the cost of a row depends on the data."""
SURPRISE = 3.0
"""A difference from the expected seconds of more than this many standard deviations means that the cost has changed."""
BLAMED = Cost(0.2, 1.0)
"""Shares of a `SURPRISE` (the difference in seconds) by which fixed cost and cost of the rows may have changed."""
FIRST_FIXED = 0.05
"""Seconds of a hop's first batch that count as fixed cost, Spark's own part of a batch; at most half of the batch's."""
UNSURE = 0.1
"""The fixed cost is known if its standard deviation is at most this share of a batch's seconds; until then some batches
are probes, of another size than the others."""
PROBE_EVERY = 4
"""One batch of this many is a probe."""
PROBE = 4
"""Factor by which a probe is smaller; where batches are too small to divide, a probe is twice as large."""
RECENT = 0.2
"""Weight of a new batch in the mean rows and the mean seconds of past batches."""
SLOWEST_FALL = 0.1
"""Least share to which one batch may lower the cost of a row, so that the cost stays above 0."""
GROWTH = 4
"""Factor by which a batch may exceed the largest batch so far."""


class BatchSizer:
    """Rows per batch for each hop, so that a batch holds its slot for `period` seconds.

    Where the fixed cost would be more than `overhead_share` of the period, a batch may hold its slot longer, up to
    `longest` (default: 4 periods). A hop begins with `first` rows and exceeds its largest batch at most by a factor of
    4. Only one thread at a time may observe a hop; several threads may observe different hops.
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
        self.count: Rows | None = None
        """The rows of every batch, if the user has set them."""
        self.overhead_share = overhead_share
        self.smallest = smallest
        self.largest = largest
        self.longest = 4 * period if longest is None else longest
        self.first = first
        self._fits: dict[str, _Fit] = {}
        self._check()

    def set_size(self, size: float | Rows) -> None:
        """Change the seconds for which a batch should hold its slot, or the rows that it may have.

        `longest` keeps its ratio to the seconds.
        """
        if isinstance(size, Rows):
            self.count = size
            return
        self.count = None
        self.longest *= size / self.period
        self.period = size

    @property
    def size(self) -> float | Rows:
        """The seconds for which a batch should hold its slot, or its rows if the user has set them."""
        return self.period if self.count is None else self.count

    def observe(self, name: str, rows: int, seconds: float) -> None:
        """Record that a batch of the hop had `rows` rows and held its slot for `seconds`; ignore impossible values."""
        fit = self._fits.get(name)
        if rows < (fit is None) or not 0 < seconds < math.inf:  # a first batch without rows does not show their cost
            return
        self._fits[name] = _first_fit(rows, seconds) if fit is None else _next_fit(fit, rows, seconds)

    def rows(self, name: str) -> int:
        """Return how many rows the hop's next batch may have."""
        if self.count is not None:
            return int(self.count)
        fit = self._fits.get(name)
        wanted: float = self.first
        if fit is not None:
            wanted = _probed(self._variable(fit) / fit.cost.per_row, fit)
            wanted = min(wanted, max(GROWTH * fit.reach, self.first))
        return int(min(max(wanted, self.smallest), self.largest))

    def cost(self, name: str) -> Cost | None:
        """Return the expected cost of the hop's batches; None before its first batch."""
        fit = self._fits.get(name)
        return None if fit is None else fit.cost

    def forget(self, name: str) -> None:
        """Drop what was learnt of a hop that has ended or is replaced; an unknown name is ignored."""
        self._fits.pop(name, None)

    def _variable(self, fit: _Fit) -> float:
        """Return the seconds of a batch that are left for rows, at least half a period.

        A batch may exceed the period only as much as the certain part of the fixed cost requires.
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
    """The fitted cost of one hop. It is replaced as a whole, so it needs no lock."""

    cost: Cost
    fixed_var: float
    both_var: float
    per_row_var: float
    batches: int
    mean_rows: float
    mean_seconds: float
    reach: int
    """Rows of the largest batch so far."""


def _probed(wanted: float, fit: _Fit) -> float:
    """Return `wanted`, or the size of a probe while the fixed cost is uncertain: batches of one size can't show it."""
    if fit.batches % PROBE_EVERY != 1 or fit.fixed_var <= (UNSURE * fit.mean_seconds) ** 2:
        return wanted
    return wanted / PROBE if fit.mean_rows >= 2 * PROBE else 2 * max(wanted, 1.0)


def _first_fit(rows: int, seconds: float) -> _Fit:
    """Fit a first batch, which shows its seconds but not how they split into fixed cost and cost of rows."""
    fixed = min(FIRST_FIXED, seconds / 2)
    cost = Cost(fixed, (seconds - fixed) / rows)
    return _next_fit(_Fit(cost, (seconds / 2) ** 2, 0.0, cost.per_row**2, 0, rows, seconds, rows), rows, seconds)


def _next_fit(fit: _Fit, rows: int, seconds: float) -> _Fit:
    """Update both costs by a Kalman filter: least squares in which old batches count less, since costs may change.

    While all batches have one size, they don't show how their seconds split into both costs. Unlike fading sums, the
    filter then keeps the split that earlier batches showed.
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
