"""The operators of each stage, from the physical plan of a query, with names that a person recognises.

This module parses the text of Spark's formatted plans, and cuts a plan into stages at its exchanges. It knows nothing
of threads or jobs. Names contain no numbers that Spark generates for each batch, so they are the same in all batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.model import Operator

LONGEST = 32
"""Maximum characters of an operator's name."""
LONGEST_PLAN, LONGEST_DETAIL = 1 << 20, 1 << 14
"""Maximum characters of a plan's description, and of its details of one operator."""
MOST_NODES, DEEPEST = 2000, 200
"""Maximum operators of a plan, and its maximum depth."""


class Stage(NamedTuple):
    """What runs between two exchanges, as one task per partition."""

    operators: tuple[str, ...]
    """Names of operators, in the direction of the data."""
    reads: tuple[int, ...] = ()
    """The positions of the stages that this stage reads."""
    kafka_in: bool = False
    kafka_out: bool = False
    python: bool = False


@dataclass(frozen=True)
class Plan:
    """A query's stages, upstream ones first, and its operators as a graph."""

    stages: tuple[Stage, ...]
    operators: tuple[Operator, ...]
    real_time: bool = False
    """Whether all tasks run side by side for the whole batch (Real-Time Mode)."""

    def reader_of(self, position: int) -> int:
        """Return the position of the stage that reads what the stage at `position` writes; -1 for the last stage."""
        return next((at for at, stage in enumerate(self.stages) if position in stage.reads), -1)


def chain(stages: int) -> Plan:
    """Return a plan for a number of unknown stages: each stage reads what the one before it writes."""
    names = [f"stage {number + 1}" for number in range(stages)]
    operators = [Operator(name, tuple(names[at - 1 : at])) for at, name in enumerate(names)]
    return Plan(
        tuple(Stage((name,), (at - 1,) if at else ()) for at, name in enumerate(names)),
        tuple(operators),
    )


def parse(description: str) -> Plan | None:
    """Parse a formatted plan of Spark's; None if the text is no plan, or larger than the limits of this module."""
    root = _tree(description) if len(description) <= LONGEST_PLAN else None
    if root is None:
        return None
    _resolve_groupings(root)
    return _Cut().plan(root)


@dataclass
class _Node:
    """An operator of the physical plan."""

    name: str
    detail: str = ""
    inputs: list[_Node] = field(default_factory=list)

    def value(self, key: str) -> str:
        """Return the text after a key such as `Keys [1]` or `Output [2]`."""
        found = re.search(rf"^{key}(?: \[\d+\])? ?: (.*)$", self.detail, re.MULTILINE)
        return found[1] if found else ""

    def walk(self) -> Iterator[_Node]:
        yield self
        for node in self.inputs:
            yield from node.walk()


_LINE = re.compile(r"^(?P<lead>[ :|+\-]*)(?:\* )?(?P<name>[A-Z][^\n]*?) \((?P<number>[0-9]{1,9})\)$")
_SECTION = re.compile(r"^\(([0-9]{1,9})\) [^\n]*\n(.*?)(?=^\(\d+\) |^=====|\Z)", re.MULTILINE | re.DOTALL)


def _tree(description: str) -> _Node | None:
    """Parse the tree of operators, drawn with three characters per level; the details follow by operator number."""
    head, _, rest = description.partition("\n\n")
    details = {int(number): text[:LONGEST_DETAIL] for number, text in _SECTION.findall(rest.split("===== ")[0])}
    path: list[_Node] = []
    lines = head.splitlines()
    if len(lines) > MOST_NODES:
        return None
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        node = _Node(found["name"], details.get(int(found["number"]), ""))
        depth = len(found["lead"]) // 3
        if depth > min(len(path), DEEPEST):
            return None
        if depth:
            path[depth - 1].inputs.append(node)
        path[depth:] = [node]
    return path[0] if path else None


