"""How metrics change when operators run: Haren's kinds of features (section 3.1).

Cooperative schedulers ask here whether a policy uses metrics that go stale while an operator does not run. Haren also
keeps a bitmap of what to update after each operator; here a round computes whole columns, which costs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from treadle.observe.catalogue import METRICS
from treadle.observe.metric import Kind, Metric

KINDS = ("static", "dynamic", "dependent", "execution-intrinsic")
"""Haren's four kinds; a metric may be of several."""
_ANYTHING = Kind.DYNAMIC | Kind.ON_UPSTREAM | Kind.ON_DOWNSTREAM | Kind.INTRINSIC


def features(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> dict[str, Kind]:
    """Return the kind of each metric. A metric that only its engine knows may change in any way."""
    return {name: metrics[name].kind if name in metrics else _ANYTHING for name in names}


def words(kind: Kind) -> tuple[str, ...]:
    """Return those of `KINDS` that a metric of this kind is of."""
    dependent = Kind.ON_UPSTREAM in kind or Kind.ON_DOWNSTREAM in kind
    of = (kind == Kind.STATIC, kind != Kind.STATIC, dependent, Kind.INTRINSIC in kind)
    return tuple(word for word, is_so in zip(KINDS, of, strict=True) if is_so)


def intrinsic(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> frozenset[str]:
    """Return those metrics that are execution-intrinsic.

    If there are any, an operator that has not run for Haren's delay d must run, so that they are measured again.
    """
    return frozenset(name for name, kind in features(names, metrics).items() if Kind.INTRINSIC in kind)
