"""The SQL metrics that count the rows of each stage, from the graph of operators that Spark keeps for its UI.

This module knows operators, their counters and the boundaries of stages, not tasks or values. If no operator counts
the rows that leave a stage, but all its operators keep the number of rows, as many rows leave it as enter it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_OPERATORS = 400
"""Maximum operators of a plan that is read; this also limits the depth of a plan."""


class StageCounters(NamedTuple):
    """The ids of the SQL metrics that count the rows of a stage. Values of several metrics are added up."""

    taken: tuple[int, ...] = ()
    """Rows that the stage's sources have read. Empty if it reads shuffles only."""
    put_out: tuple[int, ...] = ()
    """Rows that have left the stage's last operators. Empty where none is counted."""
    passes_on: bool = False
    """True if no metric counts the rows that leave the stage, but its operators neither add nor remove rows."""
    written: int = -1
    """Bytes that the stage has written into its shuffle; -1 if they are not counted."""


def parse(text: str) -> tuple[StageCounters, ...]:
    """Parse the counters of each stage, in the order of `plan.Plan.stages`; empty if the text has no operators."""
    root = _tree(text)
    if root is None:
        return ()
    found: list[StageCounters] = []
    _cut(root, None, found, set())
    return tuple(found)


@dataclass(eq=False)
class _Operator:
    name: str
    counters: dict[str, int]
    inputs: list[_Operator] = field(default_factory=list)


def _tree(text: str) -> _Operator | None:
    """Parse lines `number, number of the operator it feeds, counters, name` (tab-separated); the root feeds none."""
    operators: dict[int, _Operator] = {}
    feeds: dict[int, int] = {}
    lines = text.splitlines()
    for line in lines if len(lines) <= MOST_OPERATORS else ():
        number, to, counters, name = line.split("\t", 3)
        if not _CLUSTER.match(name):  # not the boxes of codegen: the operators inside are in the list, too
            known = dict(each.split("=", 1) for each in counters.split(",") if each)
            operators[int(number)] = _Operator(name, {kind: int(metric) for kind, metric in known.items()})
            feeds[int(number)] = int(to)
    for each in sorted(operators):
        if feeds[each] in operators:
            operators[feeds[each]].inputs.append(operators[each])
    roots = [each for each in operators if feeds[each] not in operators]
    return operators[min(roots)] if roots else None


_CLUSTER = re.compile(r"WholeStageCodegen")
_EXCHANGES = ("Exchange", "ShuffleExchange", "ReusedExchange")
_APART = ("BroadcastExchange", "Subquery", "SubqueryBroadcast")
"""Operators whose inputs run as jobs of their own, before the job of the query."""
_KEEPS_ROWS = re.compile(
    r"Project$|InputAdapter|ColumnarToRow|RowToColumnar|AQEShuffleRead|AdaptiveSparkPlan|ResultQueryStage|Sort$|"
    r"SerializeFromObject|DeserializeToObject|MapElements|AppendColumns|EventTimeWatermark|UpdateEventTimeColumn|"
    r"CollectMetrics|Coalesce$|ArrowEvalPython|BatchEvalPython"
)
_WRITES = re.compile(r"WriteToDataSource|WriteFiles|AppendData|Execute InsertInto")
"""Sinks: the counters of these operators are known only at the end of a batch."""


def _cut(top: _Operator, exchange: _Operator | None, found: list[StageCounters], seen: set[int]) -> None:
    """Add the stage that ends at `top`, after the stages that it reads. `exchange` is the exchange that it writes."""
    inside: list[_Operator] = []
    _visit(top, inside, found, seen)
    sources = [each for each in inside if not each.inputs]
    counted = tuple(each.counters["rows"] for each in sources if "rows" in each.counters)
    put_out = _put_out(top)
    found.append(
        StageCounters(
            counted if len(counted) == len(sources) else (),
            put_out or (),
            put_out == (),
            -1 if exchange is None else exchange.counters.get("bytes", -1),
        )
    )


def _visit(operator: _Operator, inside: list[_Operator], found: list[StageCounters], seen: set[int]) -> None:
    """Collect the operators of a stage in `inside`, and cut off the stages that it reads, in the order of the plan."""
    inside.append(operator)
    for each in operator.inputs:
        if each.name in _EXCHANGES:
            if id(each) not in seen and each.inputs:
                seen.add(id(each))
                _cut(each.inputs[0], each, found, seen)
        elif each.name not in _APART:
            _visit(each, inside, found, seen)


def _put_out(operator: _Operator) -> tuple[int, ...] | None:
    """Return the metrics that count the rows leaving an operator.

    (): no metric counts them, but they are as many as the rows of the shuffles that the stage reads. None: unknown.
    """
    if "rows" in operator.counters and not _WRITES.match(operator.name):
        return (operator.counters["rows"],)
    if operator.name in _EXCHANGES:
        return ()
    inputs = [each for each in operator.inputs if each.name not in _APART]
    keeps_rows = _KEEPS_ROWS.match(operator.name) or _WRITES.match(operator.name)
    if operator.name == "Union" or (keeps_rows and len(inputs) == 1):
        parts = [_put_out(each) for each in inputs]
        if None in parts or (() in parts and any(parts)):
            return None
        return tuple(metric for part in parts if part for metric in part)
    return None
