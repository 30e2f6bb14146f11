"""The three ways to give nodes the CPU: by share, by real-time priority, and by Haren's threads in batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.engines.simulator.engine import Simulator
from treadle.errors import ConfigError

Build = Callable[..., Simulator]
Run = Callable[..., None]

MANY = {"pattern": "ticks", "counts": (50_000,)}
"""More work at once than any of these tests gets done."""


def busy_node(name: str, cost: float = 0.001, **keys: Any) -> dict[str, Any]:
    return {"name": name, "query": name, "cost": {"mean": cost}, "source": MANY, **keys}


def node(name: str, cost: float, **keys: Any) -> dict[str, Any]:
    return {"name": name, "cost": {"mean": cost}, **keys}


def turn(sim: Simulator, knob: str, *values: float | str) -> None:
    """One value per instance, for all its threads; NaN leaves it."""
    for instance, value in zip(sim.topology().instances, values, strict=True):
        if value == value:
            targets = [instance.id] if sim.knobs()[knob].per == "instance" else instance.threads
            for target in targets:
                sim.knobs()[knob].write(target, value)


def spent(sim: Simulator, until: float) -> Any:
    """CPU time of each node from now until then."""
    before = sim.nodes["busy"]
    sim.advance(until)
    return sim.nodes["busy"] - before


# ---------------------------------------------------------------- shares of the CPU


def test_nice_shares_the_cpu_by_the_kernels_ladder(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), mode="os")
    turn(sim, "nice", 0, 5)
    a, b = spent(sim, 10.0)
    assert a / b == pytest.approx(1.25**5, rel=0.03)
    assert a + b == pytest.approx(10.0, abs=0.01)


def test_equal_nodes_share_evenly_on_several_processors(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), mode="os", processors=2)
    assert spent(sim, 3.0) == pytest.approx(2.0, rel=0.01)


def test_a_node_cannot_be_on_two_processors(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), mode="os", processors=2)
    turn(sim, "nice", -20, 0, 0)
    assert spent(sim, 3.0) == pytest.approx([3.0, 1.5, 1.5], rel=0.01)


def test_shares_divide_the_cpu_between_groups(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), mode="os")
    turn(sim, "group", "x", "y")
    sim.knobs()["shares"].write("x", 1024.0)
    sim.knobs()["shares"].write("y", 2048.0)
    a, b = spent(sim, 10.0)
    assert b / a == pytest.approx(2.0, rel=0.03)


def test_nice_counts_within_a_group_only(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), mode="os")
    turn(sim, "group", "x", "x", "y")
    turn(sim, "nice", 0, 5, 19)
    a, b, c = spent(sim, 10.0)
    assert c == pytest.approx(a + b, rel=0.02)
    assert a / b == pytest.approx(1.25**5, rel=0.05)


def test_idle_time_goes_to_those_who_can_use_it(simulator: Build) -> None:
    light = node("b", 0.001, query="b", source={"rate": 100})
    sim = simulator(busy_node("a"), light, mode="os")
    turn(sim, "nice", 19, -20)
    assert spent(sim, 5.0) == pytest.approx([4.5, 0.5], rel=0.01)


@pytest.mark.parametrize("grouped", [False, True])
def test_one_that_slept_long_does_not_starve_the_others_when_it_wakes(simulator: Build, grouped: bool) -> None:
    late = {"pattern": "ticks", "start": 10.0, "counts": (50_000,)}
    sim = simulator(busy_node("a"), busy_node("b", source=late), mode="os", seconds=20)
    if grouped:
        turn(sim, "group", "x", "y")
    assert spent(sim, 10.0) == pytest.approx([10.0, 0.0], abs=0.01)
    assert spent(sim, 10.5) == pytest.approx([0.25, 0.25], abs=0.01)


def test_one_that_could_not_use_its_share_does_not_starve_the_others_later(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), mode="os", processors=2, seconds=20)
    turn(sim, "nice", -20, 0, 0)
    sim.advance(10.0)
    turn(sim, "nice", 0, 0, 0)
    assert spent(sim, 13.0) == pytest.approx(2.0, rel=0.02)


def test_one_that_comes_back_to_a_group_does_not_starve_the_others(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), mode="os", seconds=20)
    turn(sim, "group", "x", "y")
    sim.advance(10.0)
    turn(sim, "group", "", "y")
    assert spent(sim, 11.0) == pytest.approx([0.5, 0.5], abs=0.02)


def test_one_that_was_held_up_by_a_full_queue_does_not_starve_the_others_later(simulator: Build) -> None:
    sim = simulator(
        busy_node("a", cost=0.0001, query="q"),
        node("b", 0.001, upstream=("a",), capacity=5),
        busy_node("c"),
        mode="realtime",
        seconds=20,
    )
    sim.advance(0.1)
    turn(sim, "rt", 0, 0, 1)  # c has it all: b's queue stays full, a is stuck
    sim.advance(10.0)
    run_wait = sim.sample(frozenset({"run_wait"})).columns["run_wait"]
    assert run_wait[1] == pytest.approx(10.0, abs=0.1)
    assert run_wait[0] < 0.2
    turn(sim, "rt", math.nan, math.nan, 0)
    a, b, c = spent(sim, 11.0)
    assert b == pytest.approx(10 * a, rel=0.1)
    assert c == pytest.approx(0.5, abs=0.05)


def test_waiting_for_room_is_no_waiting_for_the_cpu(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.001, source=MANY), node("b", 0.01, upstream=("a",), capacity=5), mode="os", processors=2
    )
    sim.advance(5.0)
    assert sim.sample(frozenset({"run_wait"})).columns["run_wait"] == pytest.approx([0.0, 0.0], abs=0.02)


def test_shorter_slices_cost_more_switches_and_work(simulator: Build) -> None:
    runs = []
    for time_slice in (0.001, 0.004, 0.016):
        sim = simulator(
            busy_node("a", 0.0005), busy_node("b", 0.0005), mode="os", time_slice=time_slice, switch_cost=0.0001
        )
        sim.advance(5.0)
        runs.append((sim.counters["switches"], sim.nodes["done"].sum()))
    (short, little), (middle, more), (long, most) = runs
    assert short > 3 * middle > 9 * long
    assert little < more < most
    assert little == pytest.approx(5.0 / 0.0005 * 10 / 11, rel=0.02)  # 0.1 ms lost of every 1.1


def test_a_node_alone_pays_no_switches(simulator: Build) -> None:
    sim = simulator(busy_node("a"), mode="os", switch_cost=0.001)
    sim.advance(3.0)
    assert sim.counters["switches"] == 1


def test_late_virtual_time_is_as_good_as_early(simulator: Build) -> None:
    """A day has 86,400 s, and there the clock's rounding is coarser than what is left of a tuple."""
    late = {"pattern": "ticks", "start": 86_000.0, "counts": (300,)}
    cost = {"mean": 0.0007, "distribution": "exponential"}
    sim = simulator(
        {"name": "a", "query": "a", "cost": cost, "source": late},
        {"name": "b", "query": "b", "cost": cost, "source": late},
        mode="os",
        time_slice=0.0003,
        seconds=86_400,
    )
    sim.advance(86_400.0)
    assert sim.nodes["done"].tolist() == [300, 300]
    assert sim.results.time.max() == pytest.approx(86_000.0 + sim.counters["busy"], abs=1e-6)


