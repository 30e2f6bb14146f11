"""What passes between the three steps of the loop: a snapshot of metrics in, a schedule out.

This module is in a layer below `observe`, `decide` and `enforce`, which never import each other. NaN is always unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from treadle.errors import EngineError
from treadle.model import Bools, Floats, Ints, Topology

Spacing = Literal["linear", "log"]


@dataclass(frozen=True)
class Sample:
    """What an engine measured at one moment: base metrics by row, and totals over the whole engine."""

    time: float
    columns: Mapping[str, Floats]
    totals: Mapping[str, float] = field(default_factory=dict)
    estimated: Mapping[str, Bools] = field(default_factory=dict)
    """Metric -> mask of the rows with an estimated value. A metric that is not here was measured."""
    given: Mapping[str, Floats] = field(default_factory=dict)
    """Derived metric -> values that the engine supplies itself; NaN where the value must be derived."""


@dataclass(frozen=True)
class Snapshot:
    """All metrics of a round: one float64 column per metric, one row per instance."""

    topology: Topology
    time: float
    columns: Mapping[str, Floats]
    totals: Mapping[str, float] = field(default_factory=dict)
    estimated: Mapping[str, Bools] = field(default_factory=dict)
    """Base metric -> mask of the rows with an estimated value. A metric that is not here was measured or derived."""

    def __getitem__(self, metric: str) -> Floats:
        try:
            return self.columns[metric]
        except KeyError:
            raise EngineError(
                f"metric '{metric}' is not in this snapshot", remedy="name it in the policy's `needs`"
            ) from None

    def __contains__(self, metric: str) -> bool:
        return metric in self.columns

    @classmethod
    def concat(cls, parts: Sequence[Snapshot], topology: Topology | None = None) -> Snapshot:
        """Join snapshots of several engines in the row order of `Topology.merge`; metrics that an engine lacks are NaN.

        `topology` is the merged topology if the caller has it already: it is too expensive to make in every round.
        """
        if len(parts) == 1:
            return parts[0]
        names = {name for part in parts for name in part.columns}
        columns = {
            name: np.concatenate([part.columns.get(name, np.full(len(part.topology), np.nan)) for part in parts])
            for name in names
        }
        totals = {name: _joined(name, parts) for name in dict.fromkeys(name for part in parts for name in part.totals)}
        estimated = {
            name: np.concatenate([part.estimated.get(name, np.zeros(len(part.topology), np.bool_)) for part in parts])
            for name in {name for part in parts for name in part.estimated}
        }
        merged = Topology.merge([p.topology for p in parts]) if topology is None else topology
        return cls(merged, max(p.time for p in parts), columns, totals, estimated)


def _joined(name: str, parts: Sequence[Snapshot]) -> float:
    """Return the total `name` of all engines together: the sum, but for `latency` the mean weighted by `output_rate`.

    Engines with an unknown total are left out.
    """
    known = [part.totals for part in parts if not math.isnan(part.totals.get(name, math.nan))]
    if not known:
        return math.nan
    if name != "latency":
        return sum(totals[name] for totals in known)
    weights = [totals.get("output_rate", 1.0) for totals in known]
    heard = sum(weights)
    return sum(w * totals[name] for w, totals in zip(weights, known, strict=True)) / heard if heard > 0 else math.nan


@dataclass(frozen=True)
class Groups:
    """Groups of rows with a priority each (Lachesis' grouping schedule). `of_row` has the group index of each row."""

    names: tuple[str, ...]
    of_row: Ints
    priority: Floats
    outer: Groups | None = None
    """Groups that contain these: the name of an outer group is the first part of the names of the groups in it."""


@dataclass(frozen=True)
class Schedule:
    """What a policy suggests. Higher is more urgent; NaN leaves an instance as it is.

    `priority` has a row per instance and one column per dimension; columns compare lexicographically (Haren's priority
    vector). `helper` is for helper threads if they differ from main threads: one number per row, on the scale of
    `scalar`. `spacing` is how the numbers are spread: queue sizes linearly, rates over orders of magnitude.
    """

    priority: Floats
    helper: Floats | None = None
    groups: Groups | None = None
    spacing: Spacing = "linear"
    reason: str = ""

    def __post_init__(self) -> None:
        if self.priority.ndim == 1:
            object.__setattr__(self, "priority", self.priority[:, None])

    @property
    def scalar(self) -> Floats:
        """One number per row, in the order of the vectors: the only column itself, or the dense rank of the vectors."""
        return self.priority[:, 0] if self.priority.shape[1] == 1 else dense_rank(self.priority)


def dense_rank(vectors: Floats) -> Floats:
    """Rank vectors from 0 for the lowest; equal vectors share a rank, and a row with a NaN has the rank NaN."""
    rank = np.full(len(vectors), np.nan)
    known = np.flatnonzero(~np.isnan(vectors).any(axis=1))
    if len(known) == 0:
        return rank
    rows = vectors[known]
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    step = np.any(ordered[1:] != ordered[:-1], axis=1)
    rank[known[order]] = np.concatenate([[0.0], np.cumsum(step)])
    return rank


def known(value: float) -> float | None:
    """Return a number for JSON, which has no NaN: None if it is unknown."""
    return None if math.isnan(value) else value
