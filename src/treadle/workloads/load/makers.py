"""Calls the makers that a target names, and checks what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.errors import ConfigError
from treadle.plugins import imported

if TYPE_CHECKING:
    import pyarrow as pa

ADDED = ("id", "created")
"""The columns that every row gets."""


def lines(spec: str, count: int, seed: int) -> list[str]:
    """The text lines of a maker."""
    made = _called(spec, lambda make: make(count, seed=seed))
    if not isinstance(made, list) or not made or not all(isinstance(line, str) for line in made):
        raise ConfigError("does not return a list of text lines", where=spec, remedy="return list[str], not empty")
    return made


def table(spec: str, first: int, count: int, random: np.random.Generator) -> pa.Table:
    """Rows of a maker as an Arrow table."""
    import pyarrow as pa

    made = _called(spec, lambda make: make(first, count, random))
    if not isinstance(made, pa.Table) or made.num_rows != count or not made.num_columns:
        what = f"does not return an Arrow table with {count} rows"
        raise ConfigError(what, where=spec, remedy="return a pyarrow.Table with at least one column")
    if taken := sorted({*ADDED} & {*made.column_names}):
        raise ConfigError(f"makes the column '{taken[0]}', which every row gets", where=spec, remedy="rename it")
    return made


def _called(spec: str, call: Callable[[Any], Any]) -> Any:
    make = imported(spec)
    try:
        return call(make)
    except Exception as error:
        raise ConfigError(
            f"failed: {type(error).__name__}: {error}", where=spec, remedy="correct this maker"
        ) from error
