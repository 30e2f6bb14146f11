"""Tables from a number to a time and further values, as numpy arrays sorted by the number.

Spark reads and writes the whole state of an operator with each batch. As one array, a state of 100,000 rows is read
and written in milliseconds; as a dict it would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.model import Ints

Table = NDArray[np.void]
"""A structured array with the fields `key` and `at`, and perhaps others."""


def recalled(table: Table, keys: Ints) -> dict[int, tuple[Any, ...]]:
    """Return the rows of these keys as a dict: key -> all other fields."""
    found = table[_places(table, np.unique(keys))]
    return {row[0]: row[1:] for row in found.tolist()}


def kept(table: Table, changed: Mapping[int, tuple[Any, ...]], since: int) -> Table:
    """Return the table with changed rows in it, and without the rows of times before `since`."""
    rows = np.array([(key, *fields) for key, fields in changed.items()], dtype=table.dtype)
    both = np.concatenate([np.delete(table, _places(table, rows["key"])), rows])
    both = both[both["at"] >= since]
    return both[np.argsort(both["key"], kind="stable")]


def _places(table: Table, keys: Ints) -> Ints:
    """The places of those keys that are in the table."""
    there = table["key"]
    if not len(there):
        return np.empty(0, np.int64)
    places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
    found: Ints = places[there[places] == keys]
    return found
