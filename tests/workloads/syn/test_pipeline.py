"""SYN on Spark: each query puts out the rows that follow from their numbers, in both layouts."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treadle
from support import named, until
from treadle.workloads.syn import pipeline as syn
from treadle.workloads.syn.queries import Operator, Query
from treadle.workloads.text_lines import LINES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERIES = (
    Query((Operator(400, 0.5), Operator(400, 1.05), Operator(400, 0.4)), 400),
    Query((Operator(800, 0.9, blocks=True), Operator(800, 0.9), Operator(800, 0.9)), 800),
)
UNIT = 1e-5
"""As if a hash took so long that each operator computes one."""


def test_the_reference_keeps_the_share_that_was_drawn() -> None:
    found = syn.reference(range(100_000), QUERIES)
    for number, query in enumerate(QUERIES):
        assert len(found[f"q{number}"]) / 100_000 == pytest.approx(query.egress, rel=0.01)


@pytest.mark.parametrize("layout", ["fused", "hops"])
def test_each_query_puts_out_its_own_rows(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    came: dict[str, list[int]] = {}
    p = treadle.Pipeline(named("syn"))
    for query, output in syn.add(p, UNIT, QUERIES, source="feed").items():
        came[query] = []

        def out(rows: DataFrame, to: list[int] = came[query]) -> None:
            to.extend(row.id for row in rows.select("id").collect())

        p.sink(name=query, inputs=output)(out)
    now = datetime.datetime.now(datetime.UTC)
    rows = [{"id": number, "created": now, "line": line} for number, line in enumerate(syn.lines(300))]
    with p.start(spark, folder=tmp_path, layout=layout) as run:
        feed = run.feed(LINES)
        feed.append(rows[:100])
        feed.append(rows[100:])
        until(run.drained, run)
    wanted = syn.reference(range(300), QUERIES)
    assert {name: sorted(ids) for name, ids in came.items()} == wanted