class _Cut:
    """Cuts a plan into stages and names what is in them."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.operators: dict[str, Operator] = {}

    def plan(self, root: _Node) -> Plan:
        self._stage(root)
        real_time = any(node.name.startswith("RealTime") for node in root.walk())
        return Plan(tuple(self.stages), tuple(self.operators.values()), real_time)

    def _stage(self, top: _Node) -> tuple[int, tuple[str, ...]]:
        """Add the stage that ends at `top`, after the stages it reads; return its position and its last operators."""
        names: list[str] = []
        reads: list[int] = []
        nodes: list[_Node] = []
        last = self._visit(top, names, reads, nodes)
        if not names:
            name = self._add("pass on", last)
            names, last = [name], (name,)
        text = " ".join(f"{node.name} {node.detail}" for node in nodes)
        scans = [node for node in nodes if "Scan" in node.name]
        self.stages.append(
            Stage(
                tuple(names),
                tuple(reads),
                kafka_in=any("kafka" in node.detail for node in scans),
                kafka_out="KafkaStreamingWrite" in text or "KafkaBatchWrite" in text,
                python=any(_is_python(node) for node in nodes),
            )
        )
        return len(self.stages) - 1, last

    def _visit(self, node: _Node, names: list[str], reads: list[int], nodes: list[_Node]) -> tuple[str, ...]:
        """Name the inputs of a node within its stage, then the node; return the operators of its output."""
        feeds: list[str] = []
        for other in node.inputs:
            if other.name in _EXCHANGES:
                position, last = self._stage(other.inputs[0]) if other.inputs else (-1, ())
                if position >= 0:
                    reads.append(position)
                feeds += last
            elif other.name not in _APART:
                feeds += self._visit(other, names, reads, nodes)
        nodes.append(node)
        called = _called(node)
        upstream = tuple(dict.fromkeys(feeds))
        if not called or (names and upstream == (names[-1],) and _same(names[-1], called)):
            return upstream
        name = self._add(called, upstream)
        names.append(name)
        return (name,)

    def _add(self, called: str, upstream: tuple[str, ...]) -> str:
        """Add an operator with a unique name."""
        name, number = called, 1
        while name in self.operators:
            number += 1
            name = f"{called} {number}"
        self.operators[name] = Operator(name, upstream)
        return name


_EXCHANGES = ("Exchange", "ShuffleExchange", "ReusedExchange")
_APART = ("BroadcastExchange", "Subquery", "SubqueryBroadcast")
"""Operators whose inputs run as jobs of their own, before the job of the query."""
_SILENT = re.compile(
    r"WholeStageCodegen|InputAdapter|ColumnarToRow|RowToColumnar|StateStoreRestore|StateStoreSave|Subquery|AQEShuffleRead|"
    r"AdaptiveSparkPlan|ResultQueryStage|CommandResult|UpdateEventTimeColumn|CollectMetrics"
)
_PYTHON = re.compile(r"Python|InArrow|InPandas|Pandas")


def _is_python(node: _Node) -> bool:
    return _PYTHON.search(node.name) is not None


def _same(before: str, called: str) -> bool:
    """True if two names mean one operation: Spark aggregates in several steps with the same name."""
    return before == called or (before.startswith(called) and before[len(called) :].strip().isdecimal())


def _called(node: _Node) -> str:
    """Return a short name for an operator; empty for one that only serves others, such as WholeStageCodegen."""
    name = node.name
    if _SILENT.match(name):
        return ""
    if "Scan" in name:
        return f"{_system(node)} in"
    if name.startswith(("WriteToDataSource", "WriteFiles", "AppendData", "Execute InsertInto")):
        return f"{_system(node)} out"
    if "Aggregat" in name:
        return _cut(f"{'partial ' if 'partial_' in node.detail else ''}aggregate", "by", _columns(node.value("Keys")))
    if name == "Project":
        made = re.findall(r" AS (\w+)#", node.value("Output"))
        return _cut("project", "", made)
    if name == "Filter":
        return _cut("filter", "by", _columns(node.value("Condition")))
    if "Join" in name:
        keys = _columns(node.value("Left keys"))
        return _cut("join", "by", keys)
    if _is_python(node):
        function = re.search(r"\b(\w+)\(", node.value("Arguments"))
        return _cut("python", "", [function[1]] if function and function[1] not in ("List", "ArrayBuffer") else [])
    return _PLAIN.get(name) or _words(name)


_PLAIN = {
    "EventTimeWatermark": "watermark",
    "Generate": "explode",
    "MapElements": "map",
    "MapPartitions": "map",
    "SerializeFromObject": "map",
    "DeserializeToObject": "map",
    "StreamingDeduplicate": "deduplicate",
    "StreamingDeduplicateWithinWatermark": "deduplicate",
}


def _system(node: _Node) -> str:
    """The system behind a source or sink: `kafka`, `rate`, `noop`, …"""
    if "kafka" in f"{node.name} {node.detail}".lower():
        return "kafka"
    patterns = (
        r"writer: (?:\w+\.)*(\w+?)(?:Streaming)?Write\b",
        r"class (?:\w+\.)*(\w+?)(?:Stream|Source|Table|Scan|\$)",
        r"Scan (\w+)",
    )
    text = f"{node.detail}\n{node.name}"
    words = [found[1].lower() for pattern in patterns if (found := re.search(pattern, text))]
    return next((word for word in words if word not in _NO_SYSTEM), "rows")


_NO_SYSTEM = ("", "microbatch", "micro", "stream", "realtime", "realtimestream", "batch", "existingrdd")


def _columns(text: str) -> list[str]:
    """The columns that an expression names, without Spark's numbers for them."""
    found = re.findall(r"(?<!lambda )\b([A-Za-z_]\w*)#\d+", text)
    return [name for name in dict.fromkeys(found) if not name.startswith("_groupingexpression")]


def _cut(what: str, link: str, columns: Sequence[str]) -> str:
    if not columns:
        return what
    return " ".join(filter(None, (what, link, ",".join(columns))))[:LONGEST].rstrip(", ")


def _words(name: str) -> str:
    """`SortMergeThing` -> `sort merge thing`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.removesuffix("Exec")).lower()[:LONGEST]


def _resolve_groupings(root: _Node) -> None:
    """Replace the names that Spark generates for grouping keys (`_groupingexpression`) by the names in the output."""
    named: dict[str, str] = {}
    for node in root.walk():
        named.update(re.findall(r"(_groupingexpression#\d+) AS (\w+#\d+)", node.detail))
    for node in root.walk():
        node.detail = re.sub(r"_groupingexpression#\d+", lambda found: named.get(found[0], found[0]), node.detail)
