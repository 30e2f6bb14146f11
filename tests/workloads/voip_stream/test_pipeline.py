"""VoipStream as a pipeline: its graph, and the results of the reference from Spark in both layouts."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, named
from treadle.pipelines.nodes.node import Kind
from treadle.workloads.text_lines import LINE
from treadle.workloads.voip_stream import operators, reference
from treadle.workloads.voip_stream.pipeline import add, pipeline
from treadle.workloads.voip_stream.reference import Row
from workloads.voip_stream.calls import line, traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SENT = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)


def inputs(lines: list[str]) -> list[dict[str, Any]]:
    """Input records, each sent a millisecond and a microsecond after the one before."""
    return [
        {"id": number, "created": SENT + number * timedelta(microseconds=1_001), "line": text}
        for number, text in enumerate(lines)
    ]


def test_the_graph_has_15_operators_from_the_source_to_the_sink() -> None:
    nodes = pipeline(source="feed").nodes
    assert [node.kind for node in nodes].count(Kind.OPERATOR) == 13
    assert {node.name: set(node.inputs) for node in nodes} == {
        "lines": set(),
        "parser": {"lines"},
        "dispatcher": {"parser"},
        **{name: {"dispatcher"} for name in ("ct24", "global_acd", "ecr24", "ecr", "encr", "pre_rcr")},
        "rcr": {"pre_rcr"},
        "acd": {"ct24", "ecr24", "global_acd"},
        "url": {"encr", "ecr"},
        "fofir": {"ecr", "rcr"},
        "score": {"fofir", "url", "acd"},
        "sink": {"score"},
    }


def test_the_topic_has_the_prefix() -> None:
    assert pipeline(prefix="x-").node("lines").topic == "x-lines"


def test_the_parser_on_spark_leaves_out_what_the_reference_leaves_out(spark: SparkSession) -> None:
    lines = [
        line(1, 2, 0.999),
        "",
        "1,2,3",
        line(1, 2, 3).replace("2021-03-02", "2021-02-30"),
        line(1, 2, 3).replace("true", "TRUE"),
        line(1, 2, 3).replace("+0100", "-0330"),
        line(3, 4, 5, 0, established=False),
    ]
    rows = operators.parser(spark.createDataFrame(inputs(lines), LINE)).drop("created").collect()
    assert [tuple(row) for row in rows] == [tuple(call[:6]) for call in reference.parser(lines)]
    assert [row.id for row in rows] == [0, 5, 6]


@pytest.mark.parametrize("layout", ["fused", "hops"])
def test_spark_gives_the_scores_of_the_reference(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    lines, came = traffic(400, seed=1), dict[int, Any]()
    p = treadle.Pipeline(named("voip"))
    [output] = add(p, source="feed")

    @p.sink(inputs=output)
    def out(score: DataFrame) -> None:
        came.update({row.id: row for row in score.selectExpr("*", "unix_micros(created) AS sent").collect()})

    with p.start(spark, folder=tmp_path, layout=layout, batch="150 rows") as run:
        feed, records = run.feed("lines"), inputs(lines)
        for start in range(0, 400, 200):
            feed.append(records[start : start + 200])
        run.stop(drain=True, timeout=LONG)
        run.check()
    expected = reference.run(lines)["score"]
    assert sorted(came) == [row.id for row in expected]
    for row in expected:
        found = came[row.id]
        assert (found.calling, found.answer_ts) == (row.calling, row.answer_ts)
        assert found.sent == int(SENT.timestamp()) * 1_000_000 + row.id * 1_001
        for part in Row._fields[3:]:
            assert math.isclose(found[part], getattr(row, part), rel_tol=1e-9, abs_tol=1e-12), (row, part)
