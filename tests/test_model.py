"""Graphs that make no sense are refused by name; edges, levels and shares are right on every shape of graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.model import Instance, Operator, Query, Role, ThreadRef, Topology


def query(name: str, **upstream: str) -> Query:
    """`query("q", a="", b="a", c="a b")`: each operator with the names that it reads from."""
    return Query(name, tuple(Operator(op, tuple(ups.split())) for op, ups in upstream.items()))


CHAIN = query("chain", a="", b="a", c="b")
BRANCH = query("branch", a="", b="a", c="a")
JOIN = query("join", left="", right="", both="left right")


def edges_by_id(topology: Topology) -> dict[tuple[str, str], float]:
    start, end, share = topology.edges
    return {
        (topology.ids[s], topology.ids[e]): float(x)
        for s, e, x in zip(start.tolist(), end.tolist(), share, strict=True)
    }


class TestWrongGraphs:
    @pytest.mark.parametrize(
        ("upstream", "message"),
        [
            ({"a": "", "b": "a d", "c": "b", "d": "c", "e": "d"}, "query 'q': has a cycle: b -> c -> d -> b"),
            ({"a": "", "b": "b a", "c": "b"}, "query 'q': has a cycle: b -> b"),
            ({"a": "", "b": "nowhere"}, "operator 'b' reads from 'nowhere', which does not exist (use one of a)"),
            (
                {"a": "b", "b": "a", "c": "b"},
                "has no source: every operator waits for another (a -> b -> a)",
            ),
            ({"a": "", "b": "a c", "c": "b"}, "query 'q': has no sink: every operator feeds another (b -> c -> b)"),
            ({}, "query 'q': has no source and no sink: it has no operators"),
            ({"a": "", "b": "a a"}, "operator 'b' reads twice from one upstream"),
        ],
    )
    def test_a_wrong_graph_is_refused_and_the_offender_named(self, upstream: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError) as error:
            query("q", **upstream)
        assert message in str(error.value)
        assert error.value.remedy

    def test_a_name_used_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="operator 'a' is defined twice"):
            Query("q", (Operator("a"), Operator("b", ("a",)), Operator("a")))

    def test_a_query_and_an_operator_need_a_name(self) -> None:
        with pytest.raises(ConfigError, match="a query has no name"):
            Query("", (Operator("a"),))
        with pytest.raises(ConfigError, match="an operator has no name"):
            Query("q", (Operator(""),))

    def test_a_query_that_is_there_twice_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="query 'chain' is defined twice"):
            Topology.of([CHAIN, CHAIN])

    def test_an_instance_must_be_of_a_known_query_and_operator(self) -> None:
        with pytest.raises(ConfigError, match="of an unknown query"):
            Topology((CHAIN,), (Instance("other", ("a",)),))
        with pytest.raises(ConfigError, match="unknown operator 'z'"):
            Topology((CHAIN,), (Instance("chain", ("z",)),))

    def test_two_instances_with_one_id_are_refused(self) -> None:
        one = query("q", a="")
        with pytest.raises(ConfigError, match="two instances have one id"):
            Topology((one,), (Instance("q", ("a",)), Instance("q", ("a",))))

    def test_an_operator_that_nobody_runs_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="query 'chain': operator 'b' has no instance"):
            Topology((CHAIN,), (Instance("chain", ("a",)), Instance("chain", ("c",))))

    def test_a_fusion_around_an_operator_outside_it_is_refused(self) -> None:
        around = Topology.of([CHAIN], fused=[("chain", ("a", "c"))])
        with pytest.raises(ConfigError, match=r"chain\.a\+c\[0\]"):
            _ = around.levels

    @given(st.integers(2, 12), st.randoms(use_true_random=False))
    def test_any_order_of_an_acyclic_graph_is_accepted(self, size: int, random: object) -> None:
        operators = [Operator(f"o{i}", (f"o{i - 1}",) if i else ()) for i in range(size)]
        random.shuffle(operators)  # type: ignore[attr-defined]
        assert len(Query("q", tuple(operators)).downstream) == size


class TestEdges:
    def test_a_chain_passes_everything_on(self) -> None:
        topology = Topology.of([CHAIN])
        assert edges_by_id(topology) == {("chain.a[0]", "chain.b[0]"): 1.0, ("chain.b[0]", "chain.c[0]"): 1.0}
        assert topology.is_source.tolist() == [True, False, False]
        assert topology.is_sink.tolist() == [False, False, True]

    def test_every_consumer_of_a_branch_gets_the_whole_stream(self) -> None:
        assert set(edges_by_id(Topology.of([BRANCH])).values()) == {1.0}
        assert BRANCH.downstream["a"] == ("b", "c")

    def test_a_join_has_an_edge_from_each_side(self) -> None:
        topology = Topology.of([JOIN])
        assert set(edges_by_id(topology)) == {("join.left[0]", "join.both[0]"), ("join.right[0]", "join.both[0]")}
        assert topology.is_source.tolist() == [True, True, False]

    def test_the_copies_of_a_parallel_consumer_split_the_stream(self) -> None:
        topology = Topology.of([CHAIN], parallelism={("chain", "b"): 4, ("chain", "c"): 2})
        start, _, share = topology.edges
        assert len(topology) == 7
        assert share[start == 0].tolist() == [0.25] * 4
        for row in range(1, 5):
            assert share[start == row].tolist() == [0.5, 0.5]

    def test_fused_operators_have_no_queue_between_them(self) -> None:
        topology = Topology.of([CHAIN], fused=[("chain", ("a", "b"))])
        assert edges_by_id(topology) == {("chain.a+b[0]", "chain.c[0]"): 1.0}
        assert len(topology) == 2

    def test_one_instance_alone_is_source_and_sink(self) -> None:
        topology = Topology.of([query("q", a="")])
        assert topology.is_source.all()
        assert topology.is_sink.all()
        assert [level.rows.tolist() for level in topology.levels] == [[0]]

    def test_no_queries_at_all_is_an_empty_topology(self) -> None:
        topology = Topology((), ())
        assert len(topology) == 0
        assert len(topology.edges[0]) == 0
        assert topology.query_of.tolist() == []


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    queries = []
    copies: dict[tuple[str, str], int] = {}
    for number in range(draw(st.integers(1, 3))):
        operators = []
        for i in range(draw(st.integers(1, 7))):
            upstream = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else set()
            operators.append(Operator(f"o{i}", tuple(f"o{u}" for u in sorted(upstream))))
            copies[f"q{number}", f"o{i}"] = draw(st.integers(1, 3))
        queries.append(Query(f"q{number}", tuple(operators)))
    return Topology.of(queries, parallelism=copies)


@given(topologies())
def test_all_edges_of_a_level_lead_to_earlier_levels(topology: Topology) -> None:
    level_of = np.empty(len(topology), dtype=np.int64)
    for number, level in enumerate(topology.levels):
        level_of[level.rows] = number
    seen = []
    for number, level in enumerate(topology.levels):
        senders = level.rows[level.edge_from]
        assert (level_of[senders] == number).all()
        assert (level_of[level.edge_to] < number).all()
        seen += list(zip(senders.tolist(), level.edge_to.tolist(), level.share.tolist(), strict=True))
    assert sorted(seen) == sorted(zip(*(column.tolist() for column in topology.edges), strict=True))
    assert sorted(np.concatenate([level.rows for level in topology.levels]).tolist()) == list(range(len(topology)))
    assert topology.is_sink[topology.levels[0].rows].all()


@given(topologies())
def test_the_shares_of_a_sender_add_up_to_its_number_of_consumers(topology: Topology) -> None:
    start, _, share = topology.edges
    total = np.zeros(len(topology))
    np.add.at(total, start, share)
    by_name = {q.name: q for q in topology.queries}
    consumers = [len(by_name[i.query].downstream[i.operators[0]]) for i in topology.instances]
    np.testing.assert_allclose(total, consumers)


class TestMerge:
    def test_one_part_is_itself(self) -> None:
        part = Topology.of([CHAIN])
        assert Topology.merge([part]) is part

    def test_rows_follow_the_order_of_the_parts(self) -> None:
        spark = Topology.of([CHAIN], engine="spark", version=2)
        flink = Topology.of([JOIN], engine="flink", version=3)
        both = Topology.merge([spark, flink])
        assert both.ids == spark.ids + flink.ids
        assert both.query_of.tolist() == [0, 0, 0, 1, 1, 1]
        assert both.version == 5

    def test_a_query_name_that_two_engines_use_is_told_apart_by_the_engine(self) -> None:
        parts = [Topology.of([CHAIN], engine=name) for name in ("spark", "flink")]
        both = Topology.merge(parts)
        assert [q.name for q in both.queries] == ["spark/chain", "flink/chain"]
        assert len(set(both.ids)) == 6
        assert len(both.edges[0]) == 4

    def test_engines_without_a_name_are_told_apart_by_their_number(self) -> None:
        both = Topology.merge([Topology.of([CHAIN]), Topology.of([CHAIN])])
        assert [q.name for q in both.queries] == ["0/chain", "1/chain"]


def test_rows_know_their_querys_priority_and_goal() -> None:
    urgent = replace(CHAIN, priority=3.0, latency_goal=0.5)
    topology = Topology.of([urgent, JOIN])
    assert topology.priority.tolist() == [3.0] * 3 + [0.0] * 3
    assert topology.latency_goal[:3].tolist() == [0.5] * 3
    assert np.isnan(topology.latency_goal[3:]).all()
    assert topology.row_of["join.both[0]"] == 5


class TestPriorityOfAnOperator:
    MIXED = Query(
        "mixed",
        (Operator("a", priority=5.0), Operator("b", ("a",)), Operator("c", ("a",), priority=-1.0)),
        priority=2.0,
    )

    def test_an_operator_without_one_has_its_querys(self) -> None:
        assert Topology.of([self.MIXED, CHAIN]).priority.tolist() == [5.0, 2.0, -1.0, 0.0, 0.0, 0.0]

    def test_copies_share_it(self) -> None:
        assert Topology.of([self.MIXED], parallelism={("mixed", "c"): 2}).priority.tolist() == [5.0, 2.0, -1.0, -1.0]

    def test_fused_operators_run_at_the_highest_of_theirs(self) -> None:
        assert Topology.of([self.MIXED], fused=[("mixed", ("a", "b"))]).priority.tolist() == [5.0, -1.0]
        lower = Query("lower", (Operator("a"), Operator("b", ("a",), priority=1.0)), priority=2.0)
        assert Topology.of([lower], fused=[("lower", ("a", "b"))]).priority.tolist() == [2.0]

    @given(topologies(), st.data())
    def test_a_row_has_the_highest_priority_of_its_operators(self, topology: Topology, data: st.DataObject) -> None:
        priorities = st.none() | st.integers(-3, 3).map(float)
        queries = tuple(
            replace(q, priority=1.0, operators=tuple(replace(op, priority=data.draw(priorities)) for op in q.operators))
            for q in topology.queries
        )
        own = {
            (q.name, op.name): q.priority if op.priority is None else op.priority for q in queries for op in q.operators
        }
        wanted = [max(own[i.query, name] for name in i.operators) for i in topology.instances]
        assert replace(topology, queries=queries).priority.tolist() == wanted


class TestLatencyGoalOfAnOperator:
    MIXED = Query(
        "mixed",
        (Operator("a", latency_goal=0.1), Operator("b", ("a",)), Operator("c", ("a",), latency_goal=np.inf)),
        latency_goal=2.0,
    )

    def test_an_operator_without_one_has_its_querys_and_one_may_have_none(self) -> None:
        assert Topology.of([self.MIXED]).latency_goal.tolist() == pytest.approx([0.1, 2.0, np.nan], nan_ok=True)

    def test_fused_operators_have_the_smallest_of_theirs(self) -> None:
        assert Topology.of([self.MIXED], fused=[("mixed", ("b", "c"))]).latency_goal.tolist() == [0.1, 2.0]


def test_threads_know_their_row_and_role() -> None:
    main, helper = ThreadRef(1), ThreadRef(2, role=Role.HELPER)
    instances = (
        Instance("join", ("left",)),
        Instance("join", ("right",), threads=(main, helper)),
        Instance("join", ("both",), threads=(ThreadRef(3),)),
    )
    topology = Topology((JOIN,), instances)
    assert topology.threads == (main, helper, ThreadRef(3))
    assert topology.thread_row.tolist() == [1, 1, 2]
    assert topology.thread_is_helper.tolist() == [False, True, False]
