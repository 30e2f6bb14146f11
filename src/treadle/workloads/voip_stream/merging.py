"""Makes one Spark query of operators that keep state.

Spark refuses a streaming query with more than one `applyInPandasWithState` ("Multiple applyInPandasWithStates are not
supported on a streaming DataFrames/Datasets"), in each output mode and also in different branches of a union. In the
layout `hops` each operator is a query of its own, and nothing is refused. In `fused` the path of the sink is one query
with eleven such operators. So `with_state` remembers by which steps a DataFrame was made. If it is then given this
DataFrame again, it makes a new one, in which one function runs all these steps, and which starts from their inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from treadle.workloads.voip_stream import steps
from treadle.workloads.voip_stream.steps import STEPS, Program

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


@dataclass(frozen=True, eq=False)
class Made:
    """A step and what it reads: the outputs of other steps of the same query, or rows from elsewhere."""

    name: str
    inputs: tuple[Made | DataFrame, ...]


_MADE: WeakKeyDictionary[DataFrame, Made] = WeakKeyDictionary()
"""How DataFrames were made."""


def with_state(name: str, *inputs: DataFrame) -> DataFrame:
    """Run a step, and all steps by which its inputs were made, in one function with one state.

    There is one instance of each operator, as in the paper. It keeps the state of all keys, so that its rows leave it
    in the order of their ids: a reader may take a part of the rows of a batch.
    """
    from pyspark.sql import functions as f

    made = Made(name, tuple(_MADE.get(rows) or _leaf(name, rows) for rows in inputs))
    program, leaves = _program(made)
    tagged = [rows.withColumn("input", f.lit(number)) for number, rows in enumerate(leaves)]
    rows = reduce(lambda above, below: above.unionByName(below), tagged)
    plain = rows.withColumn("created", f.unix_micros("created")).withColumn("instance", f.lit(0))
    states = ", ".join(f"{step} binary" for step, _ in program.steps)
    done = plain.groupBy("instance").applyInPandasWithState(
        _function(program), STEPS[name].makes, states, "append", "NoTimeout"
    )
    found = done.withColumn("created", f.timestamp_micros("created"))
    _MADE[found] = made
    return found


def without_state(name: str, rows: DataFrame, found: DataFrame) -> DataFrame:
    """Remember that `found` is what a step would make of `rows`, if these rows were made by steps."""
    if rows in _MADE:
        _MADE[found] = Made(name, (_MADE[rows],))
    return found


def _leaf(name: str, rows: DataFrame) -> DataFrame:
    """The rows and columns that a step reads."""
    step = STEPS[name]
    chosen = rows if step.where is None else rows.where(step.where)
    return chosen.select("id", "created", *step.reads)


def _program(last: Made) -> tuple[Program, list[DataFrame]]:
    """The steps that lead to the last one, each after those that it reads, and the rows that they start from."""
    found: dict[Made, None] = {}
    leaves: list[DataFrame] = []

    def visit(made: Made) -> None:
        for each in made.inputs:
            if not isinstance(each, Made):
                leaves.append(each)
            elif each not in found:
                visit(each)
        found[made] = None

    visit(last)
    number = {id(each): place for place, each in enumerate([*leaves, *found])}
    listed = tuple((made.name, tuple(number[id(each)] for each in made.inputs)) for made in found)
    return Program(len(leaves), listed), leaves


def _function(program: Program) -> Any:
    """The function that Spark calls with the rows of a batch."""

    def function(_: Any, batches: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        rows = pd.concat(list(batches), ignore_index=True)
        made, states = steps.run(program, rows, state.getOption)
        state.update(tuple(states))
        yield made

    return function
