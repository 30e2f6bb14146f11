"""Figures of a run under promises: how well promises were kept, and how many rows waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treadle.bench.claims import Claims, at_least, at_most
from treadle.bench.quality.scenarios import Phase, Scenario
from treadle.model import Floats
from treadle.pipelines.quality.placement import SHORT

if TYPE_CHECKING:
    from treadle.workloads.injector import Injector

ERROR = 0.02
RATE_ERROR = 0.01
"""Aims: `ERROR` for the mean difference of the accuracy from the decided one, `RATE_ERROR` for the mean relative error
of the estimated input rate."""
STALL = 2
"""The aim: the maximum number of cycles until the stall of a sink shows in its accuracy."""
PERIODS = 2
"""The aim: the maximum number of cycles in a row for which a sink is below its minimum."""
SETTLES = 10.0
"""Seconds at the start of the overload that don't count in its mean accuracy and the growth of waiting rows."""
LAST = 5
"""Number of cycles at the end of the run over which `last_accuracy` is the mean."""
AT_MINIMUM = 0.03
"""An accuracy up to this much above the minimum counts as the minimum."""
TURN = 0.03
"""The aim: the maximum mean share of its input that a query loses while queries of lower priority could lose more."""
WARM_UP = 60.0
"""Seconds within which a moved query must reach its minimum: as long as Treadle waits for it."""
STANDS, GROWS = 0.05, 0.1
"""Growth of waiting rows as a share of the input: up to `STANDS` it counts as bounded, from `GROWS` on as unbounded."""


class Look(NamedTuple):
    """A sample: waiting rows by channel, rows taken so far by source, core seconds so far of Spark and of others."""

    time: float
    waiting: Mapping[str, int]
    taken: Mapping[str, int]
    spark: float
    others: float
    workers: Mapping[str, tuple[float, float]] = {}
    """By worker of a cluster: the cores used there by the pipeline, and by others."""


class Cycle(NamedTuple):
    """A cycle of the controller: the decided and the measured accuracy by sink, and the input rate by source."""

    time: float
    promised: Mapping[str, float]
    accuracy: Mapping[str, float]
    rates: Mapping[str, float]


class Course:
    """The record of one run: start and rates of each phase, samples, cycles and counts."""

    def __init__(self, began: float, topics: Mapping[str, str]) -> None:
        self.began = began
        self.ended = began
        self.topics = topics
        self.phases: list[tuple[float, Phase, Mapping[str, float]]] = []
        self.looks: list[Look] = []
        self.cycles: list[Cycle] = []
        self.promises: Mapping[str, Mapping[str, Any]] = {}
        self.results: dict[str, Any] = {}
        self.consumed: Mapping[str, int] = {}
        """By sink: the number of rows that it got from the end of the first phase until all rows were processed."""
        self.fed_by: Mapping[str, Sequence[str]] = {}
        """By sink: the topics that feed it."""
        self.stall_cycles = 0
        """Number of cycles until the stall of a sink showed."""
        self.sent: Injector | None = None

    def begin(self, now: float, phase: Phase, rates: Mapping[str, float]) -> None:
        self.phases.append((now, phase, rates))

    @property
    def warm(self) -> float:
        """The end of the first phase."""
        return self.phases[1][0] if len(self.phases) > 1 else self.began

    def overload(self) -> tuple[float, float, float]:
        """Return begin, end and total input rows per second of the last phase with the highest load."""
        highest = max(phase.pressure for _, phase, _ in self.phases)
        ends = [begin for begin, _, _ in self.phases[1:]] + [self.ended]
        return [
            (begin, end, sum(rates.values()))
            for (begin, phase, rates), end in zip(self.phases, ends, strict=True)
            if phase.pressure >= highest - 1e-9
        ][-1]

    def waiting(self) -> tuple[Floats, Floats]:
        """Return the times of all samples, and the number of waiting rows in each."""
        return (
            np.array([look.time for look in self.looks]),
            np.array([sum(look.waiting.values()) for look in self.looks], dtype=np.float64),
        )


