"""Whether threads had priorities that were not their own, and for how long: what was true against what was sampled.

Pure functions. A thread that serves a query may have that query's nice, or the one it was found with: that is no
priority, and is counted apart. One that serves nobody may have only the latter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from soak.sampler import Held
from soak.witness import NOBODY, OTHERS, SHARED, Span, Truth


class Rules(NamedTuple):
    """Which nice is whose."""

    found: int
    """What all threads have when nobody is attached."""
    engine: int
    """That of threads which are of no single query."""
    queries: Mapping[str, int]

    def own(self, whom: str) -> set[int]:
        if whom == OTHERS:
            return {self.engine}
        if whom == SHARED:
            return set(self.queries.values())
        return {self.queries[whom]} if whom in self.queries else set()


class Wrong(NamedTuple):
    """A thread that had a priority of somebody else's."""

    seconds: float
    since: float
    thread: tuple[int, int]
    whom: str
    nice: int
    look: float
    """The longest that a JVM of the application took to show its threads in that time: nobody could know earlier."""


@dataclass
class Verdict:
    """What came out. `wrong` are all spans, however short."""

    threads: int = 0
    hands: int = 0
    """How often a pooled thread went from one query to another."""
    spans: int = 0
    seconds: float = 0.0
    """Of all spans together."""
    wrong: list[Wrong] = field(default_factory=list)
    delays: dict[str, list[float]] = field(default_factory=dict)
    """By query: for each task, the seconds until its thread had the priority; infinite if it never had."""
    served: dict[str, float] = field(default_factory=dict)
    """By query: seconds of tasks."""
    unassigned: dict[str, float] = field(default_factory=dict)
    """By query: seconds of tasks at the nice as found."""

    @property
    def assigned(self) -> set[str]:
        """Queries of which a task has had its priority."""
        return {query for query, delays in self.delays.items() if min(delays) < math.inf}

    def violations(self, period: float, *, stalled: bool) -> list[Wrong]:
        """Longer than two periods, the longest first; `stalled`: not longer than two rounds with such looks take."""
        late = sorted((each for each in self.wrong if each.seconds > 2 * period), reverse=True)
        return [each for each in late if (each.seconds <= 2 * (period + each.look)) is stalled]

    @property
    def wrong_share(self) -> float:
        """Of the time of all threads."""
        return sum(each.seconds for each in self.wrong) / (self.seconds or 1.0)

    def summary(self, period: float) -> dict[str, Any]:
        late, excused = (self.violations(period, stalled=stalled) for stalled in (False, True))
        return {
            "threads": self.threads,
            "changes_of_hands": self.hands,
            "spans": self.spans,
            "wrong": len(self.wrong),
            "wrong_share": round(self.wrong_share, 5),
            "wrong_periods": _percentiles([each.seconds / period for each in self.wrong]),
            "violations": len(late),
            "longest_violation_periods": round(max((each.seconds for each in late), default=0.0) / period, 2),
            "while_the_jvm_was_stalled": len(excused),
            "longest_stalled_periods": round(max((each.seconds for each in excused), default=0.0) / period, 2),
            "worst": [each._asdict() for each in late[:5]],
            "queries": {name: self._query(name) for name in sorted(self.served)},
        }

    def _query(self, name: str) -> dict[str, Any]:
        delays = self.delays.get(name, [])
        known = [delay for delay in delays if not math.isinf(delay)]
        return {
            "tasks": len(delays),
            "never_assigned": len(delays) - len(known),
            "unassigned_share": round(self.unassigned.get(name, 0.0) / self.served[name], 3),
            "delay_ms": _percentiles([delay * 1e3 for delay in known]),
        }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    median, high, most = np.percentile(values, (50, 99, 100)).tolist()
    return {"p50": round(median, 2), "p99": round(high, 2), "max": round(most, 2)}


def judge(
    truth: Truth, sampled: Mapping[tuple[int, int], Sequence[Held]], rules: Rules, since: float, until: float
) -> Verdict:
    """All threads, from one time to the other."""
    verdict = Verdict()
    for thread, all_spans in truth.spans.items():
        spans = [
            span._replace(begin=max(span.begin, since), end=min(span.end, until))
            for span in all_spans
            if span.end > since and span.begin < until
        ]
        held = sampled.get(thread, ())
        if not spans or not held:
            continue
        verdict.threads += 1
        verdict.hands += _hands(spans)
        looks = truth.looks.get(thread[0], ())
        for span in spans:
            for wrong in _judge_span(verdict, thread, span, held, rules):
                verdict.wrong.append(wrong._replace(look=_longest_look(looks, wrong)))
    return verdict


def _longest_look(looks: Sequence[tuple[float, float]], wrong: Wrong) -> float:
    end = wrong.since + wrong.seconds
    return max((took for began, took in looks if began < end and began + took > wrong.since), default=0.0)


def _hands(spans: Sequence[Span]) -> int:
    served = [span.whom for span in spans if span.pooled and span.whom != NOBODY]
    return sum(before != after for before, after in pairwise(served))


def _judge_span(
    verdict: Verdict, thread: tuple[int, int], span: Span, held: Sequence[Held], rules: Rules
) -> Iterator[Wrong]:
    """Samples in a row that are neither its own nor as found."""
    own, since, until, nice = rules.own(span.whom), math.nan, math.nan, 0
    verdict.spans += 1
    verdict.seconds += span.end - span.begin
    if span.pooled and span.whom in rules.queries:
        _judge_delay(verdict, span, held, own, rules.found)
    for each in held:
        first, last = max(each.first, span.begin), min(each.last, span.end)
        if last < first:
            continue
        if each.nice not in own and each.nice != rules.found:
            since, until, nice = first if math.isnan(since) else since, last, each.nice
        elif not math.isnan(since):
            yield Wrong(until - since, since, thread, span.whom, nice, 0.0)
            since = math.nan
    if not math.isnan(since):
        yield Wrong(until - since, since, thread, span.whom, nice, 0.0)


def _judge_delay(verdict: Verdict, span: Span, held: Sequence[Held], own: set[int], found: int) -> None:
    """When it got what is its own."""
    inside = [each for each in held if each.last >= span.begin and each.first <= span.end]
    right = [each.first for each in inside if each.nice in own]
    delay = max(0.0, right[0] - span.begin) if right else math.inf
    verdict.delays.setdefault(span.whom, []).append(delay)
    without = sum(min(each.last, span.end) - max(each.first, span.begin) for each in inside if each.nice == found)
    verdict.served[span.whom] = verdict.served.get(span.whom, 0.0) + span.end - span.begin
    verdict.unassigned[span.whom] = verdict.unassigned.get(span.whom, 0.0) + without