# ---------------------------------------------------------------- real-time


def test_real_time_preempts_at_once(simulator: Build) -> None:
    urgent = node("b", 0.0004, query="b", source={"rate": 90})
    sim = simulator(busy_node("a", 0.01), urgent, mode="realtime", time_slice=0.02)
    turn(sim, "rt", math.nan, 1)
    sim.advance(5.0)
    latency = sim.results.latency[sim.results.row == 1]
    assert len(latency) == 450
    assert latency == pytest.approx(0.0004)


def test_a_higher_real_time_priority_wins(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), mode="realtime", processors=2)
    turn(sim, "rt", 10, 20, 30)
    assert spent(sim, 2.0) == pytest.approx([0.0, 2.0, 2.0], abs=1e-9)


def test_equal_real_time_priorities_take_turns(simulator: Build) -> None:
    sim = simulator(*(busy_node(name, 0.003) for name in "abc"), mode="realtime", rr_slice=0.05)
    turn(sim, "rt", 7, 7, 7)
    assert spent(sim, 6.0) == pytest.approx(2.0, abs=0.05)
    assert sim.counters["switches"] == pytest.approx(6.0 / 0.05, abs=2)


def test_a_preempted_real_time_node_keeps_its_place(simulator: Build) -> None:
    urgent = node("c", 0.001, query="c", source={"rate": 150})
    sim = simulator(busy_node("a"), busy_node("b"), urgent, mode="realtime", rr_slice=0.05)
    turn(sim, "rt", 7, 7, 9)
    a, b, c = spent(sim, 5.0)
    assert c == pytest.approx(0.75, abs=0.01)
    assert a + b == pytest.approx(4.25, abs=0.01)