def figures(
    scenario: Scenario, able: Mapping[str, float], without: Course, with_: Course, cycle: float
) -> dict[str, Any]:
    """Return all figures, and the claims about them."""
    under, longest = _under(with_)
    rate_errors, late_errors = _rate_errors(with_)
    queries = _queries(with_)
    found: dict[str, Any] = {
        "scenario": scenario.what,
        "capacity_rows_per_s": {source: round(rate, 1) for source, rate in able.items()},
        "load": round(max(phase.pressure for phase in scenario.phases), 2),
        "cycle_s": cycle,
        "cycles": len(with_.cycles),
        "queries": queries,
        "out_of_turn": _out_of_turn(with_),
        "min_accuracy_violations_s": round(under, 2),
        "longest_violation_s": round(longest, 2),
        "mean_abs_accuracy_error": round(float(np.mean(_accuracy_errors(with_))), 4),
        "mean_abs_count_error": _apart(queries, "accuracy_by_rows"),
        "mean_abs_promise_error": _apart(queries, "promised_by_rows"),
        "stall_cycles": with_.stall_cycles,
        "mean_abs_rate_error": round(float(np.mean(rate_errors)), 4),
        "p90_abs_rate_error": round(float(np.quantile(rate_errors, 0.9)), 4),
        "mean_abs_rate_error_with_delay": round(float(np.mean(late_errors)), 4),
    }
    for name, course in (("with", with_), ("without", without)):
        lag, growth, highest = _lag(course)
        found |= {
            f"lag_{name}": round(lag),
            f"lag_{name}_s": round(lag / course.overload()[2], 2),
            f"lag_highest_{name}": round(highest),
            f"lag_growth_{name}": round(growth, 1),
            f"cores_of_others_{name}": round(_others(course), 2),
        }
    found |= with_.results
    found["claims"] = claims(found, with_.overload()[2], cycle, scenario.leaves)
    return found


def claims(found: Mapping[str, Any], rate: float, cycle: float, leaves: str = "") -> Claims:
    """Return the claims. If a sink must move (`Scenario.leaves`), minima can't be kept before it has moved."""
    queries = found["queries"]
    below = WARM_UP if leaves else PERIODS * cycle
    until = " that ends with a move" if leaves else ""
    listed = [
        at_most(f"seconds below a minimum, in a stretch{until}", found["longest_violation_s"], below),
        at_most("mean |promised - current accuracy|", found["mean_abs_accuracy_error"], ERROR),
        at_most("mean |accuracy - what the consumer counted|", found["mean_abs_count_error"], ERROR),
        at_most("mean |promised - what the consumer counted|", found["mean_abs_promise_error"], ERROR),
        at_most("cycles until a sink that stalls shows", found["stall_cycles"], STALL),
        at_most("mean |estimated - injected rate|, as a part", found["mean_abs_rate_error"], RATE_ERROR),
        at_most("growth of what waits, as a part of the input", found["lag_growth_with"] / rate, STANDS),
        at_least("the same without shedding", found["lag_growth_without"] / rate, GROWS),
    ]
    if len({each["priority"] for each in queries.values()}) > 1:
        out_of_turn = max(found["out_of_turn"].values())
        listed.append(at_most("shed while a lower priority had more than its minimum", out_of_turn, TURN))
    if "moves" in found:
        listed.append(at_most("rows lost or doubled", found["rows_lost"] + found["rows_doubled"], 0))
        listed.append(at_most("seconds until one that moved has its minimum", found["longest_warm_up_s"], WARM_UP))
    if leaves:
        first = found["moves"][:1]
        chosen = [move for move in first if move["hop"] == leaves and move["why"] == SHORT]
        listed.append(at_least(f"'{leaves}' moves first, since minima can't be paid for", len(chosen), 1))
    elif "moves" in found:
        listed.append(at_least("queries that moved to the worker that came", len(found["moves"]), 1))
        relieved = min(each["last_accuracy"] - each["overload_accuracy"] for each in queries.values())
        listed.append(at_least("accuracy that each has more by the worker that came", relieved, 0.0))
    if "suspicious_sent" in found:
        missed = found["suspicious_sent"] - found["suspicious_found"]
        listed.append(at_most("suspicious payments missed", abs(missed), 0))
        off = abs(found["paid_corrected"] - found["paid"]) / max(found["paid_half_width"], 1e-9)
        listed.append(at_most("error of the corrected sum, in its half width", off, 1.0))
    return listed


def _queries(course: Course) -> dict[str, dict[str, float]]:
    """Return by sink the means over all cycles after the first phase, over those of the overload, and over the last."""
    begin, end, _ = course.overload()
    pairs = _pairs(course)
    settled = [(before, after) for before, after in pairs if begin + SETTLES <= before.time and after.time <= end]
    last = [after for _, after in pairs[-LAST:]]
    return {
        name: {
            "priority": each["priority"],
            "min_accuracy": each["min_accuracy"],
            "promised": _mean([before.promised[name] for before, _ in pairs]),
            "accuracy": _mean([after.accuracy[name] for _, after in pairs]),
            "overload_accuracy": _mean([after.accuracy[name] for _, after in settled]),
            "last_accuracy": _mean([after.accuracy[name] for after in last]),
            "promised_by_rows": _by_rows(course, name, [before.promised[name] for before, _ in pairs]),
            "accuracy_by_rows": _by_rows(course, name, [after.accuracy[name] for _, after in pairs]),
            "consumed": _consumed(course, name),
        }
        for name, each in course.promises.items()
    }


