"""Which counters tell the rows of a stage, on graphs as Spark draws them."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ
from treadle.engines.spark.queries.operators import StageCounters, parse


def graph(*lines: str) -> str:
    """`number feeds counters name`, as the agent sends it."""
    return "".join("\t".join(line.split(" ", 3)) + "\n" for line in lines)


CHAIN = graph(
    "0 -1 rows=829, WriteToDataSourceV2",
    "2 0  Project",
    "1 -1  WholeStageCodegen (3)",
    "3 2 bytes=831, Exchange",
    "5 3  Project",
    "4 -1  WholeStageCodegen (2)",
    "6 5 bytes=854, Exchange",
    "8 6  Project",
    "7 -1  WholeStageCodegen (1)",
    "9 8 rows=879, RealTimeStreamScan",
)


def test_a_stage_of_projections_passes_on_what_comes_and_a_sink_counts_too_late() -> None:
    source, middle, sink = parse(CHAIN)
    assert source == StageCounters(taken=(879,), put_out=(879,), written=854)
    assert middle == StageCounters(passes_on=True, written=831)
    assert sink == StageCounters(passes_on=True)


def test_a_filter_counts_what_leaves_it() -> None:
    text = graph("0 -1 bytes=1, Exchange", "1 0  Project", "2 1 rows=2, Filter", "3 2 rows=3, MicroBatchScan")
    *_, stage = parse(graph("9 -1  Project", "8 9 bytes=5, Exchange") + text.replace("0\t-1", "0\t8"))
    assert parse(graph("9 -1  Project") + text.replace("0\t-1", "0\t9"))[0] == StageCounters((3,), (2,), False, 1)
    assert stage == StageCounters(passes_on=True)


def test_stages_come_in_the_order_of_the_plan_and_joins_read_two() -> None:
    text = graph(
        "0 -1  WriteToDataSourceV2",
        "1 0 rows=10, StreamingSymmetricHashJoin",
        "2 1 bytes=20, Exchange",
        "3 2 rows=30, MicroBatchScan",
        "4 1  Project",
        "5 4 bytes=50, Exchange",
        "6 5 rows=60, Filter",
        "7 6 rows=70, MicroBatchScan",
    )
    left, right, join = parse(text)
    assert (left.taken, left.written) == ((30,), 20)
    assert (right.taken, right.put_out, right.written) == ((70,), (60,), 50)
    assert (join.taken, join.put_out, join.passes_on) == ((), (10,), False)


def test_a_union_puts_out_what_its_branches_do_and_a_broadcast_is_no_stage() -> None:
    text = graph(
        "0 -1  WriteToDataSourceV2",
        "1 0  Union",
        "2 1 rows=20, Filter",
        "3 2 rows=30, MicroBatchScan",
        "4 1 rows=40, BroadcastHashJoin",
        "5 4 rows=50, MicroBatchScan",
        "6 4 rows=60, BroadcastExchange",
        "7 6 rows=70, Scan csv",
    )
    assert parse(text) == (StageCounters(taken=(30, 50), put_out=(20, 40)),)


def test_an_operator_that_nobody_knows_leaves_the_number_of_rows_unknown() -> None:
    stages = parse(graph("0 -1  WriteToDataSourceV2", "1 0  Something", "2 1 bytes=1, Exchange", "3 2 rows=4, Scan x"))
    assert stages[-1] == StageCounters()


@FUZZ
@given(st.lists(st.sampled_from(["1", "2", "-1", "rows=1,", "x=,", "Exchange", "Union", "\t", "\n"]), max_size=40))
def test_any_graph_is_survived(words: list[str]) -> None:
    with suppress(ValueError):
        parse("".join(words))
