"""Plain Structured Streaming code under the gate: who goes first, and that nothing ever waits for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import LONG, until
from treadle.control import control_socket
from treadle.decide import registry
from treadle.decide.policies import Fcfs
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.api.query_gate import BatchFunction, QueryGate
from treadle.pipelines.channels.log import Writer
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from treadle.values import Snapshot

Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def gate(spark: SparkSession, own_sockets: Path) -> Iterator[QueryGate]:
    with treadle.gate(spark, policy="user-priority", slots=1, period="20ms", patience="1h") as made:
        yield made


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Starts a query over a source that always has rows, and stops it at the end."""
    started: list[StreamingQuery] = []

    def begin(function: BatchFunction, name: str, source: DataFrame | None = None) -> StreamingQuery:
        rows = source if source is not None else spark.readStream.format("rate").option("rowsPerSecond", 100).load()
        writer = rows.writeStream.foreachBatch(function).queryName(name)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        started.append(query)
        return query

    yield begin
    for query in started:
        query.stop()


class Hold:
    """A batch function that waits inside until it is let go, and remembers who came when."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.go = threading.Event()

    def __call__(self, name: str) -> BatchFunction:
        def batch(rows: DataFrame, batch_id: int) -> None:
            self.order.append(name)
            assert self.go.wait(LONG)

        return batch


@pytest.fixture
def hold() -> Iterator[Hold]:
    made = Hold()
    yield made
    made.go.set()  # before queries are stopped, which waits for their batches


def hops(gate: QueryGate) -> dict[str, Any]:
    found: dict[str, Any] = gate.status()["hops"]
    return found


def states(gate: QueryGate) -> dict[str, str]:
    return {name: hop["state"] for name, hop in hops(gate).items()}


def test_the_most_urgent_query_goes_first_whoever_asked_first(start: Start, gate: QueryGate, hold: Hold) -> None:
    start(gate.wrap(hold("holder")), "holder")
    until(lambda: hold.order == ["holder"])
    start(gate.wrap(hold("low"), priority=1), "low")
    until(lambda: states(gate).get("low") == "waiting")
    start(gate.wrap(hold("high"), priority=5), "high")
    until(lambda: states(gate).get("high") == "waiting")
    until(lambda: None not in (ranks := [hops(gate)[name]["rank"] for name in ("low", "high")]) and ranks[0] < ranks[1])
    assert hold.order == ["holder"]
    hold.go.set()
    until(lambda: {"low", "high"} <= set(hold.order))
    assert hold.order.index("high") < hold.order.index("low")


def test_a_function_that_raises_gives_its_slot_back_and_fails_only_its_own_query(start: Start, gate: QueryGate) -> None:
    done: list[int] = []

    def bad(rows: DataFrame, batch_id: int) -> None:
        raise ValueError("no good")

    failing = start(gate.wrap(bad), "bad")
    start(gate.wrap(lambda rows, batch_id: done.append(batch_id)), "good")
    until(lambda: failing.exception() is not None)
    assert "no good" in str(failing.exception())
    count = len(done)
    until(lambda: len(done) > count + 1)
    until(lambda: list(hops(gate)) == ["good"])


def test_a_query_can_be_stopped_while_it_waits_and_its_batch_comes_again(
    start: Start, gate: QueryGate, hold: Hold
) -> None:
    start(gate.wrap(hold("holder")), "holder")
    until(lambda: hold.order)
    waiting = start(gate.wrap(hold("waiting")), "waiting")
    until(lambda: states(gate).get("waiting") == "waiting")
    waiting.stop()
    assert waiting.exception() is None
    assert list(hops(gate)) == ["holder"]
    assert gate.status()["waiting"] == 0
    batches: list[int] = []
    start(gate.wrap(lambda rows, batch_id: batches.append(batch_id)), "waiting")
    hold.go.set()
    until(lambda: batches)
    assert batches[0] == 0


def test_a_query_that_is_stopped_in_its_slot_frees_it(start: Start, gate: QueryGate) -> None:
    began = threading.Event()

    def endless(rows: DataFrame, batch_id: int) -> None:
        while True:
            rows.count()
            began.set()

    query = start(gate.wrap(endless), "endless")
    assert began.wait(LONG)
    done: list[int] = []
    start(gate.wrap(lambda rows, batch_id: done.append(batch_id)), "other")
    query.stop()
    assert query.exception() is None
    until(lambda: done)
    until(lambda: list(hops(gate)) == ["other"])


def test_a_restarted_query_takes_the_place_of_its_earlier_run(start: Start, gate: QueryGate) -> None:
    done: list[int] = []
    function = gate.wrap(lambda rows, batch_id: done.append(batch_id), name="mine")
    gate.set(assign=lambda snapshot, groups: [0] * len(snapshot.topology), assign_period="20ms")
    for _ in range(2):
        done.clear()
        query = start(function, "query")
        until(lambda: len(done) > 1)
        assert list(hops(gate)) == ["mine"]
        until(lambda: hops(gate)["mine"]["group"] == 0)
        query.stop()
    until(lambda: not hops(gate))


def test_queries_of_one_function_and_of_other_sessions_are_told_apart(
    spark: SparkSession, start: Start, gate: QueryGate
) -> None:
    function = gate.wrap(lambda rows, batch_id: None, name="twice")
    elsewhere = spark.newSession().readStream.format("rate").load()
    start(function, "first")
    start(function, "second", elsewhere)
    until(lambda: sorted(hops(gate)) == ["twice", "twice-2"])
    until(lambda: all(hop["batches"] for hop in hops(gate).values()))


def test_the_backlog_comes_from_the_sources_offsets(
    spark: SparkSession, start: Start, gate: QueryGate, tmp_path: Path
) -> None:
    jvm.load(spark)
    with Writer(tmp_path / "numbers", "id long") as writer:
        writer.append([{"id": number} for number in range(35)])
    source = spark.readStream.format(jvm.CHANNEL).option("maxRowsPerTrigger", 10).load(str(tmp_path / "numbers"))
    seen: list[tuple[Any, Any]] = []

    def note(rows: DataFrame, batch_id: int) -> None:
        hop = hops(gate)["numbers"]
        seen.append((hop["queue"], hop["rows_in"]))
        rows.collect()

    start(gate.wrap(note), "numbers", source)
    until(lambda: len(seen) == 4)
    assert seen == [(None, 0), (25, 10), (15, 20), (5, 30)]
    until(lambda: (hops(gate)["numbers"]["queue"], hops(gate)["numbers"]["rows_in"]) == (0, 35))
    assert hops(gate)["numbers"]["head_age_seconds"] == 0
    assert hops(gate)["numbers"]["busy_seconds"] > 0


def test_the_backlog_of_a_source_that_does_not_tell_is_unknown_but_not_its_rows(start: Start, gate: QueryGate) -> None:
    start(gate.wrap(lambda rows, batch_id: rows.write.format("noop").mode("append").save()), "rate")
    until(lambda: hops(gate) and hops(gate)["rate"]["rows_in"] > 0)
    assert hops(gate)["rate"]["queue"] is None


def test_rows_out_are_those_that_the_function_is_given(spark: SparkSession, start: Start, gate: QueryGate) -> None:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 100).load().where("value % 10 = 0")
    start(gate.wrap(lambda rows, batch_id: rows.write.format("noop").mode("append").save()), "some", rows)
    start(gate.wrap(lambda rows, batch_id: None), "unused", rows)
    until(lambda: {"some", "unused"} <= hops(gate).keys() and hops(gate)["some"]["rows_in"] >= 200)
    some = hops(gate)["some"]
    assert some["rows_out"] == pytest.approx(some["rows_in"] / 10, abs=1)
    until(lambda: hops(gate)["unused"]["batches"] > 1)
    assert hops(gate)["unused"]["rows_in"] == 0 or hops(gate)["unused"]["rows_out"] is None


def test_policy_and_slots_change_while_it_runs_also_from_another_process(
    start: Start, gate: QueryGate, own_sockets: Path
) -> None:
    done: list[int] = []
    start(gate.wrap(lambda rows, batch_id: done.append(batch_id)), "running")
    path = control_socket.pick("tests")
    assert control_socket.ask(path, "policy", name="highest-rate") == "highest-rate" == gate.policy
    with pytest.raises(ConfigError, match="fcsf"):
        control_socket.ask(path, "policy", name="fcsf")
    assert gate.policy == "highest-rate"
    assert control_socket.ask(path, "slots", count=3) == 3 == gate.slots
    with pytest.raises(ConfigError, match="slots"):
        gate.set_slots(0)
    with pytest.raises(ConfigError, match="can't stop an application with a gate"):
        control_socket.ask(path, "stop")
    until(lambda: "running" in control_socket.ask(path, "status")["hops"])
    count = len(done)
    until(lambda: len(done) > count)


ORDERS: dict[str, str | None] = {
    **dict.fromkeys(("multi-class:low=fcfs", "user-priority", "fcfs", "fifo", "min-latency"), "few > many"),
    **dict.fromkeys(("queue-size", "mtiq", "congestion-aware"), "many > few"),
    **dict.fromkeys(("rr", "downstream-first", "none"), "as they ask"),
    **dict.fromkeys(("adaptive", "adaptive:objective=max output_rate"), "as they ask"),  # rr is the first candidate
    "adaptive:candidates=mtiq,objective=min total_queue": "many > few",
    "random": None,
}
"""Which of two queries goes first: `few` has a higher priority and a longer wait, `many` more rows that wait."""
COSTLY = ("highest-rate", "chain", "normalized-rate", "weighted")
"""Those that go by what rows cost; their order is asserted on the engine of hops."""


def order(gate: QueryGate) -> str:
    few, many = (gate._gate.rank(f"spark:{name}.{name}[0]") for name in ("few", "many"))
    if few == many:
        return "as they ask"
    if few > many:
        return "few > many"
    return "many > few" if many > few else "unknown"


def test_every_policy_decides_an_order(
    spark: SparkSession, start: Start, gate: QueryGate, hold: Hold, tmp_path: Path
) -> None:
    known = {spec.partition(":")[0] for spec in ORDERS}
    assert {policy.name for policy in registry.describe()} == known | {*COSTLY}
    jvm.load(spark)
    gate.set_slots(3)
    begun = {"few": threading.Event(), "many": threading.Event()}
    first = threading.Event()

    def slow(name: str) -> BatchFunction:
        def batch(rows: DataFrame, batch_id: int) -> None:
            begun[name].set()
            assert first.wait(LONG)

        return batch

    start(gate.wrap(hold("holder"), priority=1), "holder")
    for name, count, priority in (("few", 12, 5), ("many", 400, 1)):
        with Writer(tmp_path / f"{name}-rows", "id long") as writer:
            writer.append([{"id": number} for number in range(count)])
        source = (
            spark.readStream.format(jvm.CHANNEL).option("maxRowsPerTrigger", 10).load(str(tmp_path / f"{name}-rows"))
        )
        start(gate.wrap(slow(name), priority=priority), name, source)
        assert begun[name].wait(LONG)
    until(lambda: hold.order)
    gate.set_slots(1)  # which the holder has, from when the others are done with their first batch
    first.set()
    until(lambda: {"few", "many"} <= {name for name, hop in hops(gate).items() if hop["state"] == "waiting"})
    assert (hops(gate)["few"]["queue"], hops(gate)["many"]["queue"]) == (2, 390)
    for spec, expected in ORDERS.items():
        gate.set_policy(spec)
        rounds = gate._loop.stats.rounds
        until(lambda rounds=rounds: gate._loop.stats.rounds >= rounds + 3)  # type: ignore[misc]
        assert gate._loop.stats.troubles == {}, spec
        assert expected is None or order(gate) == expected, spec


def test_what_is_not_measured_at_the_gate_is_refused_as_an_objective(gate: QueryGate) -> None:
    with pytest.raises(ConfigError, match=r"'goals_missed' is not measured for the gate .*use one of latency, output"):
        gate.set_policy("adaptive:objective=min goals_missed")
    assert gate.policy == "user-priority"


def test_objectives_of_an_adaptive_policy_change_and_are_in_the_status(start: Start, gate: QueryGate) -> None:
    assert gate.status()["adaptive"] is None
    start(gate.wrap(lambda rows, batch_id: None), "any")  # without queries nothing is decided
    gate.set_policy("adaptive:candidates=fcfs+highest-rate,objective=min latency")
    until(lambda: gate.status()["adaptive"]["in_charge"] == "fcfs")
    gate.set(objectives="max throughput", candidates="chain+fcfs")
    shown = gate.status()["adaptive"]
    assert (shown["objectives"], set(shown["candidates"])) == (["max output_rate 1"], {"chain", "fcfs"})
    assert gate.policy == "adaptive:candidates=chain+fcfs,objective=max output_rate 1"
    for wrong in ({"objectives": "min goals_missed"}, {"candidates": "fastest"}):
        with pytest.raises(ConfigError):
            gate.settings.set(wrong)
    assert gate.status()["adaptive"]["objectives"] == ["max output_rate 1"]


def test_a_policy_may_be_an_object(gate: QueryGate) -> None:
    gate.set_policy(Fcfs())
    assert gate.policy == gate.status()["policy"] == "fcfs"
    with pytest.raises(ConfigError, match=r"policy can't be .*Fcfs'>.*a Policy object"):
        gate.set_policy(Fcfs)  # type: ignore[arg-type]


def test_paused_it_holds_nobody_back_until_it_goes_on(start: Start, gate: QueryGate, hold: Hold) -> None:
    for name in ("first", "second"):
        start(gate.wrap(hold(name)), name)
    until(lambda: sorted(states(gate).values()) == ["running", "waiting"])
    assert [each.after for each in gate.set(paused=True, period="30ms")] == [True, 0.03]
    until(lambda: sorted(states(gate).values()) == ["running", "running"])
    with pytest.raises(ConfigError, match="express can't be -1"):
        gate.set(paused=False, express=-1)
    assert gate.set(paused=False, dry_run=True)[0].after is False
    start(gate.wrap(hold("third")), "third")
    until(lambda: states(gate).get("third") == "running")
    gate.set(paused=False)
    start(gate.wrap(hold("fourth")), "fourth")
    until(lambda: states(gate).get("fourth") == "waiting")
    hold.go.set()
    until(lambda: "fourth" in hold.order)
    assert [each.setting for each in gate.history] == ["paused", "period", "paused"]


def test_queries_are_assigned_to_slots_and_a_function_that_fails_is_refused(
    start: Start, gate: QueryGate, hold: Hold
) -> None:
    def together(snapshot: Snapshot, groups: int) -> list[int]:
        return [groups - 1] * len(snapshot.topology)

    def last(snapshot: Snapshot, groups: int) -> list[int]:
        raise ValueError("not today")

    gate.set(slots=2, assign=together, assign_period="20ms")
    start(gate.wrap(hold("first")), "first")
    until(lambda: hops(gate).get("first", {}).get("group") == 1)
    start(gate.wrap(hold("second")), "second")
    until(lambda: hops(gate).get("second", {}).get("group") == 1)
    assert [group["hops"] for group in gate.status()["groups"]] == [0, 2]
    with pytest.raises(ConfigError, match="raised ValueError: not today"):
        gate.set(assign=last)
    assert gate.settings.read()["assign"] == "together"
    gate.set(assign="none")
    until(lambda: [each["group"] for each in hops(gate).values()] == [None, None])


ALERTS = {"queries": "alerts-*", "policy": "fcfs", "priority": 10}
OTHERS = {"queries": "*", "policy": "user-priority", "priority": 2, "period": "40ms"}


def test_rules_make_classes_of_queries_with_a_policy_each_and_change_while_batches_wait(
    start: Start, gate: QueryGate, hold: Hold, own_sockets: Path
) -> None:
    path = control_socket.pick("tests")

    def ranked(*wanted: str) -> None:
        """Wait until these queries are in this order, the most urgent first."""

        def are() -> bool:
            ranks = [gate._gate.rank(f"spark:{name}.{name}[0]") for name in wanted]
            return all(a > b for a, b in pairwise(ranks))

        until(are)

    start(gate.wrap(hold("holder")), "holder")
    until(lambda: hold.order == ["holder"])
    for name, priority in (("report-9", 9), ("alerts-old", 1), ("report-1", 1), ("alerts-new", 5)):
        start(gate.wrap(hold(name), priority=priority), name)
        until(lambda name=name: states(gate).get(name) == "waiting")  # type: ignore[misc]
    ranked("report-9", "alerts-new", "report-1")
    gate.set(rules=[ALERTS])
    ranked("alerts-new", "report-9", "report-1")
    ranked("alerts-old", "report-9")
    assert {name: hop["rule"] for name, hop in hops(gate).items() if name != "holder"} == {
        "report-9": None,
        "alerts-old": "alerts-*",
        "report-1": None,
        "alerts-new": "alerts-*",
    }
    gate.set(rules=[{**ALERTS, "priority": 0}])
    ranked("report-9", "report-1", "alerts-new")
    asked = control_socket.ask(path, "set", settings={"rules": [ALERTS, OTHERS], "period": "0.1s"})
    assert [each["setting"] for each in asked] == ["rules", "period"]
    assert (gate._loop.period(), gate.settings.read()["period"]) == (0.04, 0.1)
    ranked("alerts-new", "report-9", "report-1")
    shown = gate.settings.read()["rules"]
    assert [rule["policy"] for rule in shown] == ["fcfs", "user-priority"]
    for wrong, why in (
        ([ALERTS, ALERTS], r"rule 2 \('alerts-\*'\): rule 1 has this pattern too"),
        ([{**ALERTS, "policy": "fastest"}], r"rule 1 \('alerts-\*'\): there is no policy 'fastest'"),
        ([{"policy": "fcfs"}], r"rule 1: has no pattern"),
        ("alerts", r"rules can't be 'alerts'"),
    ):
        with pytest.raises(ConfigError, match=why):
            control_socket.ask(path, "set", settings={"slots": 2, "rules": wrong})
        assert (gate.settings.read()["rules"], gate.slots) == (shown, 1)
    with pytest.raises(ConfigError, match=r"rule 1 .* 'adaptive' judges by the figures of all queries"):
        gate.set_policy("adaptive")
    with pytest.raises(ConfigError, match="judges by the figures of all queries"):
        gate.set(policy="adaptive", rules=[ALERTS])
    assert (gate.policy, gate.settings.read()["rules"]) == ("user-priority", shown)
    gate.set(rules=[])
    assert gate._loop.period() == 0.1
    ranked("report-9", "alerts-new", "report-1")
    assert gate.history[-1].before == shown
    gate.set(rules=[ALERTS])
    ranked("alerts-old", "report-9")
    hold.go.set()
    until(lambda: {"alerts-old", "alerts-new", "report-9", "report-1"} <= set(hold.order))
    assert max(map(hold.order.index, ("alerts-old", "alerts-new"))) < min(
        map(hold.order.index, ("report-9", "report-1"))
    )
    assert gate._loop.stats.troubles == {}


def test_closed_it_lets_everybody_through(start: Start, gate: QueryGate, hold: Hold, own_sockets: Path) -> None:
    done: list[int] = []
    start(gate.wrap(hold("holder")), "holder")
    until(lambda: hold.order)
    start(gate.wrap(lambda rows, batch_id: done.append(batch_id)), "waiting")
    until(lambda: states(gate).get("waiting") == "waiting")
    assert not done
    gate.close()
    gate.close()
    until(lambda: len(done) > 1)
    assert control_socket.find() == []


def test_outside_of_a_query_a_wrapped_function_waits_for_nothing(spark: SparkSession, gate: QueryGate) -> None:
    def store(rows: DataFrame, batch_id: int) -> None:
        """Stores."""
        counts.append(rows.count())

    counts: list[int] = []
    wrapped = gate.wrap(store)
    wrapped(spark.range(3), 0)
    assert counts == [3]
    assert wrapped.__doc__ == "Stores."


def test_slots_follow_the_cpu_unless_a_number_is_set(spark: SparkSession, own_sockets: Path) -> None:
    with treadle.gate(spark) as gate:
        assert gate.slots >= 1
        gate.set_slots(7)
        assert gate.slots == 7


def test_two_applications_of_one_name_are_told_apart(spark: SparkSession, own_sockets: Path) -> None:
    with treadle.gate(spark, slots=1) as first, treadle.gate(spark, slots=2) as second:
        assert first.name != second.name
        assert {control_socket.name_of(path) for path in control_socket.find()} == {first.name, second.name}
        assert control_socket.ask(control_socket.pick(second.name), "slots") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots can't be 0"),
        ({"slots": "some"}, "slots can't be 'some'"),
        ({"policy": "fcsf"}, "did you mean"),
        ({"policy": "adaptive:objective=min latency_p99"}, "'latency_p99' is not measured for the gate"),
        ({"period": "soon"}, "period"),
        ({"patience": -1}, "patience"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_started(
    spark: SparkSession, own_sockets: Path, options: dict[str, Any], message: str
) -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match=message):
        treadle.gate(spark, **options)
    assert threading.active_count() == before
    assert control_socket.find() == []


@pytest.mark.parametrize(
    "wish", [{"priority": float("nan")}, {"priority": "high"}, {"name": "a/b"}, {"latency_goal": "fast"}]
)
def test_a_wrong_wish_is_named(gate: QueryGate, wish: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wish.values())) if "name" in wish else next(iter(wish))):
        gate.wrap(lambda rows, batch_id: None, **wish)
    with pytest.raises(ConfigError, match="can't wrap 3"):
        gate.wrap(3)  # type: ignore[arg-type]


def test_a_connect_session_is_refused() -> None:
    with pytest.raises(EngineError, match="classic session"):
        treadle.gate(object())  # type: ignore[arg-type]


def test_importing_treadle_imports_neither_numpy_nor_pyspark() -> None:
    code = (
        "import sys, treadle; assert not {'numpy', 'pyspark'} & set(sys.modules); treadle.Pipeline('p'); dir(treadle)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="Pipelin"):
        treadle.Pipelin  # noqa: B018
