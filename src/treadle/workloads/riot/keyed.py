"""Keyed state of ETL and STATS on Spark: a plain step function, run on the rows of each key in the order of their ids.

Spark allows only one `applyInPandasWithState` in a query ("Multiple applyInPandasWithStates are not supported"). The
layout `fused` makes one query of a sink's whole path, so each path has at most one operator that uses this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

Step = Callable[[list[float], str, str, Any], tuple[list[float], Any]]
"""(memory, sensor id, observation type, value) -> (memory after it, result). The memory is empty at first."""
_MEMORY = "memory string"
"""JSON, from observation types to memories: Spark 4.3 fails if a state in Python has arrays or maps."""


def with_memory(rows: DataFrame, key: str, step: Step, result: str) -> DataFrame:
    """Replace the column `obs_val` by the results of `step`, as a column that `result` declares, as "count long".

    Each observation type of a sensor has a memory of its own. Types of one sensor are kept together under the key
    `sensor_id`, because a call of Python per key and batch costs far more than a step. The memories are limited by the
    number of keys, each of limited size, so they need no timeout.
    """
    from pyspark.sql import functions as f

    name, kind = result.split(maxsplit=1)
    plain = rows.withColumn("created", f.unix_micros("created"))  # pandas converts a long much faster than a timestamp
    types = {column: plain.schema[column].dataType.simpleString() for column in plain.columns} | {"obs_val": kind}
    schema = ", ".join(f"{column} {of}" for column, of in types.items())
    done = plain.groupBy(key).applyInPandasWithState(_updater(step), schema, _MEMORY, "append", "NoTimeout")
    return done.withColumn("created", f.timestamp_micros("created")).withColumnRenamed("obs_val", name)


def _updater(step: Step) -> Any:
    """The function that Spark calls for each key that has rows in a batch."""

    def update(_: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import numpy as np
        import pandas as pd

        parts = list(frames)
        rows = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        memory: dict[str, list[float]] = json.loads(state.get[0]) if state.exists else {}
        sensors, types, values = (rows[column].tolist() for column in ("sensor_id", "obs_type", "obs_val"))
        results: list[Any] = [None] * len(rows)
        for row in np.argsort(rows["id"].to_numpy(), kind="stable").tolist():
            kind = types[row]
            memory[kind], results[row] = step(memory.get(kind, []), sensors[row], kind, values[row])
        state.update((json.dumps(memory),))
        rows["obs_val"] = results
        yield rows

    return update
