"""Transforms priorities to the numbers of a knob: Lachesis section 5.3, its normalisation function F, and more scales.

A scale has the range, direction and default of its knob. Rows of several engines are passed in one array, so that they
share one scale. NaN is unknown and stays NaN: the row is left unchanged.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.values import Spacing

Place = Callable[[Floats, Spacing], Floats]

NICE_STEP = 1.25
"""The kernel gives a thread this many times the CPU of a thread with a nice one higher (Lachesis section 2)."""
RUNG_STEP = 2.0
"""Each pool of a ladder has twice the weight of the one below it."""
BEYOND = 0.1
"""Distance of an infinite priority from the nearest finite one, as a share of the spread of the finite ones."""


@dataclass(frozen=True)
class Scale:
    """The numbers of a knob. All results are in `low`..`high`, and a more urgent row never gets a less urgent number.

    Priorities that are all equal give no reason for a change, so they get `neutral`, the system's own default.
    """

    name: str
    help: str
    low: float
    high: float
    neutral: float | None
    """None for a scale without such a default, such as ranks and thread numbers."""
    place: Place = field(repr=False, compare=False)
    """Maps known priorities, not all equal if there is a `neutral`, to numbers before rounding and clipping."""
    decimals: int | None = 0
    rising: bool = True
    """True if the larger number is more urgent."""

    def apply(self, priority: Floats, spacing: Spacing = "linear") -> Floats:
        if len(priority) == 0:
            return priority
        low, high = _ends(priority)
        if math.isnan(low):
            known = ~np.isnan(priority)
            result = np.full(priority.shape, np.nan)
            result[known] = self.apply(priority[known], spacing)
            return result
        if self.neutral is not None and low == high:
            return np.full(priority.shape, float(self.neutral))
        return self._numbers(priority, spacing)

    def _numbers(self, priority: Floats, spacing: Spacing) -> Floats:
        """Return numbers for known priorities. On few rows `rint` and `maximum` are faster than `round` and `clip`."""
        placed = self.place(priority, spacing)
        if self.decimals is not None:
            placed = np.rint(placed) if self.decimals == 0 else np.round(placed, self.decimals)
        return np.minimum(np.maximum(placed, self.low), self.high) + 0.0  # no negative zero in logs


def unit() -> Scale:
    """Min-max to 0..1, on logarithms for log spacing: the basis of most other scales."""
    return Scale("unit", "0..1, min-max", 0.0, 1.0, 0.5, _min_max, decimals=None)


def nice(low: float = -20, high: float = 19) -> Scale:
    """Niceness. Without CAP_SYS_NICE the nice of a thread can't be lowered, so most users need `low=0`."""
    _check_limits("nice", low, high, (-20, 19))
    return Scale(
        "nice",
        "thread niceness on the kernel's ladder, lower is more urgent",
        low,
        high,
        min(max(0.0, low), high),
        lambda priority, spacing: low + _steps_below_top(priority, spacing, NICE_STEP, high - low),
        rising=False,
    )


def nice_of_shares(low: float = -20, high: float = 19) -> Scale:
    """Niceness for priorities that are shares: twice the priority is twice the CPU, to the nearest step of nice.

    A priority of 1 is nice 0, the nice of most threads of the machine; all are shifted if some would leave the range.
    Ratios that are wider than the range are compressed into it.
    """
    return replace(nice(low, high), place=lambda priority, _: _steps_around_one(priority, low, high))


def shares(low: float = 2, high: float = 262144) -> Scale:
    """`cpu.shares` of cgroup v1, in proportion to the priorities."""
    return _proportional_scale("shares", "cpu.shares of cgroup v1", low, high, 1024, (2, 262144))


def weight(low: float = 1, high: float = 10000) -> Scale:
    """`cpu.weight` of cgroup v2, in proportion to the priorities."""
    return _proportional_scale("weight", "cpu.weight of cgroup v2", low, high, 100, (1, 10000))


def rt(low: float = 1, high: float = 99) -> Scale:
    """Real-time priority. Neutral is the lowest: any real-time thread is ahead of the normal ones already.

    With a `low` of 0 the least urgent stay ordinary threads.
    """
    _check_limits("rt", low, high, (0, 99))
    return Scale(
        "rt",
        "real-time priority of SCHED_RR and SCHED_FIFO",
        low,
        high,
        low,
        lambda priority, spacing: low + _min_max(priority, spacing) * (high - low),
    )


