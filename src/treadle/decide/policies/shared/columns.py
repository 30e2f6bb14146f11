"""Values that several policies take from a snapshot: ages, distances and the most urgent row. Pure numpy over rows."""

from __future__ import annotations

import math

import numpy as np

from treadle.model import Bools, Floats, Topology
from treadle.values import Snapshot


def column(snapshot: Snapshot, metric: str) -> Floats:
    """Return an optional metric: all NaN where the engine has none."""
    return snapshot[metric] if metric in snapshot else np.full(len(snapshot.topology), np.nan)


def is_empty(snapshot: Snapshot) -> Bools:
    """Return which queues are known to be empty; at sources tuples that wait outside of the engine count too."""
    empty: Bools = (column(snapshot, "queue") == 0) & ~(column(snapshot, "external_queue") > 0.0)
    return empty


def head_age(snapshot: Snapshot) -> Floats:
    """Return the age of the oldest waiting tuple; 0 where the queue is empty, NaN where it is unknown."""
    return np.where(is_empty(snapshot), 0.0, snapshot["head_age"])


def hops_to_sink(topology: Topology) -> Floats:
    """Return the length of the longest path to a sink, in operators."""
    hops = np.empty(len(topology))
    for distance, level in enumerate(topology.levels):
        hops[level.rows] = distance
    return hops


def rows_of(*columns: Floats) -> Floats:
    """Return priority vectors with these columns; a vector with any NaN is all NaN."""
    vectors = np.column_stack(columns)
    vectors[np.isnan(vectors).any(axis=1)] = np.nan
    return vectors


def lead(topology: Topology, urgency: Floats, says: str, shown: Floats | None = None) -> str:
    """Return text for a schedule's reason: the most urgent row and its value, or '' where all is unknown."""
    row = _first_of_the_highest(urgency)
    if row is None:
        return ""
    value = float((urgency if shown is None else shown)[row])
    return f"; {topology.ids[row]} {says.format(value)}"


def _first_of_the_highest(urgency: Floats) -> int | None:
    if not len(urgency):
        return None
    row = int(urgency.argmax())
    if not math.isnan(urgency[row]):
        return row
    best = np.fmax.reduce(urgency)  # argmax takes the first NaN for the highest
    return None if math.isnan(best) else int((urgency == best).argmax())