def test_a_knob_works_at_once_and_not_at_the_end_of_a_slice(simulator: Build) -> None:
    sim = simulator(busy_node("a", 1.0), busy_node("b", 0.001), mode="realtime", time_slice=0.5)
    sim.advance(0.1)
    turn(sim, "rt", 0, 5)
    assert spent(sim, 0.2)[1] == pytest.approx(0.1, abs=0.002)


def test_one_that_was_real_time_does_not_starve_the_others_later(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), busy_node("c"), mode="realtime", processors=2, seconds=20)
    turn(sim, "rt", 5, math.nan, math.nan)
    sim.advance(10.0)
    turn(sim, "rt", 0, math.nan, math.nan)
    assert spent(sim, 13.0) == pytest.approx(2.0, rel=0.02)


# ---------------------------------------------------------------- blocking (Lachesis, figure 16, in small)


def blocking_pair() -> tuple[dict[str, Any], ...]:
    sleepy = busy_node("a", blocking={"probability": 0.1, "seconds": 0.1})
    return sleepy, busy_node("b")


def test_with_threads_the_others_use_the_cpu_while_one_sleeps(simulator: Build) -> None:
    sim = simulator(*blocking_pair(), mode="os")
    a, b = spent(sim, 10.0)
    assert a + b == pytest.approx(10.0, abs=0.01)
    assert a < b


def test_a_pool_sleeps_with_its_operator(simulator: Build) -> None:
    threads, pool = simulator(*blocking_pair(), mode="os"), simulator(*blocking_pair(), mode="cooperative")
    done = []
    for sim in (threads, pool):
        sim.advance(10.0)
        done.append(sim.nodes["done"].sum())
    assert done[1] < 0.6 * done[0]
    asleep_per_tuple = 0.1 * 0.1 / 2  # of the sleepy half; beside it and in b there is 1 ms of work
    assert done[1] == pytest.approx(10.0 / (0.001 + asleep_per_tuple / 2), rel=0.1)


def test_a_sleeper_goes_on_where_it_was(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 10}, blocking={"probability": 1.0, "seconds": 0.05}), mode="os", seconds=5
    )
    sim.advance(math.inf)
    assert sim.nodes["done"].tolist() == [50]
    assert sim.counters["busy"] == pytest.approx(0.05)
    assert sim.results.latency.mean() == pytest.approx(0.001 + 0.025, rel=0.3)


# ---------------------------------------------------------------- cooperative