def _by_rows(course: Course, sink: str, parts: list[float]) -> float:
    """Return the mean of `parts`, one per cycle, weighted by the rows that arrived in the sink's topics in it."""
    weights = [_came(course, sink, before.time, after.time) for before, after in _pairs(course)]
    return round(float(np.average(parts, weights=weights)), 4)


def _apart(queries: Mapping[str, Mapping[str, float]], what: str) -> float:
    """Return the mean difference, over all sinks, of the figure `what` from the share that the consumers counted."""
    return _mean([abs(each[what] - each["consumed"]) for each in queries.values()])


def _consumed(course: Course, sink: str) -> float:
    """Return the share of the rows sent after the first phase that the consumer of the sink counted."""
    return round(course.consumed[sink] / _came(course, sink, course.warm, course.ended), 4)


def _came(course: Course, sink: str, start: float, end: float) -> float:
    assert course.sent is not None
    return sum(course.sent.between(topic, start, end) for topic in course.fed_by[sink])


def _out_of_turn(course: Course) -> dict[str, float]:
    """For each pair of sinks, return the share that the higher priority lost while the lower had more than its minimum.

    It is the mean over all cycles; a cycle in which the lower priority had no more than its minimum counts as 0. A
    comparison of the two mean accuracies would not show whether both happened in the same cycle.
    """
    return {
        f"{high} before {low}": _mean(
            [
                1.0 - after.accuracy[high] if before.promised[low] > less["min_accuracy"] + AT_MINIMUM else 0.0
                for before, after in _pairs(course)
            ]
        )
        for high, more in course.promises.items()
        for low, less in course.promises.items()
        if more["priority"] > less["priority"]
    }


def _pairs(course: Course) -> list[tuple[Cycle, Cycle]]:
    """Return each cycle after the first phase, together with the next cycle, which measured its effect."""
    return [(before, after) for before, after in pairwise(course.cycles) if before.time >= course.warm]


def _accuracy_errors(course: Course) -> list[float]:
    pairs = _pairs(course)
    return [abs(before.promised[name] - after.accuracy[name]) for before, after in pairs for name in course.promises]


def _under(course: Course) -> tuple[float, float]:
    """Return the seconds for which sinks were below their minimum: the sum, and the longest stretch of one sink."""
    total = longest = 0.0
    for name, each in course.promises.items():
        stretch = 0.0
        for before, after in _pairs(course):
            if after.accuracy[name] < each["min_accuracy"]:
                stretch += after.time - before.time
                total += after.time - before.time
            else:
                stretch = 0.0
            longest = max(longest, stretch)
    return total, longest


def _rate_errors(course: Course) -> tuple[list[float], list[float]]:
    """Return the relative errors of estimated input rates: against the mean rate of the cycle, and that at its end."""
    assert course.sent is not None
    errors, late = [], []
    for before, after in _pairs(course):
        for source, topic in course.topics.items():
            came = course.sent.between(topic, before.time, after.time) / (after.time - before.time)
            now = next(rates[source] for begin, _, rates in reversed(course.phases) if begin <= after.time)
            if came > 0.0 and now > 0.0:
                errors.append(abs(after.rates[source] - came) / came)
                late.append(abs(after.rates[source] - now) / now)
    return errors, late


def _lag(course: Course) -> tuple[float, float, float]:
    """Return the waiting rows at the end of the overload, their growth per second in it, and their highest number."""
    begin, end, _ = course.overload()
    times, rows = course.waiting()
    settled = min(begin + SETTLES, (begin + end) / 2)
    inside = (times >= settled) & (times <= end)
    if inside.sum() < 2:  # a short overload on a busy machine
        inside = (times >= begin) & (times <= end)
    growth = float(np.polyfit(times[inside], rows[inside], 1)[0])
    return float(rows[inside][-5:].mean()), growth, float(rows[times >= course.warm].max())


def _others(course: Course) -> float:
    """Return the cores that other processes used in the overload, broker and injector among them."""
    begin, end, _ = course.overload()
    inside = [look for look in course.looks if begin <= look.time <= end]
    return (inside[-1].others - inside[0].others) / (inside[-1].time - inside[0].time)


def _mean(values: list[float]) -> float:
    return round(float(np.mean(values)), 4) if values else float("nan")
