"""The simulator as an engine: what it offers is what is there, and its knobs hold what was written to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.decide.registry import create
from treadle.enforce import Enforcer, Knob, Target, Value
from treadle.engines.simulator import state
from treadle.engines.simulator.engine import SimulatedClock, Simulator
from treadle.errors import ConfigError, TargetGone
from treadle.loop import Binding, Engine, Loop
from treadle.model import Floats, Role, ThreadRef

Build = Callable[..., Simulator]
Run = Callable[..., None]

MANY = {"pattern": "ticks", "counts": (10_000,)}


def node(name: str, cost: float, **keys: Any) -> dict[str, Any]:
    return {"name": name, "cost": {"mean": cost}, **keys}


def column(sim: Simulator, name: str) -> Floats:
    return sim.sample(frozenset({name})).columns[name]


# ---------------------------------------------------------------- what it is


def test_it_is_an_engine_with_knobs(simulator: Build) -> None:
    for mode in ("cooperative", "os", "realtime"):
        sim = simulator(node("a", 1, source=MANY), mode=mode)
        assert isinstance(sim, Engine)
        assert all(isinstance(knob, Knob) and knob.name == name for name, knob in sim.knobs().items())


def test_each_mode_has_the_knobs_that_mean_something_there(simulator: Build) -> None:
    pool, threads = (simulator(node("a", 1, source=MANY), mode=mode).knobs() for mode in ("cooperative", "os"))
    assert set(pool) == {"rank", "owner"}
    assert set(threads) == {"nice", "rt", "slice", "group", "shares"}


def test_rows_are_the_copies_of_operators_and_threads_have_roles(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY, parallelism=2, helper_cost=1), node("b", 1, upstream=("a",)), mode="os")
    topology = sim.topology()
    assert topology.ids == ("simulator:q.a[0]", "simulator:q.a[1]", "simulator:q.b[0]")
    assert [len(instance.threads) for instance in topology.instances] == [2, 2, 1]
    assert [thread.role for thread in topology.threads] == [Role.MAIN, Role.HELPER, Role.MAIN, Role.HELPER, Role.MAIN]
    assert len({thread.tid for thread in topology.threads}) == 5
    assert sim.topology() is topology


def test_it_offers_what_its_scenario_has(simulator: Build) -> None:
    everywhere = {"queue", "external_queue", "tuples_in", "tuples_out", "cpu_time", "head_age", "mean_age"}
    a = node("a", 1, source=MANY)
    assert simulator(a).offers == everywhere
    assert simulator(a, mode="os").offers == everywhere | {"run_wait"}
    assert simulator({**a, "helper_cost": 1.0}).offers == everywhere | {"output_queue"}
    assert simulator(a, known=True).offers == everywhere | {"cost", "selectivity"}


def test_a_sample_holds_what_was_wanted_and_is_offered(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY), node("b", 1, upstream=("a",)))
    sample = sim.sample(frozenset({"queue", "cost", "weather"}))
    assert set(sample.columns) == {"queue"}
    assert sample.columns["queue"].dtype == np.float64
    assert sample.columns["queue"].shape == (2,)
    assert sample.time == sim.now


# ---------------------------------------------------------------- columns


def test_queues_and_their_ages(simulator: Build) -> None:
    trickle = {"pattern": "ticks", "start": 1, "every": 1, "counts": (1, 1, 0, 0, 1)}  # at 1, 2 and 5
    sim = simulator(node("a", 10, source=trickle), node("b", 1, upstream=("a",)), mode="os", seconds=20, processors=2)
    sim.advance(6.0)
    assert column(sim, "queue").tolist() == [3, 0]
    assert column(sim, "external_queue").tolist() == [3, 0]
    assert column(sim, "head_age").tolist() == [5, 0]
    assert column(sim, "mean_age") == pytest.approx([6 - (1 + 2 + 5) / 3, 0])
    sim.advance(11.5)  # the first is done and at b
    assert column(sim, "queue").tolist() == [2, 1]
    assert column(sim, "external_queue").tolist() == [2, 0], "what waits within a query is not outside"
    assert column(sim, "head_age").tolist() == [9.5, 10.5], "a tuple is as old as what it came from"
    assert column(sim, "mean_age") == pytest.approx([11.5 - (2 + 5) / 2, 10.5])


def test_counters_grow_by_what_was_done(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.01, source={"rate": 10}, selectivity={"mean": 2}),
        node("b", 0.02, upstream=("a",), selectivity={"mean": 0.5, "distribution": "even"}),
        known=True,
    )
    sim.advance(5.05)
    assert column(sim, "tuples_in").tolist() == [51, 102]
    assert column(sim, "tuples_out").tolist() == [102, 51]
    assert column(sim, "cpu_time") == pytest.approx([0.51, 2.04])
    assert column(sim, "cost").tolist() == [0.01, 0.02]
    assert column(sim, "selectivity").tolist() == [2, 0.5]


def test_waiting_for_the_cpu_is_counted_while_it_lasts(simulator: Build) -> None:
    sim = simulator(
        node("a", 10, query="a", source=MANY), node("b", 10, query="b", source=MANY), mode="os", time_slice=1.0
    )
    sim.advance(0.75)
    assert column(sim, "run_wait").tolist() == [0, 0.75]
    sim.advance(7.5)
    assert column(sim, "run_wait") == pytest.approx([3.5, 4.0])


def test_who_has_nothing_to_do_does_not_wait(simulator: Build) -> None:
    sim = simulator(node("a", 0.01, source={"rate": 10}), mode="os")
    sim.advance(5.0)
    assert column(sim, "run_wait").tolist() == [0]


# ---------------------------------------------------------------- totals


def test_totals_are_since_the_last_sample(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.1, source={"pattern": "ticks", "every": 0.5, "counts": (1, 2, 0, 0, 0, 0, 4)}), mode="os"
    )
    assert math.isnan(sim.sample(frozenset()).totals["output_rate"]), "no time has passed"
    sim.advance(1.0)
    totals = sim.sample(frozenset()).totals
    assert totals == pytest.approx({"total_queue": 0, "output_rate": 3.0, "latency": (0.1 + 0.1 + 0.2) / 3})
    sim.advance(3.0)
    totals = sim.sample(frozenset()).totals
    assert totals["output_rate"] == 0.0
    assert math.isnan(totals["latency"])
    sim.advance(3.25)
    totals = sim.sample(frozenset()).totals
    assert totals == pytest.approx({"total_queue": 2, "output_rate": 8.0, "latency": 0.15})


def test_results_know_the_row_they_left_by(simulator: Build, run: Run) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 100}),
        node("b", 0.001, upstream=("a",), selectivity={"mean": 3}),
        node("c", 0.001, upstream=("a",), helper_cost=0.001),
        seconds=1,
    )
    run(sim)
    assert np.bincount(sim.results.row, weights=sim.results.mass).tolist() == [0, 300, 100]
    again = sim.results
    assert len(again.time) == len(sim.results.time), "to look does not add"


def test_memory_is_on_an_even_grid(simulator: Build) -> None:
    sim = simulator(node("a", 100, source={"rate": 10}), mode="os", seconds=10)
    sim.advance(10.0)
    times, queued = sim.memory
    assert times[[0, -1]].tolist() == [0, 10]
    assert np.allclose(np.diff(times), 10 / 400)
    assert (np.abs(queued - times * 10) <= 1.0 + 1e-9).all()


def test_counters_are_totals_since_the_start(simulator: Build) -> None:
    sim = simulator(node("a", 0.5, source={"pattern": "ticks", "counts": (4,)}), mode="os")
    sim.advance(4.0)
    counters = sim.counters
    assert counters["busy"] == pytest.approx(2.0)
    assert counters["queue_peak"] == 4
    assert counters["queue_mean"] == pytest.approx((4 + 3 + 2 + 1) * 0.5 / 4)
    assert (counters["queued"], counters["dropped"], counters["switches"]) == (0, 0, 1)


def test_a_queue_without_end_is_an_error_and_not_the_end_of_memory(
    simulator: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_QUEUED", 1 << 16)
    sim = simulator(node("a", 0.001, source=MANY, selectivity={"mean": 1000}), node("b", 1, upstream=("a",)), mode="os")
    with pytest.raises(ConfigError, match=r"more than 65,536 tuples are queued after 0.\d+ s .*capacity"):
        sim.advance(10.0)


# ---------------------------------------------------------------- knobs

WRITTEN: list[tuple[str, str, Value]] = [
    ("cooperative", "rank", 0.0),
    ("cooperative", "rank", -17.25),
    ("cooperative", "owner", 3.0),
    *(("os", "nice", float(nice)) for nice in range(-20, 20)),
    ("os", "slice", 0.0125),
    ("os", "group", "high"),
    ("os", "group", ""),
    ("realtime", "rt", 99.0),
    ("realtime", "rt", 0.0),
]


@pytest.mark.parametrize(("mode", "name", "value"), WRITTEN)
def test_a_knob_reads_what_was_written(simulator: Build, mode: str, name: str, value: Value) -> None:
    sim = simulator(node("a", 1, source=MANY), node("b", 1, upstream=("a",)), mode=mode)
    knob = sim.knobs()[name]
    instance, other = sim.topology().instances
    target, beside = (instance.id, other.id) if knob.per == "instance" else (instance.threads[0], other.threads[0])
    before = knob.read(beside)
    knob.write(target, value)
    assert knob.read(target) == value
    assert knob.read(beside) == before, "it is turned for one alone"


def test_knobs_begin_at_the_defaults_of_linux(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY), mode="os", time_slice=0.004)
    (thread,) = sim.topology().threads
    values = {name: knob.read(thread) for name, knob in sim.knobs().items() if knob.per == "thread"}
    assert values == {"nice": 0.0, "rt": 0.0, "slice": 0.004, "group": ""}
    assert sim.knobs()["shares"].read("") == 1024.0


def test_a_helper_has_knobs_of_its_own(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY, helper_cost=1), mode="os")
    main, helper = sim.topology().threads
    sim.knobs()["nice"].write(helper, 7.0)
    assert sim.knobs()["nice"].read(main) == 0.0
    assert sim.knobs()["nice"].read(helper) == 7.0


def test_shares_belong_to_a_group_once_somebody_is_in_it(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY), mode="os")
    shares = sim.knobs()["shares"]
    with pytest.raises(TargetGone, match="no group g"):
        shares.read("g")
    sim.knobs()["group"].write(sim.topology().threads[0], "g")
    assert shares.read("g") == 1024.0
    shares.write("g", 2.0)
    assert shares.read("g") == 2.0
    assert shares.read("") == 1024.0


@pytest.mark.parametrize("target", [ThreadRef(0), ThreadRef(-1), ThreadRef(3), "simulator:q.x[0]", ""])
@pytest.mark.parametrize(
    ("mode", "name"), [("cooperative", "rank"), ("os", "nice"), ("os", "group"), ("realtime", "rt")]
)
def test_who_is_not_there_is_gone(simulator: Build, mode: str, name: str, target: Target) -> None:
    sim = simulator(node("a", 1, source=MANY), node("b", 1, upstream=("a",)), mode=mode)
    knob = sim.knobs()[name]
    with pytest.raises(TargetGone):
        knob.read(target)
    with pytest.raises(TargetGone):
        knob.write(target, 1.0)


@pytest.mark.parametrize("target", [ThreadRef(1), "nobody"])
def test_a_group_that_is_not_there_is_gone(simulator: Build, target: Target) -> None:
    shares = simulator(node("a", 1, source=MANY), mode="os").knobs()["shares"]
    with pytest.raises(TargetGone):
        shares.read(target)
    with pytest.raises(TargetGone):
        shares.write(target, 5.0)


REFUSED: list[tuple[str, Value]] = [
    *(("slice", value) for value in (0.0, -1.0, math.nan)),
    *(("nice", value) for value in (-21.0, 20.0, math.nan, "high")),
    *(("rt", value) for value in (-1.0, 100.0, math.nan)),
    *(("shares", value) for value in (0.0, -5.0, math.nan)),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused_and_changes_nothing(simulator: Build, name: str, value: Value) -> None:
    sim = simulator(node("a", 1, source=MANY), mode="os")
    target: Target = "" if name == "shares" else sim.topology().threads[0]
    before = sim.knobs()[name].read(target)
    with pytest.raises(ConfigError, match=f"simulator: {name} can't be {value}"):
        sim.knobs()[name].write(target, value)
    assert sim.knobs()[name].read(target) == before


def test_an_enforcer_turns_its_knobs_and_puts_them_back(simulator: Build) -> None:
    sim = simulator(node("a", 1, source=MANY), node("b", 1, upstream=("a",)), mode="os")
    threads = sim.topology().threads
    nice = Enforcer(sim.knobs()["nice"])
    outcomes = nice.apply(nice.diff(threads, np.array([-5.0, 10.0])))
    assert not outcomes.failures
    assert [sim.knobs()["nice"].read(thread) for thread in threads] == [-5.0, 10.0]
    nice.restore()
    assert [sim.knobs()["nice"].read(thread) for thread in threads] == [0.0, 0.0]


# ---------------------------------------------------------------- with the loop


def test_to_sleep_is_to_let_it_run(simulator: Build) -> None:
    sim = simulator(node("a", 0.01, source=MANY), mode="os", schedule_cost=0.25)
    clock = SimulatedClock(sim)
    assert clock.now() == 0.0
    clock.sleep(0.5)
    assert clock.now() == pytest.approx(0.75), "and to schedule costs time"
    assert sim.counters["busy"] == pytest.approx(0.5, abs=0.011)


@pytest.mark.parametrize(("mode", "knob"), [("cooperative", "rank"), ("os", "nice"), ("realtime", "rt")])
def test_the_loop_drives_it_as_any_engine(simulator: Build, mode: str, knob: str) -> None:
    sim = simulator(
        node("a", 0.001, query="a", source={"rate": 100}),
        node("b", 0.001, query="b", source={"rate": 2000}),
        mode=mode,
        seconds=3,
    )
    loop = Loop([sim], [Binding(create("qs"), knob, 0.1)], clock=SimulatedClock(sim))
    loop.run(until=2.0)
    assert loop.stats.rounds == pytest.approx(20, abs=1)
    assert not loop.stats.troubles
    assert loop.stats.changes > 0
    assert sim.now >= 2.0
    assert column(sim, "queue")[0] < column(sim, "queue")[1]