def at(times: tuple[float, ...]) -> dict[str, Any]:
    """A source whose ticks are a millisecond apart, with one tuple at each of these times."""
    ticks = [round(time * 1000) for time in times]
    counts = np.bincount(ticks)
    return {"pattern": "ticks", "every": 0.001, "counts": tuple(int(count) for count in counts)}


def test_a_batch_is_not_interrupted(simulator: Build) -> None:
    sim = simulator(busy_node("a"), node("b", 0.001, query="b", source=at((0.0015 + 0.0005,))), batch=5, period=1.0)
    turn(sim, "rank", 0, 1)
    sim.advance(0.5)
    (b,) = sim.results.time[sim.results.row == 1]
    assert b == pytest.approx(0.005 + 0.001)


def test_a_smaller_batch_lets_the_urgent_in_earlier(simulator: Build) -> None:
    sim = simulator(busy_node("a"), node("b", 0.001, query="b", source=at((0.002,))), batch=1, period=1.0)
    turn(sim, "rank", 0, 1)
    sim.advance(0.5)
    (b,) = sim.results.time[sim.results.row == 1]
    assert b <= 0.003 + 0.001 + 1e-9


def test_at_the_end_of_a_period_processors_wait_for_each_other(simulator: Build) -> None:
    sim = simulator(busy_node("a", 0.3), busy_node("b", 0.01), processors=2, batch=1, period=0.1)
    turn(sim, "owner", 0, 1)
    sim.advance(0.095)
    assert sim.now == pytest.approx(0.3)
    assert sim.nodes["done"].tolist() == [1, 10]
    assert (sim.state.processor["running"] == -1).all()
    sim.advance(0.395)
    assert sim.now == pytest.approx(0.6)
    assert sim.nodes["done"].tolist() == [2, 20]


def test_without_delay_the_best_starves_the_rest(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), period=0.1)
    turn(sim, "rank", 1, 0)
    for period in range(1, 31):
        sim.advance(0.1 * period)
    assert sim.nodes["done"][1] == 0


def test_neglected_operators_run_after_a_delay(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), period=0.1, batch=7, delay=0.45)
    turn(sim, "rank", 1, 0)
    for period in range(1, 31):
        sim.advance(0.1 * period)
    assert sim.nodes["done"][1] == 7 * 5  # at 0.5, 1.0, ..., 2.5 and, once the clock has drifted, no more before 3.0


def test_equals_take_turns(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abcd"), batch=3, period=10.0)
    turn(sim, "rank", 1, 2, 2, 2)
    sim.advance(0.9)
    assert sim.nodes["done"].tolist() == [0, 300, 300, 300]


def test_processors_run_their_own_operators_only(simulator: Build) -> None:
    sim = simulator(*(busy_node(name) for name in "abc"), processors=2, period=0.1)
    turn(sim, "owner", 0, 0, 1)
    assert spent(sim, 1.0) == pytest.approx([0.5, 0.5, 1.0], abs=0.011)


@pytest.mark.parametrize("mode", ["cooperative", "os"])
def test_processors_may_come_and_go_while_it_runs(simulator: Build, mode: str) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), mode=mode, batch=1)
    if mode == "cooperative":
        turn(sim, "owner", 0, 1)
    assert spent(sim, 1.0).sum() == pytest.approx(1.0, abs=0.01)
    sim.set_processors(2)
    assert sim.processors == 2
    assert spent(sim, 2.0).sum() == pytest.approx(2.0, abs=0.01)
    sim.set_processors(1)
    assert spent(sim, 3.0).sum() == pytest.approx(1.0, abs=0.01)
    nodes = sim.nodes
    assert (nodes["arrived"] == nodes["done"] + nodes["queued"]).all()


