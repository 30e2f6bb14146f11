"""Functions become a graph by their parameters' names; what makes no sense is refused with its line and the remedy."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.pipelines import Kind, Node, Pipeline

Define = Callable[[Pipeline], object]


def fraud() -> Pipeline:
    """Two sources, a shared operator, a join, an urgent sink and one that is not."""
    p = Pipeline("fraud")

    @p.source(arrival="ts")
    def payments(spark: Any) -> Any:
        return spark

    p.feed("limits", schema="account long, most double")

    @p.operator
    def clean(payments: Any) -> Any:
        return payments

    @p.operator
    def scored(clean: Any, limits: Any, strict: bool = False) -> Any:
        return (clean, limits, strict)

    @p.sink(priority=10, latency_goal="1s", min_accuracy=0.9)
    def alerts(scored: Any, batch_id: int) -> None: ...

    p.write("archive", reads="clean", format="parquet", options={"path": "x", "compact": True}, latency_goal=60)
    return p


def refused(define: Define, p: Pipeline | None = None) -> ConfigError:
    """The one error that a definition, or the check after it, raises: with a place and a remedy."""
    p = p or Pipeline("p")
    with pytest.raises(ConfigError) as error:
        (define(p), p.check())  # type: ignore[func-returns-value]
    assert error.value.where
    assert error.value.remedy
    return error.value


def take(*names: str) -> Callable[..., None]:
    """A function with these parameters."""
    return eval(f"lambda {', '.join(names)}: None")  # type: ignore[no-any-return]


def build(*, feeds: str = "", operators: dict[str, str] | None = None, sinks: dict[str, str] | None = None) -> Pipeline:
    """`build(feeds="a b", operators={"c": "a b"}, sinks={"d": "c"})`: each with what it reads."""
    p = Pipeline("p")
    for name in feeds.split():
        p.feed(name, schema="id long")
    for name, reads in (operators or {}).items():
        p.operator(name=name)(take(*reads.split()))
    for name, reads in (sinks or {}).items():
        p.sink(name=name)(take(*reads.split()))
    return p


class TestDefinition:
    def test_parameters_are_inputs_and_a_default_is_none(self) -> None:
        p = fraud()
        assert p.node("scored").inputs == ("clean", "limits")
        assert [n.name for n in p.upstream("scored")] == ["clean", "limits"]
        assert [n.name for n in p.downstream("clean")] == ["scored", "archive"]

    def test_decorators_give_back_the_function_itself(self) -> None:
        p = Pipeline("p")

        def function(a: int) -> int:
            return a + 1

        assert p.source(function) is function
        assert p.operator(name="o")(function) is function
        assert p.sink(name="s")(function) is function
        assert function(1) == 2

    def test_a_node_keeps_what_was_said_of_it(self) -> None:
        p = fraud()
        alerts, archive, payments = p.node("alerts"), p.node("archive"), p.node("payments")
        assert (alerts.kind, alerts.priority, alerts.latency_goal, alerts.min_accuracy) == (Kind.SINK, 10.0, 1.0, 0.9)
        assert (archive.kind, archive.format, archive.latency_goal) == (Kind.WRITER, "parquet", 60.0)
        assert archive.options == {"path": "x", "compact": "true"}
        assert (payments.arrival, payments.place.partition(":")[0]) == ("ts", "test_pipeline.py")

    def test_a_feed_and_a_topic_are_sources_with_a_schema(self) -> None:
        p = Pipeline("p")
        p.feed("f", schema="id long")
        p.topic("t", schema="id long", options={"startingOffsets": "earliest"})
        p.topic("r", topic="raw-events", format="raw")
        assert (p.node("t").topic, p.node("t").format, p.node("t").schema) == ("t", "json", "id long")
        assert (p.node("r").topic, p.node("r").format) == ("raw-events", "raw")
        assert all(p.node(n).kind.starts and not p.node(n).kind.runs for n in "ftr")

    @pytest.mark.parametrize(
        ("inputs", "wanted"),
        [
            (["a", "b"], ("a", "b")),
            (("b", "a"), ("b", "a")),
            ({"y": "a", "x": "b"}, ("b", "a")),
            ({"x": "b"}, ("b", "y")),
        ],
    )
    def test_inputs_may_be_given_in_place_of_the_parameters_names(self, inputs: Any, wanted: tuple[str, ...]) -> None:
        p = Pipeline("p")
        p.operator(name="o", inputs=inputs)(take("x", "y"))
        assert p.node("o").inputs == wanted

    def test_one_input_may_be_given_as_it_is(self) -> None:
        p = Pipeline("p")
        for number in range(3):
            p.operator(name=f"o{number}", inputs="a")(lambda df, number=number: (df, number))
        p.operator(name="part", inputs="a")(functools.partial(lambda df, more: (df, more), more=1))
        assert {p.node(n).inputs for n in ("o0", "o1", "o2", "part")} == {("a",)}

    @pytest.mark.parametrize(
        ("parameters", "takes_id"),
        [
            (["a"], False),
            (["a", "batch_id"], True),
            (["a", "n"], True),
            (["a", "batch_id=0"], True),
            (["a", "n=0"], False),
        ],
    )
    def test_a_sink_takes_a_batch_id_or_not(self, parameters: list[str], takes_id: bool) -> None:
        p = Pipeline("p")
        p.sink(name="s")(take(*parameters))
        assert p.node("s").inputs == ("a",)
        assert p.node("s").takes_batch_id is takes_id

    @pytest.mark.parametrize(
        ("goal", "wanted"), [("500ms", 0.5), (2, 2.0), (timedelta(minutes=2), 120.0), (None, None)]
    )
    def test_goals_are_seconds(self, goal: Any, wanted: float | None) -> None:
        p = Pipeline("p")
        p.sink(name="s", latency_goal=goal)(take("a"))
        assert p.node("s").latency_goal == wanted

    def test_the_order_of_definition_does_not_matter(self) -> None:
        p = build(sinks={"last": "middle"}, operators={"middle": "first"}, feeds="first")
        assert [node.name for node in p.nodes] == ["first", "middle", "last"]

    def test_it_needs_no_spark(self) -> None:
        code = "import sys, treadle.pipelines; sys.exit(any(m.startswith('pyspark') for m in sys.modules))"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestRefusedDefinitions:
    @pytest.mark.parametrize(
        ("define", "message"),
        [
            (lambda p: p.operator(name="o")(take()), "operator 'o' (test_pipeline.py:"),
            (lambda p: p.operator(name="o")(take("a=1")), "reads nothing"),
            (lambda p: p.operator(name="o")(take("*a")), "takes *a, so its inputs can't be determined"),
            (lambda p: p.operator(name="o")(take("a", "**b")), "takes **b"),
            (lambda p: p.operator(name="o")(take("*", "a")), "takes 'a' by keyword only"),
            (lambda p: p.sink(name="s")(take("*a")), "takes *a"),
            (lambda p: p.sink(name="s")(take()), "takes 0 parameters"),
            (lambda p: p.sink(name="s")(take("a", "b", "c")), "takes 3 parameters"),
            (lambda p: p.sink(name="s", inputs=["a", "b"])(take("a", "b")), "reads 2 inputs"),
            (lambda p: p.source(name="s")(take()), "must take the session and nothing else"),
            (lambda p: p.source(name="s")(take("a", "b")), "must take the session and nothing else"),
            (lambda p: p.source("s"), "a source is made of a function, not of 's'"),
            (lambda p: p.operator(take("a")), "'<lambda>' can't be a name"),
            (lambda p: p.operator(functools.partial(take("a"))), "None can't be a name"),
            (lambda p: p.feed("a/b", schema="id long"), "'a/b' can't be a name"),
            (lambda p: p.feed("..", schema="id long"), "'..' can't be a name"),
            (lambda p: p.feed("", schema="id long"), "'' can't be a name"),
            (lambda p: p.feed("-a", schema="id long"), "'-a' can't be a name"),
            (lambda p: p.feed("a\n", schema="id long"), "can't be a name"),
            (lambda p: p.feed("x" * 101, schema="id long"), "can't be a name"),
            (lambda p: p.write("größe", reads="a", format="noop"), "'größe' can't be a name"),
            (
                lambda p: p.operator(name="o", inputs=["a"])(take("a", "b")),
                "inputs has 1 names, but the function takes 2",
            ),
            (lambda p: p.operator(name="o", inputs={"z": "a"})(take("a")), "inputs has 'z', which is no parameter"),
            (lambda p: p.operator(name="o", inputs=[fraud])(take("a")), "an input is given as <function fraud"),
            (lambda p: p.sink(name="s", priority="high")(take("a")), "priority is 'high'"),
            (lambda p: p.sink(name="s", priority=float("nan"))(take("a")), "priority is nan"),
            (lambda p: p.sink(name="s", priority=True)(take("a")), "priority is True"),
            (lambda p: p.sink(name="s", latency_goal="soon")(take("a")), "latency_goal is not a duration: 'soon'"),
            (lambda p: p.sink(name="s", latency_goal=0)(take("a")), "latency_goal must be above zero"),
            (lambda p: p.sink(name="s", min_accuracy=90)(take("a")), "min_accuracy is 90"),
            (lambda p: p.sink(name="s", min_accuracy="0.9")(take("a")), "min_accuracy is '0.9'"),
            (lambda p: p.feed("f", schema=""), "its schema is ''"),
            (lambda p: p.topic("t"), "has no schema"),
            (lambda p: p.topic("t", format="avro", schema="id long"), "format 'avro' is unknown"),
            (lambda p: p.topic("t", format="raw", schema="id long"), "a raw topic has Kafka's own columns"),
            (lambda p: p.topic("t", schema="id long", topic="a b"), "topic is 'a b'"),
            (lambda p: p.topic("t", schema="id long", topic=""), "topic is ''"),
            (lambda p: p.write("w", reads="a", format=""), "format is ''"),
            (lambda p: p.write("w", reads="a", format="noop", options=["x"]), "options is ['x']"),
        ],
    )
    def test_it_is_refused_at_its_line(self, define: Define, message: str) -> None:
        error = refused(define)
        assert message in str(error)
        assert "test_pipeline.py:" in error.where

    def test_a_name_used_twice_is_refused_with_both_lines(self) -> None:
        error = refused(lambda p: p.write("a", reads="a", format="noop"), build(feeds="a"))
        assert "already that of feed 'a' (test_pipeline.py:" in str(error)

    def test_a_pipelines_name_is_a_name_too(self) -> None:
        with pytest.raises(ConfigError, match=r"pipeline \(test_pipeline.py:\d+\): 'a b' can't be a name"):
            Pipeline("a b")


class TestRefusedGraphs:
    @pytest.mark.parametrize(
        ("p", "message", "remedy"),
        [
            (build(), "pipeline 'p': is empty", "@p.source"),
            (
                build(feeds="payments", sinks={"s": "payment"}),
                "reads 'payment', which does not exist",
                "did you mean payments?",
            ),
            (build(feeds="a", operators={"o": "spark a"}, sinks={"s": "o"}), "reads 'spark'", "df.sparkSession"),
            (build(feeds="a", sinks={"s": "a", "t": "s"}), "reads 's', but a sink has no output", "use one of a"),
            (
                build(feeds="a", operators={"x": "a z", "y": "x", "z": "y"}, sinks={"s": "z"}),
                "operator 'x' (test_pipeline.py:",
                "cut one of these",
            ),
            (build(feeds="a", operators={"x": "x a"}, sinks={"s": "x"}), "reads what it makes itself: x -> x", "cut"),
            (build(feeds="a b", sinks={"s": "a"}), "nothing reads 'b'", "a sink or an operator with the parameter b"),
            (build(feeds="a", operators={"o": "a"}, sinks={"s": "a"}), "nothing reads 'o'", "parameter o"),
            (build(feeds="a"), "nothing reads 'a'", "add a sink"),
            (
                build(feeds="a b", sinks={"s": "a b", "t": "b"}),
                "takes 'b' as second parameter, which is the batch id",
                "join them in an operator",
            ),
        ],
    )
    def test_it_is_refused_with_the_offender(self, p: Pipeline, message: str, remedy: str) -> None:
        error = refused(lambda _: None, p)
        assert message in str(error)
        assert remedy in error.remedy

    def test_a_cycle_is_shown_in_the_direction_of_the_data(self) -> None:
        p = build(feeds="a", operators={"x": "a z", "y": "x", "z": "y"}, sinks={"s": "z"})
        assert "x -> y -> z -> x" in str(refused(lambda _: None, p))

    def test_an_input_that_is_read_twice_is_refused(self) -> None:
        p = build(feeds="a")
        p.operator(name="o", inputs=["a", "a"])(take("x", "y"))
        p.sink(name="s")(take("o"))
        assert "reads 'a' twice" in str(refused(lambda _: None, p))

    @pytest.mark.parametrize(
        "look", [lambda p: p.nodes, lambda p: p.queries(), lambda p: p.topology(), lambda p: p.run()]
    )
    def test_whoever_looks_at_the_graph_has_it_checked(self, look: Define) -> None:
        with pytest.raises(ConfigError, match="nothing reads 'a'"):
            look(build(feeds="a"))

    def test_an_unknown_node_is_named_with_the_near_ones(self) -> None:
        with pytest.raises(ConfigError, match="did you mean scored"):
            fraud().node("scorde")


class TestQueries:
    def test_a_connected_part_is_a_query_named_after_its_most_important_sink(self) -> None:
        (query,) = fraud().queries()
        assert (query.name, query.priority, query.latency_goal) == ("alerts", 10.0, 1.0)
        assert {op.name: op.upstream for op in query.operators} == {
            "payments": (),
            "clean": ("payments",),
            "scored": ("clean",),
            "alerts": ("scored",),
            "archive": ("clean",),
        }

    def test_an_operator_matters_as_much_as_the_best_sink_it_reaches(self) -> None:
        (query,) = fraud().queries()
        assert {op.name: op.priority for op in query.operators} == {
            "payments": 10.0,
            "clean": 10.0,
            "scored": 10.0,
            "alerts": 10.0,
            "archive": 0.0,
        }

    def test_an_operator_has_the_smallest_goal_of_the_sinks_it_reaches_or_none(self) -> None:
        p = build(feeds="a", operators={"o": "a", "q": "o"}, sinks={"late": "o"})
        p.sink(name="soon", latency_goal="1s")(take("q"))
        p.sink(name="sooner", latency_goal="500ms")(take("o"))
        goal = dict(zip(p.topology().ids, p.topology().latency_goal.tolist(), strict=True))
        assert {name.partition(".")[2]: value for name, value in goal.items() if value == value} == {
            "o[0]": 0.5,
            "q[0]": 1.0,
            "soon[0]": 1.0,
            "sooner[0]": 0.5,
        }

    def test_the_first_of_equal_sinks_gives_the_name(self) -> None:
        p = build(feeds="a", operators={"o": "a"}, sinks={"one": "o", "two": "o"})
        assert [query.name for query in p.queries()] == ["one"]

    def test_sinks_on_one_feed_are_queries_of_their_own(self) -> None:
        p = build(feeds="a", operators={"o": "a"}, sinks={"one": "o", "two": "a"})
        assert {q.name: [op.name for op in q.operators] for q in p.queries()} == {"one": ["o", "one"], "two": ["two"]}

    def test_a_join_makes_one_query_of_two_sources(self) -> None:
        p = build(feeds="f", operators={"a": "f", "b": "f", "both": "a b"}, sinks={"s": "both"})
        assert len(p.queries()) == 1


class TestTopology:
    def test_hops_are_a_unit_for_each_node_that_runs(self) -> None:
        topology = fraud().topology("hops")
        assert topology.ids[0] == "spark:alerts.payments[0]"
        assert len(topology) == 5
        assert topology.priority.tolist() == [10.0, 10.0, 10.0, 10.0, 0.0]

    def test_fused_is_a_unit_for_each_sink_with_all_that_it_needs(self) -> None:
        topology = fraud().topology("fused", engine="")
        assert topology.ids == ("alerts.payments+clean+scored+alerts[0]", "archive.payments+clean+archive[0]")
        assert topology.priority.tolist() == [10.0, 0.0]
        assert topology.latency_goal.tolist() == [1.0, 60.0]
        assert topology.is_source.all()
        assert topology.is_sink.all()

    def test_an_unknown_layout_is_refused_with_those_there_are(self) -> None:
        with pytest.raises(ConfigError, match="layout 'zigzag' is unknown") as error:
            fraud().topology("zigzag")
        assert "hops, fused, realtime" in error.value.remedy


class TestFingerprint:
    def test_it_depends_on_the_graph_and_not_on_the_order_or_the_code(self) -> None:
        one = build(feeds="a b", sinks={"s": "a", "t": "b"})
        other = Pipeline("p")
        other.sink(name="t", priority=5)(lambda b, batch_id: 1)
        other.feed("b", schema="x double")
        other.feed("a", schema="x double")
        other.sink(name="s")(take("a"))
        assert one.fingerprint() == other.fingerprint()

    @pytest.mark.parametrize(
        "other",
        [
            build(feeds="a b", sinks={"s": "a", "t": "a"}),
            build(feeds="a c", sinks={"s": "a", "t": "c"}),
            build(feeds="a b", operators={"o": "b"}, sinks={"s": "a", "t": "o"}),
            fraud(),
        ],
    )
    def test_another_graph_has_another(self, other: Pipeline) -> None:
        assert build(feeds="a b", sinks={"s": "a", "t": "b"}).fingerprint() != other.fingerprint()

    def test_a_line_is_a_node(self) -> None:
        assert build(feeds="a", sinks={"s": "a"}).fingerprint() == "pipeline p\na feed\ns sink a\n"


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Any acyclic graph, defined in any order; what nothing reads gets a sink."""
    size = draw(st.integers(1, 8))
    reads = {f"n{i}": sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(size)}
    unread = set(reads) - {f"n{up}" for ups in reads.values() for up in ups}
    p = Pipeline("p")
    definitions: list[Callable[[], object]] = []
    for name, ups in reads.items():
        if ups:
            definitions.append(functools.partial(p.operator(name=name), take(*(f"n{up}" for up in ups))))
        elif draw(st.booleans()):
            definitions.append(functools.partial(p.source(name=name), take("spark")))
        else:
            definitions.append(functools.partial(p.feed, name, schema="id long"))
    for number, name in enumerate(sorted(unread) + draw(st.lists(st.sampled_from(sorted(reads)), max_size=2))):
        priority = draw(st.integers(-2, 2))
        definitions.append(functools.partial(p.sink(name=f"s{number}", priority=priority), take(name)))
    for define in draw(st.permutations(definitions)):
        define()
    return p


