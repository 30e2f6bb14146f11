"""Makes Spark queries of stateful operators, of which Spark allows only one in a query.

Spark 4.3 refuses a second one ("Multiple applyInPandasWithStates are not supported on a streaming
DataFrames/Datasets"), also in another branch of a union. In the layout `hops` each operator is a query of its own. In
`fused` the whole path of a sink is one query. So this module remembers by which steps a DataFrame was made: an operator
that reads such a DataFrame becomes one function that runs all these steps, each with a memory of its own. That changes
no result, because all steps have the key (xway, dir).

It also keeps rows of a key in order: rows of a batch are sorted by id before the first step, and each step gives its
rows in the order of ids. So a reader gets the rows of a key in order, wherever batches are cut.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from treadle.workloads.linear_road.arrays import Key, Kind, Rows, in_order, none

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

KEY = ("xway", "dir")
_TYPES = {"i4": "int", "i8": "long", "f8": "double"}


class Step(NamedTuple):
    """A stateful operator: (key, memory, rows of each input) -> (rows, memory). The memory is None at first."""

    function: Callable[..., tuple[Rows, Any]]
    reads: tuple[Kind, ...]
    makes: Kind


@dataclass(frozen=True, eq=False)
class Made:
    """How a DataFrame was made: by a step, from what other steps made or from DataFrames of other origin."""

    step: Step
    inputs: tuple[Made | DataFrame, ...]


class Program(NamedTuple):
    """Steps that run one after another. Inputs are numbers of inputs of the program, then of earlier steps."""

    reads: tuple[Kind, ...]
    steps: tuple[tuple[Step, tuple[int, ...]], ...]


_MADE: WeakKeyDictionary[DataFrame, Made] = WeakKeyDictionary()


def with_state(step: Step, *inputs: DataFrame) -> DataFrame:
    """Run a step, and the steps of the same query that made its inputs."""
    from pyspark.sql import functions as f

    made = Made(step, tuple(_MADE.get(rows, rows) for rows in inputs))
    program, sources = program_of(made)
    rows = _united(sources, program.reads)
    memories = ", ".join(f"memory{number} binary" for number in range(len(program.steps)))
    schema = ", ".join([f"{name} int" for name in KEY] + [f"{name} {kind}" for name, kind in _fields(step.makes)])
    function = function_of(program)
    done = rows.groupBy(*KEY).applyInPandasWithState(function, schema, memories, "append", "NoTimeout")
    found = done.withColumn("created", f.timestamp_micros("created"))
    _MADE[found] = made
    return found


def same_rows(rows: DataFrame, source: DataFrame) -> DataFrame:
    """Remember that `rows` are those of `source` with other columns: a step may read them in place of these."""
    if source in _MADE:
        _MADE[rows] = _MADE[source]
    return rows


def program_of(made: Made) -> tuple[Program, list[DataFrame]]:
    """All steps that lead to the last one, each after those that it reads, and the DataFrames that they start from."""
    steps: dict[Made, None] = {}
    sources: dict[int, tuple[DataFrame, Kind]] = {}

    def visit(last: Made) -> None:
        for each, kind in zip(last.inputs, last.step.reads, strict=True):
            if not isinstance(each, Made):
                sources[id(each)] = each, kind
            elif each not in steps:
                visit(each)
        steps[last] = None

    visit(made)
    numbers = {each: number for number, each in enumerate([*sources, *map(id, steps)])}
    listed = tuple((each.step, tuple(numbers[id(one)] for one in each.inputs)) for each in steps)
    return Program(tuple(kind for _, kind in sources.values()), listed), [rows for rows, _ in sources.values()]


def run(
    program: Program, key: Key, memories: Sequence[Any] | None, inputs: Sequence[Rows]
) -> tuple[Rows, tuple[Any, ...]]:
    """The rows that the last step makes of new rows, and the new memories of all steps."""
    found, kept = list(inputs), list[Any]()
    for (step, numbers), memory in zip(program.steps, memories or [None] * len(program.steps), strict=True):
        rows, memory_after = step.function(key, memory, *(found[number] for number in numbers))
        found.append(rows)
        kept.append(memory_after)
    return found[-1], tuple(kept)


def _fields(kind: Kind) -> list[tuple[str, str]]:
    """Names and SQL types of the fields of rows."""
    return [(name, _TYPES[kind[name].str[1:]]) for name in kind.names or ()]


def _united(sources: Sequence[DataFrame], kinds: Sequence[Kind]) -> DataFrame:
    """The rows of all sources with the fields of all, without nulls, and the number of the source as `input`."""
    from pyspark.sql import functions as f

    fields = dict(field for kind in kinds for field in _fields(kind))
    parts = []
    for number, (rows, kind) in enumerate(zip(sources, kinds, strict=True)):
        plain = rows.withColumn("created", f.unix_micros("created"))  # pandas converts numbers faster than timestamps
        nothing = {name: f.lit(float("nan") if of == "double" else -1).cast(of) for name, of in fields.items()}
        values = {name: f.coalesce(name, nothing[name]) for name in kind.names or ()}
        chosen = [(nothing | values)[name].alias(name) for name in fields]
        parts.append(plain.select(*KEY, f.lit(number).alias("input"), *chosen))
    return reduce(lambda above, below: above.unionByName(below), parts)


def function_of(program: Program) -> Any:
    """The function that Spark calls with the rows that a batch has of one key."""

    def function(key: Key, tables: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        parts = list(tables)
        inputs = [_read(parts, number, kind) for number, kind in enumerate(program.reads)]
        memories = memories_of(state.get) if state.exists else None
        rows, memories_after = run(program, key, memories, inputs)
        state.update(tuple(pickle.dumps(memory) for memory in memories_after))
        if len(rows):
            fields = {name: rows[name] for name in rows.dtype.names or ()}
            yield pd.DataFrame({"xway": key[0], "dir": key[1], **fields}, index=range(len(rows)))

    return function


def memories_of(state: Iterable[bytes]) -> list[Any]:
    """The memories that Spark has kept as bytes."""
    return [pickle.loads(memory) for memory in state]


def _read(tables: Iterable[pd.DataFrame], number: int, kind: Kind) -> Rows:
    """The rows of one input, in the order of ids."""
    parts = [none(kind)]
    for table in tables:
        mine = (table["input"] == number).to_numpy()
        part = np.empty(np.count_nonzero(mine), kind)
        for name in kind.names or ():
            part[name] = table[name].to_numpy()[mine]
        parts.append(part)
    return in_order(*parts)
