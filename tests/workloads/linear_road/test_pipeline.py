"""The pipeline of Linear Road on Spark: the same rows as the reference, in both modes and layouts."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named
from treadle.errors import ConfigError
from treadle.pipelines.nodes.node import Kind
from treadle.workloads.linear_road import operators, pipeline, records, reference
from treadle.workloads.linear_road.reference import Notification
from treadle.workloads.linear_road.rules import Mode
from workloads.linear_road.scenes import in_order, jam

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODES: tuple[Mode, ...] = ("per_minute", "constant_load")
OPERATORS = [
    "average_speed", "count_vehicles", "dispatcher", "last_average_speed", "toll_notification_cv",
    "toll_notification_las", "toll_notification_pos",
]  # fmt: skip
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def input_lines() -> list[str]:
    """The jam, and other vehicles on two expressways that are driven while it lasts."""
    others = records.lines(200, seed=2, expressways=2, start=1_840, road=records.Road(segments=4, arrivals=0.5))
    return [*sorted([*jam(), *others], key=lambda line: int(line.split(",")[1])), "0,1990,torn"]


def created(number: int) -> datetime:
    return BEGIN + timedelta(microseconds=number)


def as_notification(row: Any) -> Notification:
    assert row.created.timestamp() == created(row.id).timestamp()
    return Notification(**{name: row[name] for name in Notification._fields})


@pytest.mark.parametrize("layout", ["fused", "hops"])
@pytest.mark.parametrize("mode", MODES)
def test_the_sink_gets_the_rows_of_the_reference(spark: SparkSession, tmp_path: Path, mode: Mode, layout: str) -> None:
    p, found = treadle.Pipeline(named("linear-road")), dict[int, list[Notification]]()
    [read] = pipeline.add(p, source="feed", mode=mode)

    @p.sink(inputs=read)
    def sink(rows: DataFrame, batch_id: int) -> None:
        found[batch_id] = [as_notification(row) for row in rows.collect()]

    lines = input_lines()
    rows = [{"id": number, "created": created(number), "line": line} for number, line in enumerate(lines)]
    with p.start(spark, folder=tmp_path, layout=layout, batch="250 rows") as run:
        run.feed("lines").append(rows)
        run.stop(drain=True, timeout=LONG)
        run.check()
    expected = reference.run(lines, mode)["sink"]
    assert len(found) > 1
    came = [row for batch in found.values() for row in batch]
    assert in_order(came) == expected
    tolls = {row.vid: row.toll for row in came if row.toll}
    assert tolls == ({200: 18, 202: 50} if mode == "per_minute" else {})


@pytest.mark.parametrize("mode", MODES)
def test_the_graph_has_the_operators_of_the_specification_and_one_sink(mode: Mode) -> None:
    p = pipeline.pipeline(mode=mode, prefix="test-")
    [topic] = [node for node in p.nodes if node.kind is Kind.TOPIC]
    assert (topic.name, topic.topic) == ("lines", "test-lines")
    names = sorted(node.name for node in p.nodes if node.kind is Kind.OPERATOR and node.name != "notifications")
    assert names == OPERATORS
    assert [(node.name, node.kind) for node in p.sinks] == [("sink", Kind.WRITER)]
    readers = Counter(name for node in p.nodes for name in node.inputs)
    assert readers["dispatcher"] == 3
    assert readers["lines"] == 1


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode 'fast' is unknown"):
        pipeline.pipeline(mode="fast")  # type: ignore[arg-type]


def test_the_columns_of_the_sink_are_those_of_the_reference() -> None:
    assert [name for name in operators.NOTIFICATION if name != "created"] == list(Notification._fields)