def reached(p: Pipeline, name: str) -> set[str]:
    """The sinks that a node's rows reach, the slow way."""
    node = p.node(name)
    return {name} if node.kind.ends else set().union(*(reached(p, down.name) for down in p.downstream(name)))


@given(pipelines())
def test_every_node_comes_after_what_it_reads(p: Pipeline) -> None:
    order = [node.name for node in p.nodes]
    assert sorted(order) == sorted({node.name for node in p.nodes})
    assert all(order.index(up) < order.index(node.name) for node in p.nodes for up in node.inputs)


@given(pipelines())
def test_what_runs_is_in_one_query_and_as_important_as_the_sinks_it_reaches(p: Pipeline) -> None:
    running = sorted(node.name for node in p.nodes if node.kind.runs)
    operators = [op for query in p.queries() for op in query.operators]
    assert sorted(op.name for op in operators) == running
    for op in operators:
        assert op.priority == max(p.node(name).priority for name in reached(p, op.name))
    for query in p.queries():
        own = {op.name for op in query.operators}
        assert query.priority == max(sink.priority for sink in p.sinks if sink.name in own)
        assert p.node(query.name).priority == query.priority


@given(pipelines())
def test_fused_runs_each_sink_with_exactly_what_reaches_it(p: Pipeline) -> None:
    topology = p.topology("fused")
    assert [i.query for i in topology.instances] == [sink.name for sink in p.sinks]
    for instance in topology.instances:
        wanted = {n.name for n in p.nodes if n.kind.runs and instance.query in reached(p, n.name)}
        assert set(instance.operators) == wanted
        assert len(instance.operators) == len(wanted)


@given(pipelines())
def test_hops_has_a_row_for_each_node_that_runs(p: Pipeline) -> None:
    topology = p.topology("hops")
    by_name: dict[str, Node] = {node.name: node for node in p.nodes}
    assert sorted(i.operators[0] for i in topology.instances) == sorted(
        n for n, node in by_name.items() if node.kind.runs
    )
    assert len(topology.levels) >= 1