def slices(low: float = 0.0001, high: float = 0.1) -> Scale:
    """A thread's time slice in seconds, to the nanosecond, spaced by equal factors from the longest to the shortest.

    More urgent is shorter: the kernel's EEVDF gives a shorter slice an earlier deadline, at an equal share of the CPU.
    """
    _check_limits("slice", low, high, (0.0001, 0.1), whole=False)
    return Scale(
        "slice",
        "time slice in seconds, shorter is more urgent (EEVDF)",
        low,
        high,
        min(max(0.003, low), high),
        lambda priority, spacing: high * np.exp(_min_max(priority, spacing) * math.log(low / high)),
        decimals=9,
        rising=False,
    )


def rank() -> Scale:
    """Dense rank: 0 for the least urgent, one more for each higher priority. Only equal priorities get equal ranks."""
    return Scale("rank", "dense rank from 0, higher is more urgent", 0.0, math.inf, None, _dense_rank)


def rung(pools: float = 6) -> Scale:
    """Index of one of `pools` pools with weights 1, 2, 4, and so on. Neutral is the first: 1 is the default weight."""
    if not 1 <= pools <= 31 or pools % 1:
        raise ConfigError(f"pools can't be {pools:g}", where="scale 'rung'", remedy="use a whole number from 1 to 31")
    return Scale(
        "rung",
        "index into a ladder of pools with weights 1, 2, 4, ...",
        0.0,
        pools - 1,
        0.0,
        lambda priority, spacing: pools - 1 - _steps_below_top(priority, spacing, RUNG_STEP, pools - 1),
    )


def owner() -> Scale:
    """Priorities unchanged: for policies that return thread numbers instead of priorities."""
    return Scale(
        "owner", "as it is, for thread numbers", -math.inf, math.inf, None, lambda priority, _: priority, decimals=None
    )


def create(spec: str) -> Scale:
    """Create a scale from its name and options: `nice`, `nice:low=0,high=19`, `rung:pools=4`."""
    name, _, rest = spec.partition(":")
    where = f"scale '{spec}'"
    make = _MAKERS.get(name.strip())
    if make is None:
        raise ConfigError(f"unknown scale '{name.strip()}'", where=where, remedy=f"known: {', '.join(_MAKERS)}")
    known = tuple(inspect.signature(make).parameters)
    options: dict[str, float] = {}
    for part in rest.split(",") if rest.strip() else ():
        option, _, text = (piece.strip() for piece in part.partition("="))
        if option not in known:
            remedy = f"known: {', '.join(known)}" if known else "it has no options"
            raise ConfigError(f"unknown option '{option}'", where=where, remedy=remedy)
        if option in options:
            raise ConfigError(f"option '{option}' is given twice", where=where, remedy="give it once")
        try:
            options[option] = float(text)
        except ValueError:
            raise ConfigError(
                f"option '{option}' is '{text}', which is not a number", where=where, remedy=f"write it as {option}=5"
            ) from None
    return make(**options)