def test_a_processor_that_goes_in_the_middle_of_a_unit_begins_it_again_elsewhere(simulator: Build, run: Run) -> None:
    three = {"pattern": "ticks", "counts": (3,)}
    sim = simulator(
        busy_node("a", 0.1, source=three), busy_node("b", 0.1, source=three), processors=2, period=0, batch=1
    )
    turn(sim, "owner", 0, 1)
    run(sim, 0.05)
    sim.set_processors(1)
    run(sim)
    assert sim.nodes["done"].tolist() == [3, 3]
    assert sim.counters["busy"] == pytest.approx(0.6)
    assert sim.now == pytest.approx(0.6)


@pytest.mark.parametrize("processors", [0, -1, 65])
def test_impossible_numbers_of_processors_are_refused(simulator: Build, processors: int) -> None:
    sim = simulator(busy_node("a"))
    with pytest.raises(ConfigError, match=f"can't run on {processors} processors .use 1 to 64."):
        sim.set_processors(processors)


def test_an_impossible_batch_is_refused(simulator: Build) -> None:
    with pytest.raises(ConfigError, match="a batch can't be 0"):
        simulator(busy_node("a")).set_batch(0)


def test_the_batch_may_change_while_it_runs(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), batch=1, period=1.0)
    sim.advance(1.0)
    switches = sim.counters["switches"]
    sim.set_batch(50)
    sim.advance(2.0)
    assert switches == pytest.approx(1000, abs=2)
    assert sim.counters["switches"] - switches == pytest.approx(20, abs=2)


def test_the_scheduling_task_takes_time_from_all_processors(simulator: Build) -> None:
    for mode in ("cooperative", "os"):
        sim = simulator(busy_node("a"), busy_node("b"), mode=mode, processors=2, batch=1)
        if mode == "cooperative":
            turn(sim, "owner", 0, 1)
        for _ in range(10):
            sim.advance(sim.now + 0.1)
            sim.spend(0.05)
        assert sim.now == pytest.approx(1.5, abs=0.02)
        assert sim.counters["busy"] == pytest.approx(2.0, abs=0.03)


def test_what_arrives_during_the_scheduling_task_is_as_old_as_it_is(simulator: Build) -> None:
    sim = simulator(node("a", 0.001, source=at((0.05,))), period=0.1)
    sim.advance(0.01)
    sim.spend(0.1)
    sim.advance(1.0)
    assert sim.results.time == pytest.approx([0.111])
    assert sim.results.latency == pytest.approx([0.061])


# ---------------------------------------------------------------- bounded queues, helpers, joins


@pytest.mark.parametrize("mode", ["cooperative", "os"])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_full_queue_holds_its_producer_back(simulator: Build, mode: str, copies: int) -> None:
    sim = simulator(
        node("a", 0.001, source=MANY, selectivity={"mean": copies}),
        node("b", 0.01, upstream=("a",), capacity=5),
        mode=mode,
        processors=2,
    )
    if mode == "cooperative":
        turn(sim, "owner", 0, 1)
    longest = 0
    for step in range(1, 400):
        sim.advance(0.003 * step)
        longest = max(longest, int(sim.nodes["queued"][1]))
    assert 5 <= longest <= 4 + copies
    assert sim.nodes["dropped"].sum() == 0
    refills = 0.1 if mode == "cooperative" else 0.0  # at the end of a period the producer waits for the consumer
    assert sim.nodes["done"][1] == pytest.approx(sim.now / 0.01, rel=0.02 + refills)


def test_pressure_reaches_the_source_through_a_chain_and_there_tuples_are_dropped(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 500}, capacity=10),
        node("b", 0.001, upstream=("a",), capacity=10),
        node("c", 0.02, upstream=("b",), capacity=10),
        mode="os",
        processors=3,
    )
    sim.advance(10.0)
    nodes = sim.nodes
    assert (nodes["queued"] <= 10).all()
    assert nodes["dropped"][1:].sum() == 0
    assert nodes["dropped"][0] == pytest.approx(10.0 * (500 - 50), rel=0.02)


