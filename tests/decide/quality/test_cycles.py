"""Single cycles of the controller, with measurements made by hand: what is decided from each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from treadle.decide.quality import Controller, Decision, Flow, Measured, Promise
from treadle.decide.quality.controller import Short
from treadle.model import Floats


def queries(*promises: Promise, copies: int = 1) -> Flow:
    """Queries without operators before them: q0, q1, and so on."""
    names = [f"q{number}" for number in range(len(promises))]
    return Flow.of(dict.fromkeys(names, ()), dict(zip(names, promises, strict=True)), dict.fromkeys(names, copies))


def measured(
    flow: Flow,
    rate: Sequence[float],
    cost: Sequence[float],
    *,
    time: float = 0.0,
    cores: Sequence[float] = (1.0,),
    worker: Sequence[int] | None = None,
    other: float = 0.0,
    waiting: float = 0.0,
    **more: Any,
) -> Measured:
    """Each task gets `rate` rows per second from outside, and its instances do all of them at `cost` CPU seconds each.

    Other processes use `other` cores of each worker.
    """
    every = np.array(rate, dtype=np.float64)
    in_rate = (every / flow.copies)[flow.task_of]
    cpu = in_rate * np.array(cost)[flow.task_of]
    place = np.zeros(len(in_rate), dtype=np.int64) if worker is None else np.array(worker)
    busy = np.bincount(place, weights=cpu, minlength=len(cores)).astype(np.float64) + other
    wait = np.full(len(flow), waiting)
    seen = Measured(time, in_rate, every, every, wait, cpu, place, busy, np.array(cores, dtype=np.float64))
    return seen._replace(**more)


def first(flow: Flow, seen: Measured, **options: float) -> Decision:
    return Controller(flow, **options).cycle(seen)  # type: ignore[arg-type]


def kept(decision: Decision) -> list[float]:
    return [round(value, 6) for value in decision.outside.tolist()]


def test_what_a_query_needs_and_what_is_left_are_reported() -> None:
    flow = queries(Promise(), Promise())
    decision = first(flow, measured(flow, [40.0, 20.0], [0.01, 0.005]))
    assert decision.whole == pytest.approx([0.4, 0.1])
    assert decision.free == pytest.approx([0.5])
    assert decision.current.tolist() == [1.0, 1.0]
    assert kept(decision) == [1.0, 1.0]


def test_cpu_of_other_processes_is_not_there_to_be_shared() -> None:
    flow = queries(Promise())
    seen = measured(flow, [100.0], [0.01], other=0.25)
    assert kept(first(flow, seen)) == [0.75]
    assert first(flow, seen._replace(busy=np.array([9.0]))).free.tolist() == [0.0]


def test_a_query_that_must_get_every_row_takes_its_cpu_before_the_others() -> None:
    flow = queries(Promise(), Promise(9.0))
    seen = measured(flow, [50.0, 50.0], [0.02, 0.01])
    assert kept(first(flow, seen._replace(fixed=np.array([False, True])))) == [0.5, 1.0]
    fixed = first(flow, measured(flow, [50.0, 50.0], [0.02, 0.01], fixed=np.array([False, True]), waiting=1000.0))
    assert fixed.whole == pytest.approx([1.0, 0.0])
    assert kept(fixed)[1] == 1.0


def test_rows_that_wait_are_to_be_processed_within_the_seconds_of_drain() -> None:
    flow = queries(Promise())
    seen = measured(flow, [100.0], [0.01], waiting=500.0)
    assert kept(first(flow, seen, drain=20.0)) == [0.8]
    assert kept(first(flow, seen, drain=50.0)) == [round(1 / 1.1, 6)]
    assert kept(first(flow, seen)) == [0.8]


def test_rows_that_wait_are_shared_by_the_instances_of_a_task() -> None:
    flow = queries(Promise(), copies=2)
    seen = measured(flow, [200.0], [0.01], waiting=1000.0, cores=(1.0, 1.0), worker=[0, 1])
    assert first(flow, seen).whole == pytest.approx([1.0])
    assert kept(first(flow, seen)) == [0.8]


def test_what_a_task_would_get_without_drops_counts_all_of_its_instances() -> None:
    flow = queries(Promise(), Promise(), copies=2)
    controller = Controller(flow)
    assert controller.whole_rate.tolist() == [0.0, 0.0]
    controller.cycle(measured(flow, [200.0, 30.0], [0.001, 0.001]))
    assert controller.whole_rate == pytest.approx([200.0, 30.0])


def test_cpu_for_some_batches_a_second_is_reserved() -> None:
    flow = queries(Promise())

    def free(**options: float) -> float:
        controller, decision = Controller(flow, **options), None  # type: ignore[arg-type]
        for rows, batches in ((100.0, 1.0), (10.0, 2.0), (50.0, 3.0), (20.0, 1.0), (20.0, 1.0)):
            cpu = np.array([0.1 * batches + 0.001 * rows])
            seen = measured(flow, [rows], [0.0], batches=np.array([batches]))
            decision = controller.cycle(seen._replace(cpu=cpu, busy=cpu))
        assert decision is not None
        return float(decision.free[0])

    assert free(pace=1.0) == pytest.approx(free(pace=0.0) - 0.1, abs=0.01)
    assert free() == pytest.approx(free(pace=0.0) - 0.05, abs=0.005)


def test_a_share_rises_by_a_step_at_least_or_to_all_or_from_below_its_minimum() -> None:
    flow = queries(Promise(0.0, 0.5))
    controller = Controller(flow, step=0.1)
    kept_at: list[float] = []
    for rate in (125.0, 120.0, 112.0, 130.0, 101.0, 100.0):
        kept_at.append(kept(controller.cycle(measured(flow, [rate], [0.01])))[0])
    assert kept_at == pytest.approx([0.8, 0.8, 0.8, 1 / 1.3, 1 / 1.01, 1.0])
    controller = Controller(flow, step=0.1, patience=1)
    most = np.array([4.0])
    seen = [measured(flow, [rate], [0.01], most=most) for rate in (250.0, 240.0, 230.0)]
    kept_at = [kept(controller.cycle(each))[0] for each in seen]
    assert kept_at == pytest.approx([0.4, 1 / 2.4, 1 / 2.3], abs=1e-5)


def test_the_least_step_is_one_percent_unless_another_is_given() -> None:
    flow = queries(Promise())
    controller = Controller(flow)
    rates = (100 / 0.8, 100 / 0.809, 100 / 0.811)
    assert [kept(controller.cycle(measured(flow, [rate], [0.01])))[0] for rate in rates] == [0.8, 0.8, 0.811]


def test_a_shortage_is_one_after_some_cycles_in_a_row_only() -> None:
    flow = queries(Promise(1.0, 0.8), Promise(2.0, 0.8))
    short, enough = measured(flow, [100.0, 100.0], [0.01, 0.01]), measured(flow, [50.0, 50.0], [0.01, 0.01])
    for patience, options in ((3, {"patience": 3}), (2, {})):
        controller = Controller(flow, **options)
        for cycle in range(1, patience + 3):
            decision = controller.cycle(short)
            assert bool(decision.short) is (cycle >= patience)
            assert controller.doubtful is (cycle < patience)
        controller.cycle(enough)
        assert not controller.doubtful
        assert not controller.cycle(short).short


def test_minima_that_just_fill_a_worker_are_no_shortage() -> None:
    flow = queries(Promise(1.0, 1.0), Promise(2.0, 1.0))
    controller = Controller(flow, patience=1)
    decision = controller.cycle(measured(flow, [50.0, 50.0], [0.01, 0.01]))
    assert not decision.short
    controller = Controller(flow)
    controller.cycle(measured(flow, [50.0, 50.0], [0.01, 0.01]))
    assert not controller.doubtful


def test_of_two_workers_each_has_its_own_count_of_cycles() -> None:
    flow = queries(*[Promise(float(n), 0.9) for n in range(4)])
    costs = [[0.004, 0.004, 0.01, 0.01], [0.01, 0.01, 0.01, 0.01]]
    one, both = (measured(flow, [100.0] * 4, cost, cores=(1.0, 1.0, 0.9), worker=[0, 0, 1, 1]) for cost in costs)
    controller = Controller(flow)
    controller.cycle(one)
    decision = controller.cycle(both)
    assert [each.sink for each in decision.short] == ["q2"]
    assert [tuple(move) for move in decision.moves] == [(2, 1, 2)]


def test_while_no_rows_wait_there_is_no_shortage_to_begin_with() -> None:
    flow = queries(Promise(1.0, 0.8), Promise(2.0, 0.8))
    for patience in (1, 2):
        controller = Controller(flow, patience=patience)
        for _ in range(3):
            assert not controller.cycle(measured(flow, [100.0, 100.0], [0.01, 0.01], behind=False)).short


def test_while_no_rows_wait_the_cycles_of_a_shortage_are_not_counted() -> None:
    flow = queries(Promise(1.0, 0.8), Promise(2.0, 0.8))
    short = measured(flow, [100.0, 100.0], [0.01, 0.01])
    controller = Controller(flow)
    controller.cycle(short)
    controller.cycle(short._replace(behind=False))
    assert not controller.doubtful
    assert not controller.cycle(short).short
    assert controller.cycle(short._replace(behind=True)).short
    assert controller.cycle(short._replace(behind=False)).short


def test_of_a_shortage_it_is_said_who_gets_how_much_and_what_is_missing_where() -> None:
    flow = queries(Promise(1.0, 0.9), Promise(2.0, 0.9), Promise(1.0, 0.9), Promise(2.0, 0.9))
    seen = measured(flow, [100.0] * 4, [0.01, 0.005, 0.008, 0.009], cores=(1.0, 1.2), worker=[0, 0, 1, 1])
    found = {each.sink: each for each in first(flow, seen, patience=1).short}
    assert set(found) == {"q0", "q2"}
    assert found["q0"][1:5] == pytest.approx((0.9, 0.55, 0.35, 0), abs=1e-5)
    assert found["q2"][1:5] == pytest.approx((0.9, (1.2 - 0.81) / 0.8, 0.72 + 0.81 - 1.2, 1), abs=1e-5)


def test_a_shortage_is_told_in_a_line_with_its_remedies() -> None:
    short = Short("sales", 0.5, 0.33396, 0.126, 0)
    assert short.told("query") == (
        "query 'sales' is promised 50% of its input and gets 33.3%: 0.13 cores are missing "
        "(lower its min_accuracy or that of a higher priority, or add cores)"
    )
    rows = Short("sales", 0.9975, 0.97, 0.001, 0, "of its rows")
    assert rows.told("sink").startswith("sink 'sales' is promised 99.8% of its rows and gets 97%: 0.01 cores are")


def test_instances_move_each_to_where_there_is_room_after_the_ones_before_it() -> None:
    flow = queries(Promise(1.0, 0.8), Promise(1.0, 0.8), Promise(9.0, 0.8))
    seen = measured(flow, [100.0] * 3, [0.009, 0.009, 0.01], cores=(1.0, 1.0, 0.9, 0.2), worker=[0, 0, 0])
    moves = first(flow, seen, patience=1).moves
    assert sorted((move.instance, move.origin, move.target) for move in moves) == [(0, 0, 1), (1, 0, 2)]


def test_of_two_short_workers_the_second_can_only_use_what_the_first_has_left() -> None:
    flow = queries(*[Promise(float(n), 1.0) for n in range(4)])
    seen = measured(flow, [100.0] * 4, [0.006] * 4, cores=(1.0, 1.0, 1.0), worker=[1, 0, 1, 0])
    moves = first(flow, seen, patience=1).moves
    assert [(move.instance, move.origin, move.target) for move in moves] == [(1, 0, 2)]


def test_an_instance_that_moved_is_awaited_for_the_seconds_of_its_warm_up() -> None:
    flow = queries(Promise(1.0, 0.5), Promise(1.0, 0.5))
    seen = measured(flow, [100.0, 100.0], [0.001, 0.001], cores=(1.0, 1.0), worker=[0, 1])
    below = seen._replace(in_rate=np.array([10.0, 100.0]))
    for options, limit in (({}, 60.0), ({"warm_up": 7.0}, 7.0)):
        controller = Controller(flow, **options)  # type: ignore[arg-type]
        controller.cycle(seen)
        controller.moved(0, 100.0)
        during = controller.cycle(below._replace(time=100.0 + limit))
        assert kept(during) == [0.5, 1.0]
        assert list(controller.warming) == [0]
        after = controller.cycle(below._replace(time=100.1 + limit))
        assert kept(after) == [1.0, 1.0]
        assert not controller.warming


def test_an_instance_that_moved_is_there_when_it_has_reached_its_minimum() -> None:
    flow = queries(Promise(1.0, 0.5))
    seen = measured(flow, [100.0], [0.001])
    for rows, time, there in ((100.0, 100.0, False), (49.0, 101.0, False), (50.0, 101.0, True), (80.0, 101.0, True)):
        controller = Controller(flow)
        controller.cycle(seen)
        controller.moved(0, 100.0)
        controller.cycle(seen._replace(time=time, in_rate=np.array([rows])))
        assert (not controller.warming) is there


def test_a_worker_with_an_instance_that_warms_up_is_not_short() -> None:
    flow = queries(Promise(1.0, 0.8), Promise(2.0, 0.8))
    short = measured(flow, [100.0, 100.0], [0.01, 0.01], time=101.0)
    controller = Controller(flow, patience=1)
    controller.moved(0, 100.0)
    assert not controller.cycle(short._replace(unknown=np.array([True, False]))).short
    assert controller.cycle(short._replace(time=102.0)).short


def test_other_minima_count_from_the_next_cycle_on() -> None:
    flow = queries(Promise(1.0, 0.2), Promise(2.0, 0.2))
    controller = Controller(flow)
    seen = measured(flow, [100.0, 100.0], [0.01, 0.005])
    assert kept(controller.cycle(seen)) == [0.5, 1.0]
    controller.promise(np.array([0.8, 0.1]))
    assert kept(controller.cycle(seen)) == [0.8, 0.4]


def test_costs_of_tasks_of_the_same_name_are_remembered_by_the_controller_of_another_flow() -> None:
    old, new = queries(Promise(), Promise()), Flow.of({"q1": (), "new": (), "q0": ()}, {})
    before, after = Controller(old), Controller(new)
    before.cycle(measured(old, [10.0, 20.0], [0.03, 0.002]))
    after.remember(before)
    nothing = measured(new, [10.0, 10.0, 10.0], [0.0, 0.0, 0.0])
    assert after.cycle(nothing).whole == pytest.approx([0.02, 0.0, 0.3])


def chain(accuracy: float = 0.0) -> Flow:
    return Flow.of({"feed": (), "sink": ("feed",)}, {"sink": Promise(1.0, accuracy)})


def passed(flow: Flow, feed: float, sink: float) -> Measured:
    """100 rows a second arrive; the feed passes on `feed` of them, and the sink processes `sink`."""
    rates: Floats = np.array([feed, sink])
    arriving = np.array([100.0, 0.0])
    cpu = rates * np.array([0.001, 0.01])
    return Measured(0.0, rates, rates, arriving, np.zeros(2), cpu, np.zeros(2, np.int64), cpu[:1] * 0 + 1, np.ones(1))


def test_what_a_task_would_get_is_known_from_what_it_gets_and_the_accuracy_before_it() -> None:
    controller = Controller(chain())
    controller.cycle(passed(chain(), 100.0, 80.0))
    assert controller.whole_rate == pytest.approx([100.0, 100.0])
    controller.cycle(passed(chain(), 50.0, 50.0))
    assert controller.whole_rate == pytest.approx([100.0, 100.0])


def test_what_a_task_would_get_is_remembered_while_hardly_anything_reaches_it() -> None:
    controller = Controller(chain())
    controller.cycle(passed(chain(), 100.0, 80.0))
    controller.cycle(passed(chain(), 1.0, 3.0))
    assert controller.whole_rate == pytest.approx([100.0, 100.0])
    controller.cycle(passed(chain(), 2.0, 2.0))
    assert controller.whole_rate == pytest.approx([100.0, 100.0])


def test_an_accuracy_is_at_most_all_while_a_backlog_is_worked_off() -> None:
    flow = queries(Promise())
    seen = measured(flow, [100.0], [0.001])
    assert first(flow, seen._replace(in_rate=np.array([150.0]))).current.tolist() == [1.0]
    assert first(flow, seen._replace(in_rate=np.array([50.0]))).current.tolist() == [0.5]
    assert first(flow, seen._replace(local=np.array([0.25]))).current.tolist() == [0.25]


def test_an_instance_that_can_use_more_than_a_core_may_have_it() -> None:
    flow = queries(Promise())
    seen = measured(flow, [300.0], [0.01], cores=(4.0,))
    assert kept(first(flow, seen)) == [round(1 / 3, 6)]
    assert kept(first(flow, seen._replace(most=np.array([2.0])))) == [round(2 / 3, 6)]
    assert kept(first(flow, seen._replace(most=np.array([4.0])))) == [1.0]


def test_a_minimum_of_one_that_can_use_more_than_a_core_is_reserved_whole() -> None:
    flow = queries(Promise(1.0, 0.5), Promise(2.0))
    seen = measured(flow, [300.0, 100.0], [0.01, 0.01], cores=(2.0,), most=np.array([4.0, 4.0]))
    assert kept(first(flow, seen)) == [0.5, 0.5]


def test_a_share_at_its_minimum_does_not_rise_by_less_than_a_step() -> None:
    flow = queries(Promise(1.0, 0.5))
    controller = Controller(flow)
    assert [kept(controller.cycle(measured(flow, [rate], [0.01])))[0] for rate in (200.0, 198.0)] == [0.5, 0.5]


def test_a_target_is_never_above_all() -> None:
    flow = queries(Promise(1.0, 0.99))
    decision = first(flow, measured(flow, [100.0], [0.005]), cycle=5.0)
    assert decision.desired.tolist() == [1.0]
    assert decision.free == pytest.approx([0.5])


def test_targets_are_above_the_minima_by_two_standard_deviations_of_what_chance_keeps() -> None:
    flow = queries(Promise(1.0, 0.2), Promise(2.0, 1.0))
    seen = measured(flow, [1000.0, 1000.0], [0.001, 0.001], cores=(1.0,), cpu=np.array([1.0, 0.2]))
    for cycle, margin in ((0.0, 0.0), (5.0, 2 * (0.2 * 0.8 / 5000) ** 0.5), (0.1, 0.05), (0.0001, 0.05)):
        controller = Controller(flow, cycle=cycle, patience=100)
        assert controller.cycle(seen._replace(behind=False)).desired[0] == pytest.approx(0.2 + margin, abs=1e-6)
    flow = queries(Promise(1.0, 0.0001), Promise(2.0, 1.0))
    rare = Controller(flow, cycle=0.0001, patience=100).cycle(seen._replace(behind=False))
    assert rare.desired[0] == pytest.approx(0.0001 + 2 * (0.0001 * 0.9999) ** 0.5, abs=1e-6)  # as for a single row
