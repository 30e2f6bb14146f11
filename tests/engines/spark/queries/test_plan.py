from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ
from treadle.engines.spark.queries import plan
from treadle.model import Query

COUNT = """== Physical Plan ==
WriteToDataSourceV2 (7)
+- ProjectAggregationBuffer (6)
   +- StatefulStreamlineAggregate (5)
      +- Exchange (4)
         +- ProjectAggregationBuffer (3)
            +- * Project (2)
               +- RealTimeStreamScan (1)


(1) RealTimeStreamScan
Output [7]: [key#35, value#36, topic#37, partition#38, offset#39L, timestamp#40, timestampType#41]
class org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaScan

(2) Project [codegen id : 1]
Output [1]: [substring(cast(value#36 as string), -1, 1) AS _groupingexpression#58]
Input [7]: [key#35, value#36, topic#37, partition#38, offset#39L, timestamp#40, timestampType#41]

(3) ProjectAggregationBuffer
Input [1]: [_groupingexpression#58]
Keys [1]: [_groupingexpression#58]
Functions [1]: [partial_count(1)]
Results [2]: [_groupingexpression#58, count#62L]

(4) Exchange
Input [2]: [_groupingexpression#58, count#62L]
Arguments: hashpartitioning(_groupingexpression#58, 1), REQUIRED_BY_STATEFUL_OPERATOR, isPipelined=true, [plan_id=88]

(5) StatefulStreamlineAggregate
Input [2]: [_groupingexpression#58, count#62L]
Keys [1]: [_groupingexpression#58]
Functions [1]: [merge_count(1)]

(6) ProjectAggregationBuffer
Input [2]: [_groupingexpression#58, count#62L]
Keys [1]: [_groupingexpression#58]
Functions [1]: [count(1)]
Results [2]: [_groupingexpression#58 AS digit#51, count(1)#55L AS count#52L]

(7) WriteToDataSourceV2
Input [2]: [digit#51, count#52L]
Arguments: MicroBatchWrite[epoch: 0, writer: NoopStreamingWrite]


"""
JOIN = """== Physical Plan ==
WriteToDataSourceV2 (12)
+- * Filter (11)
   +- Union (10)
      :- Exchange (5)
      :  +- * Project (4)
      :     +- * BroadcastHashJoin Inner BuildRight (3)
      :        :- MicroBatchScan (1)
      :        +- BroadcastExchange (2)
      :           +- Scan parquet (13)
      +- Exchange (9)
         +- MapInArrow (8)
            +- MicroBatchScan (6)


(1) MicroBatchScan
Output [2]: [timestamp#1, value#2L]
class org.apache.spark.sql.execution.streaming.sources.RateStreamTable$$anon$1

(3) BroadcastHashJoin [codegen id : 1]
Left keys [1]: [value#2L]
Right keys [1]: [id#9L]

(4) Project [codegen id : 1]
Output [1]: [(value#2L + 1) AS bigger#3L]

(6) MicroBatchScan
Output [1]: [value#5]
class org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaScan

(8) MapInArrow
Input [1]: [value#5]
Arguments: clean(value#5)#7, [value#8], false

(11) Filter [codegen id : 2]
Condition : (isnotnull(bigger#3L) AND (bigger#3L > 1))

(12) WriteToDataSourceV2
Arguments: MicroBatchWrite[epoch: 3, writer: org.apache.spark.sql.kafka010.KafkaStreamingWrite@109043b8]


"""


def test_stages_are_cut_at_exchanges_and_operators_have_names() -> None:
    found = plan.parse(COUNT)
    assert found is not None
    first, last = found.stages
    assert first.operators == ("kafka in", "project digit", "partial aggregate by digit")
    assert last.operators == ("aggregate by digit", "noop out")
    assert (first.reads, last.reads, found.reader_of(0), found.reader_of(1)) == ((), (0,), 1, -1)
    assert first.kafka_in
    assert not last.kafka_out
    assert [op.upstream for op in found.operators] == [(), *((op.name,) for op in found.operators[:-1])]


def test_branches_joins_python_and_what_runs_as_a_job_of_its_own() -> None:
    found = plan.parse(JOIN)
    assert found is not None
    assert [stage.operators for stage in found.stages] == [
        ("rate in", "join by value", "project bigger"),
        ("kafka in", "python clean"),
        ("union", "filter by bigger", "kafka out"),
    ]
    assert found.stages[2].reads == (0, 1)
    assert [stage.kafka_in for stage in found.stages] == [False, True, False]
    assert [stage.python for stage in found.stages] == [False, True, False]
    assert found.stages[2].kafka_out
    union = next(op for op in found.operators if op.name == "union")
    assert union.upstream == ("project bigger", "python clean")
    Query("q", found.operators)  # a graph that the model takes


@given(st.integers(1, 10_000))
def test_names_are_the_same_in_every_batch(more: int) -> None:
    later = re.sub(r"#(\d+)", lambda number: f"#{int(number[1]) + more}", COUNT).replace("epoch: 0", f"epoch: {more}")
    assert plan.parse(later) == plan.parse(COUNT)


def test_operators_of_one_kind_have_names_of_their_own() -> None:
    twice = JOIN.replace("RateStreamTable$$anon$1", "kafka010.KafkaScan")
    found = plan.parse(twice)
    assert found is not None
    assert {"kafka in", "kafka in 2"} <= {op.name for op in found.operators}


@given(st.text())
def test_what_is_no_plan_is_none(text: str) -> None:
    assert plan.parse(text) is None


@given(st.integers(1, 9))
def test_without_a_plan_stages_are_a_chain(stages: int) -> None:
    found = plan.chain(stages)
    assert [stage.reads for stage in found.stages] == [(), *((at,) for at in range(stages - 1))]
    assert [found.reader_of(at) for at in range(stages)] == [*range(1, stages), -1]
    Query("q", found.operators)


PIECES = st.one_of(
    st.sampled_from(["+- ", ":  ", "Filter (1)\n", "* Project (2)\n", "Exchange (3)\n", "Scan kafka (4)\n", "\n\n"]),
    st.sampled_from(["(1) Filter\n", "Output [1]: [", " AS a#1", "writer: a.b.", "Keys [1]: [a#1]\n", "===== "]),
    st.sampled_from(["(" + "9" * 5000 + ") ", "_groupingexpression#1"]),
)


@FUZZ
@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_description_is_survived(text: str) -> None:
    plan.parse(text)


def test_a_plan_larger_than_any_that_is_run_is_none() -> None:
    assert plan.parse("x" * (plan.LONGEST_PLAN + 1)) is None
    assert plan.parse("Filter (1)\n" * (plan.MOST_NODES + 1)) is None
    deep = "".join(f"{'   ' * (level - 1)}{'+- ' if level else ''}Filter (1)\n" for level in range(plan.DEEPEST + 3))
    assert plan.parse(deep) is None


def test_a_plan_with_one_long_detail_for_many_operators_is_read_in_bounded_time() -> None:
    head = "".join(f"{'+- ' if number else ''}MapInPandas (1)\n" for number in range(plan.MOST_NODES))
    assert plan.parse(f"{head}\n\n(1) MapInPandas\nArguments: {'a' * 500_000}\n") is not None