def test_a_helper_moves_the_output_and_its_queue_is_seen(simulator: Build) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 100}, helper_cost=0.02),
        node("b", 0.001, upstream=("a",)),
        mode="os",
        processors=2,
    )
    sim.advance(4.0)
    columns = sim.sample(frozenset({"output_queue", "queue", "tuples_out"})).columns
    assert columns["output_queue"] == pytest.approx([200, 0], abs=4)
    assert columns["queue"] == pytest.approx([0, 0], abs=1)
    assert columns["tuples_out"][0] == pytest.approx(400, abs=2)
    assert columns["tuples_out"][1] == pytest.approx(200, abs=4)
    assert [thread.role for thread in sim.topology().instances[0].threads] == ["main", "helper"]


def test_a_helper_can_be_made_more_urgent_than_its_main(simulator: Build) -> None:
    sim = simulator(node("a", 0.001, source=MANY, helper_cost=0.001), mode="realtime")
    main, helper = sim.topology().instances[0].threads
    sim.knobs()["rt"].write(helper, 1.0)
    sim.advance(2.0)
    assert sim.sample(frozenset({"output_queue"})).columns["output_queue"][0] <= 1
    sim.knobs()["rt"].write(main, 2.0)
    sim.advance(4.0)
    assert sim.sample(frozenset({"output_queue"})).columns["output_queue"][0] == pytest.approx(2000, abs=3)


def test_a_pool_runs_helpers_with_their_operator(simulator: Build) -> None:
    sim = simulator(node("a", 0.001, source=MANY, helper_cost=0.001), node("b", 0.001, upstream=("a",)), period=0.1)
    turn(sim, "rank", 1, 0)
    sim.advance(1.0)
    assert sim.sample(frozenset({"output_queue"})).columns["output_queue"][0] <= 10
    assert sim.nodes["done"].tolist()[1] == 0


def pairs_within(left: Any, right: Any, window: float) -> int:
    return sum(abs(a - b) <= window for a in left for b in right)


@pytest.mark.parametrize("mode", ["cooperative", "os"])
@pytest.mark.parametrize("slow", [0.0001, 0.0125])
def test_a_join_gives_every_pair_within_its_window_once(simulator: Build, run: Run, mode: str, slow: float) -> None:
    """Also when one side comes in so late that the other is long past it."""
    source = {"pattern": "poisson", "rate": 60}
    sim = simulator(
        node("left", slow, source=source),
        node("right", 0.0001, source=source),
        node("join", 0.0001, upstream=("left", "right"), window=0.1),
        mode=mode,
        processors=3,
        seconds=3,
    )
    run(sim)
    arrival = sim.state.arrival
    left, right = (arrival["time"][arrival["node"] == row] for row in (0, 1))
    if slow > 0.01:
        assert sim.now > 1.5 * 1.25  # left was behind for long
    assert sim.results.mass.sum() == pairs_within(left, right, 0.1)
    assert sim.nodes["emitted_mass"][2] == pairs_within(left, right, 0.1)


def test_a_join_draws_its_selectivity_for_every_pair(simulator: Build, run: Run) -> None:
    source = {"pattern": "poisson", "rate": 300}
    sim = simulator(
        node("left", 0.0001, source=source),
        node("right", 0.0001, source=source),
        node("join", 0.0001, upstream=("left", "right"), window=0.1, selectivity={"mean": 0.05}),
        seconds=5,
    )
    run(sim)
    arrival = sim.state.arrival
    left, right = (arrival["time"][arrival["node"] == row] for row in (0, 1))
    pairs = int((np.abs(left[:, None] - right[None, :]) <= 0.1).sum())
    assert sim.results.mass.sum() == pytest.approx(0.05 * pairs, rel=0.05)


