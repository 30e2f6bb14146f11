"""Groups of instances that are scheduled as one, such as a cgroup or a pool: Lachesis' grouping schedule (section 5.3).

A group's priority follows from its members. Instances of unknown priority are grouped like all others; a group's
priority is unknown only if those of all its members are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from treadle.decide.logical import operator_sets
from treadle.decide.transform import SCALES
from treadle.errors import ConfigError
from treadle.model import Floats, Ints, Topology
from treadle.values import Groups, Schedule, Spacing

Combine = Literal["max", "mean", "sum"]

KINDS: Mapping[str, str] = {
    "one": "all rows together",
    "query": "the rows of a query",
    "operator": "the parallel copies of an operator, or of operators that run as one",
    "instance": "each row alone",
    "class": "the rows of all queries with one user priority",
    "kmeans": "rows of similar priority, by k-means",
}

ROUNDS = 100
"""Most rounds of k-means, which usually converges within ten."""


def group(topology: Topology, schedule: Schedule, kind: str, *, k: int = 5, combine: Combine = "max") -> Groups:
    """Group instances by `kind`; a group's priority is the max, mean or sum of its members' known priorities.

    `k` is the maximum number of k-means groups; fewer distinct priorities give fewer groups.
    """
    if combine not in ("max", "mean", "sum"):
        raise ConfigError(f"unknown way to combine '{combine}'", where="grouping", remedy="known: max, mean, sum")
    if k < 1:
        raise ConfigError(f"k can't be {k}", where="grouping 'kmeans'", remedy="use 1 or more")
    priority = schedule.scalar
    names, of_row = _members(topology, priority, schedule.spacing, kind, k)
    return Groups(names, of_row, _combined(priority, of_row, len(names), combine))


def _members(topology: Topology, priority: Floats, spacing: Spacing, kind: str, k: int) -> tuple[tuple[str, ...], Ints]:
    """Return the names of the groups, and for each instance the index of its group."""
    if kind == "one":
        return ("all",), np.zeros(len(topology), dtype=np.int64)
    if kind == "query":
        return tuple(query.name for query in topology.queries), topology.query_of
    if kind == "operator":
        sets = operator_sets(topology)
        return tuple(f"{query}.{'+'.join(operators)}" for query, operators in sets.members), sets.of_row
    if kind == "instance":
        return topology.ids, np.arange(len(topology))
    if kind == "class":
        values, of_row = np.unique(topology.priority, return_inverse=True)
        return tuple(f"class-{str(value).removesuffix('.0')}" for value in values.tolist()), of_row
    if kind == "kmeans":
        return _similar(priority, spacing, k)
    raise ConfigError(f"unknown grouping '{kind}'", where="grouping", remedy=f"known: {', '.join(KINDS)}")


def _similar(priority: Floats, spacing: Spacing, k: int) -> tuple[tuple[str, ...], Ints]:
    """Cluster instances by priority, the least urgent first; those of unknown priority form a group of their own.

    Distances are measured on the unit scale: logarithmic for log spacing, and finite for infinite priorities.
    """
    known = ~np.isnan(priority)
    of_row = np.empty(len(priority), dtype=np.int64)
    count = 0
    if known.any():
        of_row[known] = clusters(SCALES["unit"].apply(priority[known], spacing), k)
        count = int(of_row[known].max()) + 1
    of_row[~known] = count
    names = tuple(f"cluster-{number}" for number in range(count))
    return names if known.all() else (*names, "unknown"), of_row


def clusters(values: Floats, k: int) -> Ints:
    """Return the cluster of each finite value by 1-D k-means, numbered from the lowest. Equal values share a cluster.

    In one dimension clusters are intervals, so only the cuts between the sorted values move. It starts from two sets of
    cuts, at quantiles and at the widest gaps (which finds small groups far away), and keeps the tighter result.
    """
    points, point_of, count = np.unique(values, return_inverse=True, return_counts=True)
    k = min(k, len(points))
    sums = np.stack([np.cumsum(np.r_[0.0, column]) for column in (count, count * points)])
    quantiles = np.arange(1, k) * len(points) // k
    gaps = np.sort(np.argsort(-np.diff(points), kind="stable")[: k - 1]) + 1
    ends = [_settle(points, sums, cuts) for cuts in (quantiles, gaps)]
    best = max(ends, key=lambda cuts: _tightness(sums, cuts))
    return np.searchsorted(best, point_of, side="right")


def _settle(points: Floats, sums: Floats, cuts: Ints) -> Ints:
    """Run Lloyd's algorithm: move each cut halfway between the means of its two clusters, until all cuts stay.

    Empty clusters vanish.
    """
    for _ in range(ROUNDS):
        size, total = _within(sums, cuts)
        means = total / size
        moved = np.unique(np.searchsorted(points, (means[1:] + means[:-1]) / 2))
        moved = moved[(moved > 0) & (moved < len(points))]
        if np.array_equal(moved, cuts):
            break
        cuts = moved
    return cuts


def _tightness(sums: Floats, cuts: Ints) -> float:
    """Return the sum of all squared values, which no cut changes, less that of squared distances from the means."""
    size, total = _within(sums, cuts)
    return float(np.sum(total**2 / size))


def _within(sums: Floats, cuts: Ints) -> Floats:
    """Return size and sum of each cluster, from the running sums over the points."""
    edges = np.r_[0, cuts, sums.shape[1] - 1]
    return np.diff(sums[:, edges], axis=1)


def _combined(priority: Floats, of_row: Ints, groups: int, combine: Combine) -> Floats:
    known = np.flatnonzero(~np.isnan(priority))
    values, group_of = priority[known], of_row[known]
    count = np.bincount(group_of, minlength=groups)
    if combine == "max":
        result = np.full(groups, -np.inf)
        np.maximum.at(result, group_of, values)
    else:
        parts = values / count[group_of] if combine == "mean" else values  # divided first: the sum may not fit a float
        result = np.bincount(group_of, weights=parts, minlength=groups).astype(np.float64)
    result[count == 0] = np.nan
    return result