def _min_max(priority: Floats, spacing: Spacing) -> Floats:
    """Min-max, least urgent 0 and most urgent 1 (Lachesis section 5.3), on logarithms for log spacing.

    Infinite values are a little beyond the finite ones; the logarithm of a value that is not positive is minus
    infinity.
    """
    heights = _logs(priority) if spacing == "log" else priority
    low, high = _ends(heights)
    if low == high:  # none is positive, or they differ by less than a logarithm shows
        heights = priority
    finite = heights[np.isfinite(heights)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if math.isinf(high - low):  # the spread of the largest floats overflows
        heights, low, high = heights / 2, low / 2, high / 2
    spread = high - low
    inside = (heights - low) / (spread or 1.0)
    lowest, highest = heights == -math.inf, heights == math.inf
    below, above = BEYOND * bool(lowest.any()), BEYOND * bool(highest.any())
    result: Floats = (inside + below) / (bool(spread) + below + above)
    result[lowest] = 0.0
    result[highest] = 1.0
    return result


def _steps_below_top(priority: Floats, spacing: Spacing, base: float, steps: float) -> Floats:
    """Return how many steps (factors of `base` in CPU) each priority is below the highest; 0..`steps` when clipped.

    Lachesis section 5.3: F(x) = n_max + (log p_max - log x) / log base for logarithmic priorities, which keeps their
    ratios; min-max where the ratios exceed the range, and for linear priorities. An infinite one is a step above p_max.
    """
    if spacing == "log":
        logs, step = _logs(priority), math.log(base)
        bottom, top = _ends(logs)
        if math.isinf(bottom) or math.isinf(top):
            beyond = step if top == math.inf else 0.0
            finite = logs[np.isfinite(logs)]
            bottom, top = finite.min(initial=math.inf), finite.max(initial=-math.inf) + beyond
        if -math.inf < top - bottom <= steps * step:
            return (top - logs) / step
    return steps * (1.0 - _min_max(priority, spacing))


def _steps_around_one(priority: Floats, low: float, high: float) -> Floats:
    """Return nice values: 0 for a priority of 1, all shifted by no more than is needed to fit into `low`..`high`."""
    steps = -_logs(priority) / math.log(NICE_STEP)
    finite = steps[np.isfinite(steps)]
    if len(finite) == 0 or float(np.ptp(finite)) > high - low:
        return low + (high - low) * (1.0 - _min_max(priority, "log"))
    least, most = float(finite.min()), float(finite.max())
    return steps + min(max(0.0, low - least), high - most)


def _proportional(priority: Floats, spacing: Spacing, low: float, high: float, neutral: float) -> Floats:
    """Return numbers in proportion to the priorities, with their logarithmic middle at `neutral` if the range allows.

    Ratios too wide for the range are compressed into it by min-max of the logarithms; a priority of zero gets `low`.
    Linear priorities that include negative ones have no ratios, so they are spread evenly over the range.
    """
    logs = _logs(priority)
    finite = logs[np.isfinite(logs)]
    if len(finite) == 0 or (spacing == "linear" and priority.min() < 0):
        return low + _min_max(priority, spacing) * (high - low)
    bottom, top = float(finite.min()), float(finite.max())
    room = math.log(high) - math.log(low)
    if top - bottom > room:
        return low * np.exp(_min_max(priority, "log") * room)
    shift = math.log(neutral) - (bottom + top) / 2
    shift = min(max(shift, math.log(low) - bottom), math.log(high) - top)
    return np.exp(logs + shift)


def _proportional_scale(
    name: str, text: str, low: float, high: float, default: float, allowed: tuple[float, float]
) -> Scale:
    _check_limits(name, low, high, allowed)
    neutral = min(max(default, low), high)
    return Scale(
        name,
        f"{text}, in proportion to the priorities",
        low,
        high,
        neutral,
        lambda priority, spacing: _proportional(priority, spacing, low, high, neutral),
    )


def _dense_rank(priority: Floats, _: Spacing) -> Floats:
    """Same as `values.dense_rank`, but twice as fast, since it is for one dimension only."""
    return np.unique(priority, return_inverse=True)[1].astype(np.float64)


def _ends(values: Floats) -> tuple[float, float]:
    """Return the least and the greatest value; NaN if any is NaN. On few values much faster than `min` and `max`."""
    return values.item(values.argmin()), values.item(values.argmax())


def _logs(priority: Floats) -> Floats:
    """Return natural logarithms, minus infinity for values that are not positive."""
    if priority[priority.argmin()] > 0:
        return np.log(priority)
    positive = priority > 0
    return np.log(priority, where=positive, out=np.full(priority.shape, -math.inf))


def _check_limits(name: str, low: float, high: float, allowed: tuple[float, float], *, whole: bool = True) -> None:
    least, most = allowed
    if not least <= low <= high <= most or (whole and (low % 1 or high % 1)):
        raise ConfigError(
            f"limits can't be {low:g}..{high:g}",
            where=f"scale '{name}'",
            remedy=f"use {'whole ' if whole else ''}numbers from {least:g} to {most:g}, the lower one first",
        )


_MAKERS: Mapping[str, Callable[..., Scale]] = {
    "unit": unit,
    "nice": nice,
    "shares": shares,
    "weight": weight,
    "rt": rt,
    "slice": slices,
    "rank": rank,
    "rung": rung,
    "owner": owner,
}

SCALES: Mapping[str, Scale] = {name: make() for name, make in _MAKERS.items()}