def test_a_fluid_join_multiplies_masses(simulator: Build, run: Run) -> None:
    sim = simulator(
        node("left", 0.001, source=at((0.0, 0.1)), selectivity={"mean": 0.5}),
        node("right", 0.001, source=at((0.05, 0.4)), selectivity={"mean": 0.25}),
        node("join", 0.001, upstream=("left", "right"), window=0.1),
        fluid=True,
        period=0,
        batch=1,
    )
    run(sim)
    assert sim.results.mass.sum() == pytest.approx(2 * 0.5 * 0.25)  # 0.05 meets both; 0.4 meets none


@pytest.mark.parametrize(("kind", "mean"), [("bernoulli", 2.3), ("poisson", 0.7), ("poisson", 800.0), ("even", 0.4)])
def test_selectivity_has_its_mean(simulator: Build, run: Run, kind: str, mean: float) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 1000}, selectivity={"mean": mean, "distribution": kind}), seconds=3
    )
    run(sim)
    assert sim.nodes["emitted_mass"][0] / 3000 == pytest.approx(mean, rel=0.05 if mean < 1 else 0.01)


@pytest.mark.parametrize("kind", ["constant", "uniform", "exponential"])
def test_cost_has_its_mean(simulator: Build, run: Run, kind: str) -> None:
    cost = {"mean": 0.001, "distribution": kind, "spread": 0.5}
    sim = simulator({"name": "a", "cost": cost, "source": {"rate": 500}}, seconds=6, mode="os")
    run(sim)
    assert sim.counters["busy"] / 3000 == pytest.approx(0.001, rel=0.05)


def test_fused_operators_cost_what_reaches_each_and_pass_on_what_passes_all(simulator: Build, run: Run) -> None:
    sim = simulator(
        node("a", 0.001, source={"rate": 100}, selectivity={"mean": 0.5}),
        node("b", 0.004, upstream=("a",), selectivity={"mean": 0.25, "distribution": "even"}),
        node("c", 0.001, upstream=("b",)),
        query={"fused": (("a", "b"),)},
        seconds=8,
    )
    run(sim)
    assert sim.topology().ids == ("simulator:q.a+b[0]", "simulator:q.c[0]")
    assert sim.nodes["busy"][0] == pytest.approx(800 * (0.001 + 0.5 * 0.004))
    assert sim.nodes["emitted_mass"][0] == pytest.approx(800 / 8)


# ---------------------------------------------------------------- decisions for every unit (period 0)


def test_with_period_zero_every_unit_is_a_decision(simulator: Build) -> None:
    sim = simulator(busy_node("a"), busy_node("b"), period=0, batch=1)
    chosen = []
    for number in range(6):
        assert sim.advance(1.0)
        turn(sim, "rank", *((1, 0) if number % 3 == 0 else (0, 1)))
        before = sim.nodes["done"]
        sim.decided()
        sim.advance(sim.now + 0.0011)
        chosen.append("ab"[int((sim.nodes["done"] - before).argmax())])
    assert chosen == ["a", "b", "b", "a", "b", "b"]


def test_a_choice_is_asked_for_again_until_it_is_made(simulator: Build) -> None:
    sim = simulator(busy_node("a"), period=0, batch=1)
    assert sim.advance(1.0)
    assert sim.advance(1.0)
    assert sim.now == 0.0
    sim.decided()
    assert sim.advance(1.0)
    assert sim.now == pytest.approx(0.001)


def test_no_choice_is_asked_for_when_there_is_nothing_to_choose(simulator: Build) -> None:
    sim = simulator(node("a", 0.001, source={"rate": 10, "start": 0.5}), period=0, batch=1)
    assert not sim.advance(0.4)
    assert sim.now == 0.4
    assert sim.advance(1.0)
    assert sim.now == 0.5


def test_a_drained_plan_says_so_and_time_stops_at_its_end(simulator: Build, run: Run) -> None:
    for keys in ({"mode": "os"}, {"mode": "cooperative"}, {"period": 0, "batch": 1}):
        sim = simulator(node("a", 0.001, source=at((0.5,))), **keys)
        run(sim)
        assert sim.drained
        assert sim.now == pytest.approx(0.501)
