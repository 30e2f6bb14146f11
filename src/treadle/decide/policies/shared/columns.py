"""What several policies read from a snapshot in the same way: ages, distances, and who leads. Pure numpy over rows."""

from __future__ import annotations

import math

import numpy as np

from treadle.model import Bools, Floats, Topology
from treadle.values import Snapshot


def column(snapshot: Snapshot, metric: str) -> Floats:
    """A metric that is only wanted: all unknown where the engine has none."""
    return snapshot[metric] if metric in snapshot else np.full(len(snapshot.topology), np.nan)


def is_empty(snapshot: Snapshot) -> Bools:
    """Rows for which nothing is known to wait; for a source, which has no queue inside of the engine, outside of it."""
    empty: Bools = (column(snapshot, "queue") == 0) & ~(column(snapshot, "external_queue") > 0.0)
    return empty


def head_age(snapshot: Snapshot) -> Floats:
    """The age of the oldest tuple that waits; 0 where none is known to wait, NaN where nothing is known."""
    return np.where(is_empty(snapshot), 0.0, snapshot["head_age"])


def hops_to_sink(topology: Topology) -> Floats:
    """The longest way to a sink, in operators."""
    hops = np.empty(len(topology))
    for distance, level in enumerate(topology.levels):
        hops[level.rows] = distance
    return hops


def rows_of(*columns: Floats) -> Floats:
    """Priority vectors from their dimensions. A row with an unknown part is unknown as a whole."""
    vectors = np.column_stack(columns)
    vectors[np.isnan(vectors).any(axis=1)] = np.nan
    return vectors


def lead(topology: Topology, urgency: Floats, says: str, shown: Floats | None = None) -> str:
    """For a schedule's reason: the most urgent row and its value, or nothing where all is unknown."""
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
    best = np.fmax.reduce(urgency)  # numpy takes the first unknown for the highest
    return None if math.isnan(best) else int((urgency == best).argmax())
