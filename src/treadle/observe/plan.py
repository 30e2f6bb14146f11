"""Which metrics to take from an engine and which to derive, decided once before the first round (Lachesis section 5.2).

It knows names and needs, no values. A metric that the engine offers is taken, any other is derived by the first way
that leads to offered ones; if there is no such way, the error names the missing metric.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from treadle.errors import EngineError
from treadle.observe.catalogue import METRICS
from treadle.observe.metric import Metric, Way


@dataclass(frozen=True)
class Step:
    """One metric of a plan: taken from the engine if `way` is None, derived otherwise."""

    metric: Metric
    way: Way | None
    level: int
    """0 for a metric that is taken; for a derived one, one more than the highest level of its needs."""

    @property
    def name(self) -> str:
        return self.metric.name

    @property
    def needs(self) -> tuple[str, ...]:
        return self.way.needs if self.way else ()

    def __str__(self) -> str:
        return f"{self.name} <- {', '.join(self.needs)}" if self.way else self.name


def make_plan(
    wanted: Iterable[str],
    offers: Collection[str],
    *,
    metrics: Mapping[str, Metric] = METRICS,
    engine: str = "",
    policy: str = "",
) -> tuple[Step, ...]:
    """Return the steps that lead to all `wanted` metrics, each once and after its needs (Alg. 3 with its cache)."""
    steps: dict[str, Step] = {}
    for name in wanted:
        gaps = _gaps(name, offers, metrics)
        if gaps:
            raise _missing(gaps, metrics, engine, policy)
        _add(steps, name, offers, metrics, ())
    return tuple(sorted(steps.values(), key=lambda step: step.level))


def plannable(name: str, offers: Collection[str], metrics: Mapping[str, Metric] = METRICS) -> bool:
    """Whether a metric can be taken or derived from what an engine offers."""
    return not _gaps(name, offers, metrics)


def _add(
    steps: dict[str, Step], name: str, offers: Collection[str], metrics: Mapping[str, Metric], above: tuple[str, ...]
) -> int:
    """Put a metric that can be had into `steps`, after all that it needs; return its level."""
    if name not in steps:
        way, level = None, 0
        if name not in offers:
            path = (*above, name)
            way = next(w for w in metrics[name].ways if not any(_gaps(n, offers, metrics, path) for n in w.needs))
            level = 1 + max((_add(steps, need, offers, metrics, path) for need in way.needs), default=0)
        steps[name] = Step(metrics.get(name) or Metric(name, "", "known to this engine only"), way, level)
    return steps[name].level


def _gaps(
    name: str, offers: Collection[str], metrics: Mapping[str, Metric], above: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    """Return the chains from a metric to its missing inputs, for the way that misses least; empty if it can be had.

    A metric that would need itself counts as missing: ways may be circular, plans are not.
    """
    if name in offers:
        return []
    path = (*above, name)
    ways = metrics[name].ways if name in metrics and name not in above else ()
    routes = [[gap for need in way.needs for gap in _gaps(need, offers, metrics, path)] for way in ways]
    return min(routes, key=len, default=[path])


def _missing(gaps: list[tuple[str, ...]], metrics: Mapping[str, Metric], engine: str, policy: str) -> EngineError:
    lacking = " and ".join(dict.fromkeys(gap[-1] for gap in gaps))
    owner = f"engine {engine}" if engine else "the engine"
    asked = f"{policy} needs" if policy else "can't get"
    stranger = "" if gaps[0][-1] in metrics else " and Treadle does not know"
    return EngineError(
        f"{asked} {' <- '.join(gaps[0])}, which {owner} does not offer{stranger}",
        remedy=f"choose another policy, or an engine that offers {lacking}",
    )
