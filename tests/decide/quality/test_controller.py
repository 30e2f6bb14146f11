"""Promises are kept in the order of their priorities, whatever the load."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.decide.quality import Controller, Decision, Flow, Measured, Promise
from treadle.decide.quality.moves import best_worker, leavers, place
from treadle.model import Floats


class Cluster:
    """What would be measured: tasks that cost so much a row, on workers of a core, rows kept as was decided."""

    def __init__(self, flow: Flow, costs: list[float], workers: list[int], cores: list[float]) -> None:
        self.flow = flow
        self.costs = np.array(costs)[flow.task_of]
        self.worker = np.array(workers)
        self.cores = np.array(cores)
        self.other = np.zeros(len(cores))
        self.waiting = np.zeros(len(flow))

    def measure(self, time: float, rate: float, decision: Decision | None, passed: float = 5.0) -> Measured:
        """Every source gets `rate`; a worker that is asked for too much does the same part of everything."""
        flow = self.flow
        desired = np.ones(len(flow)) if decision is None else decision.desired
        arriving = np.where(np.isin(np.arange(len(flow)), flow.sources), rate, 0.0)
        wished = np.zeros(len(flow))
        for task in np.argsort(-flow.depth).tolist():
            ups = flow.start[flow.end == task]
            wished[task] = desired[task] * (rate * max(1, len(ups)) + self.waiting[task] / passed)
        each = (wished / flow.copies)[flow.task_of]
        asked = np.bincount(self.worker, weights=each * self.costs, minlength=len(self.cores))
        part = np.minimum(1.0, (self.cores - self.other) / np.maximum(asked, 1e-9))[self.worker]
        in_rate = each * part
        out: Floats = np.bincount(flow.task_of, weights=in_rate, minlength=len(flow)).astype(np.float64)
        taken = out / np.maximum(desired, 1e-9)
        self.waiting[flow.sources] = np.maximum(0.0, self.waiting + passed * (rate - taken))[flow.sources]
        cpu = in_rate * self.costs
        busy = self.other + np.bincount(self.worker, weights=cpu, minlength=len(self.cores))
        return Measured(time, in_rate, out, arriving, self.waiting.copy(), cpu, self.worker, busy, self.cores)


def settle(controller: Controller, cluster: Cluster, rate: float, cycles: int = 12, start: float = 0.0) -> Decision:
    decision: Decision | None = None
    for number in range(cycles):
        decision = controller.cycle(cluster.measure(start + 5.0 * number, rate, decision))
    assert decision is not None
    return decision


def knn(*promises: Promise) -> Flow:
    names = [f"q{number}" for number in range(len(promises))]
    return Flow.of(dict.fromkeys(names, ()), dict(zip(names, promises, strict=True)))


def test_with_enough_cpu_nothing_is_shed() -> None:
    flow = knn(Promise(1, 0.2), Promise(2, 0.2))
    decision = settle(Controller(flow), Cluster(flow, [0.01, 0.01], [0, 0], [1.0]), rate=40.0)
    assert decision.outside.tolist() == [1.0, 1.0]
    assert not decision.short
    assert not decision.moves


def test_the_lower_priority_sheds_first_and_down_to_its_minimum_only() -> None:
    flow = knn(Promise(1, 0.2), Promise(2, 0.2))
    cluster = Cluster(flow, [0.01, 0.01], [0, 0], [1.0])
    decision = settle(Controller(flow, drain=1e9), cluster, rate=70.0)
    assert decision.outside[1] == pytest.approx(1.0)
    assert decision.outside[0] == pytest.approx(0.3 / 0.7, abs=0.02)
    decision = settle(Controller(flow, drain=1e9), Cluster(flow, [0.01, 0.01], [0, 0], [1.0]), rate=110.0)
    assert decision.outside[0] == pytest.approx(0.2, abs=1e-6)
    assert decision.outside[1] == pytest.approx((1 - 0.22) / 1.1, abs=0.02)


def test_a_minimum_is_aimed_at_from_above_by_what_chance_may_take() -> None:
    flow = knn(Promise(1, 0.2), Promise(2, 1.0))
    for rate, above in ((110.0, 0.034), (1.0, 0.05)):
        cluster = Cluster(flow, [1.0 / rate, 1.0 / rate], [0, 0], [1.22])
        kept = settle(Controller(flow, drain=1e9, cycle=5.0), cluster, rate=rate).outside
        assert kept[0] == pytest.approx(0.2 + above, abs=0.002)
        assert kept[1] == 1.0


def test_equal_priorities_share_evenly_what_is_beyond_their_minima() -> None:
    flow = knn(Promise(1, 0.4), Promise(1, 0.6))
    decision = settle(Controller(flow, drain=1e9), Cluster(flow, [0.01, 0.01], [0, 0], [1.0]), rate=80.0)
    assert decision.outside == pytest.approx([0.4 + 0.125, 0.6 + 0.125], abs=0.02)


def test_a_minimum_that_cannot_be_met_is_named_with_what_is_missing() -> None:
    flow = knn(Promise(1, 0.5), Promise(2, 0.8))
    decision = settle(Controller(flow, drain=1e9), Cluster(flow, [0.01, 0.01], [0, 0], [1.0]), rate=100.0)
    (short,) = decision.short
    assert (short.sink, short.wants, short.worker) == ("q0", 0.5, 0)
    assert short.missing == pytest.approx(0.3, abs=0.02)
    assert short.gets == pytest.approx(0.2, abs=0.02)
    assert decision.outside[1] == pytest.approx(0.8, abs=1e-6)


def test_what_waits_is_worked_off_by_shedding_more_for_a_while() -> None:
    flow = knn(Promise(1, 0.1))
    cluster = Cluster(flow, [0.01], [0], [1.0])
    decision: Decision | None = None
    controller = Controller(flow, drain=20.0)
    kept = []
    for number in range(30):
        decision = controller.cycle(cluster.measure(5.0 * number, 150.0, decision))
        kept.append(float(decision.outside[0]))
        if number == 0:
            assert cluster.waiting[0] > 0
    assert cluster.waiting[0] < 5.0
    assert min(kept) < 0.66
    assert kept[-1] == pytest.approx(1 / 1.5, abs=0.03)


def test_the_smallest_of_the_least_important_moves_to_where_there_is_room() -> None:
    flow = knn(Promise(1, 0.9), Promise(1, 0.9), Promise(2, 0.9))
    controller = Controller(flow, patience=2, drain=1e9)
    cluster = Cluster(flow, [0.004, 0.006, 0.006], [0, 0, 0], [1.0, 1.0])
    first = controller.cycle(cluster.measure(0.0, 100.0, None))
    assert controller.doubtful
    second = controller.cycle(cluster.measure(5.0, 100.0, first))
    assert first.moves == ()
    assert not controller.doubtful
    assert [(move.instance, move.target) for move in second.moves] == [(1, 1)]


def test_nobody_moves_to_where_there_is_no_room() -> None:
    flow = knn(Promise(1, 0.9), Promise(2, 0.9))
    controller = Controller(flow, patience=1)
    cluster = Cluster(flow, [0.009, 0.009], [0, 0], [1.0, 1.0])
    cluster.other[1] = 0.9
    decision = settle(controller, cluster, 100.0)
    assert decision.moves == ()
    assert [short.sink for short in decision.short] == ["q0"]


def test_while_one_warms_up_all_on_its_worker_stay_at_their_minimum() -> None:
    flow = knn(Promise(1, 0.5), Promise(2, 0.5))
    controller = Controller(flow, warm_up=60.0)
    cluster = Cluster(flow, [0.001, 0.001], [0, 0], [1.0])
    settle(controller, cluster, 100.0)
    controller.moved(0, time=100.0)
    seen = cluster.measure(105.0, 100.0, None)
    seen = seen._replace(in_rate=np.array([10.0, 100.0]))
    assert controller.cycle(seen).outside.tolist() == [0.5, 0.5]
    assert list(controller.warming) == [0]
    controller.cycle(seen._replace(time=161.0))
    assert not controller.warming


def test_a_warm_up_ends_by_what_is_known_of_the_new_place_only() -> None:
    flow = knn(Promise(1, 0.5))
    controller = Controller(flow, warm_up=60.0)
    cluster = Cluster(flow, [0.001], [0], [1.0])
    settle(controller, cluster, 100.0)
    controller.moved(0, time=100.0)
    seen = cluster.measure(105.0, 100.0, None)
    controller.cycle(seen._replace(unknown=np.array([True])))
    assert controller.warming == (0,)
    controller.cycle(seen._replace(time=110.0, unknown=np.array([False])))
    assert not controller.warming


def test_it_does_not_flap_with_noise() -> None:
    flow = knn(Promise(1, 0.2))
    controller = Controller(flow, step=0.05, drain=1e9)
    cluster = Cluster(flow, [0.01], [0], [1.0])
    random = np.random.default_rng(1)
    kept = []
    decision: Decision | None = None
    for number in range(60):
        seen = cluster.measure(5.0 * number, 150.0 * random.uniform(0.99, 1.01), decision)
        decision = controller.cycle(seen)
        kept.append(float(decision.outside[0]))
    rises = [b - a for a, b in itertools.pairwise(kept[5:]) if b > a]
    assert all(rise >= 0.05 for rise in rises)
    assert len(rises) <= 3


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0.001, 0.02)), min_size=1, max_size=8),
    st.floats(1.0, 200.0),
)
def test_no_sink_is_under_its_minimum_unless_it_is_said_and_no_worker_is_promised_more_than_it_has(
    queries: list[tuple[int, float, float]], rate: float
) -> None:
    flow = knn(*(Promise(priority, minimum) for priority, minimum, _ in queries))
    cluster = Cluster(flow, [cost for *_, cost in queries], [n % 2 for n in range(len(queries))], [1.0, 1.0])
    decision = settle(Controller(flow, drain=1e9), cluster, rate, cycles=4)
    said = {short.sink for short in decision.short}
    for name, desired, (_, minimum, _) in zip(flow.tasks, decision.desired, queries, strict=True):
        assert desired >= minimum - 1e-9 or name in said
    assert (decision.outside >= 0.0).all()
    assert (decision.outside <= 1.0).all()


def test_a_shared_source_sheds_only_what_no_sink_wants() -> None:
    flow = Flow.of({"src": (), "a": ("src",), "b": ("src",)}, {"a": Promise(1, 0.3), "b": Promise(2, 0.3)})
    cluster = Cluster(flow, [0.0001, 0.01, 0.01], [0, 0, 0], [1.0])
    decision = settle(Controller(flow, drain=1e9), cluster, rate=70.0)
    assert decision.outside[0] == pytest.approx(1.0, abs=0.02)
    kept = {flow.tasks[end]: part for end, part in zip(flow.end.tolist(), decision.streams.tolist(), strict=True)}
    assert kept["b"] == pytest.approx(1.0, abs=0.02)
    assert kept["a"] == pytest.approx(0.3 / 0.7, abs=0.05)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0.01, 1.0)), min_size=1, max_size=10), st.floats(0.01, 5.0))
def test_who_leaves_releases_enough_and_nobody_leaves_in_vain(items: list[tuple[int, float]], lacking: float) -> None:
    least = np.array([cpu for _, cpu in items])
    priority = np.array([float(each) for each, _ in items])
    leaving = leavers(lacking, least, priority)
    released = float(least[leaving].sum())
    if least.sum() >= lacking:
        assert released >= lacking - 1e-9
        assert all(released - least[one] < lacking + 1e-9 for one in leaving)
    else:
        assert len(leaving) == len(items)


def test_a_task_goes_to_the_worker_with_most_left_or_where_it_is_wished() -> None:
    free: Floats = np.array([0.2, 0.9, 0.5])
    everywhere = np.ones(3, dtype=np.bool_)
    assert best_worker(free, 0.3, everywhere) == 1
    assert best_worker(free, 0.3, everywhere, preferred=[2]) == 2
    assert best_worker(free, 0.3, everywhere, preferred=[0]) == 1
    assert best_worker(free, 1.0, everywhere) is None
    assert place(np.array([1.0, 1.0, 1.0]), np.array([1.0, 2.0])).tolist() == [1, 0, 1]


def shared(*promises: tuple[str, Promise]) -> Flow:
    """A feed, an operator that all sinks share, and the sinks."""
    inputs = {"feed": (), "scored": ("feed",), **dict.fromkeys((name for name, _ in promises), ("scored",))}
    return Flow.of(inputs, dict(promises), {"feed": 0})


def shared_load(flow: Flow, costs: list[float], rate: float, waiting: float, decision: Decision | None) -> Measured:
    """What is measured on one core of a flow that has what was decided."""
    desired = np.ones(len(flow)) if decision is None else decision.desired
    came = np.where(np.arange(len(flow)) == 0, rate, 0.0)
    in_rate = (rate * desired)[flow.task_of]
    cpu = in_rate * np.array(costs)
    return Measured(
        time=0.0,
        in_rate=in_rate,
        out_rate=np.where(np.arange(len(flow)) == 0, rate, rate * desired),
        arriving=came,
        waiting=np.full(len(flow), waiting),
        cpu=cpu,
        worker=np.zeros(len(in_rate), dtype=np.int64),
        busy=np.array([cpu.sum()]),
        cores=np.array([1.0]),
        local=np.where(np.arange(len(flow)) == 1, desired[1], desired / max(desired[1], 1e-9)),
        behind=waiting > 0.0,
        most=np.full(len(in_rate), 4.0),
    )


def test_where_a_shared_operator_is_too_expensive_sinks_that_can_do_with_what_it_gives_are_not_short() -> None:
    promises = ("fraud", Promise(10, 1.0)), ("revenue", Promise(5, 0.3)), ("archive", Promise(1, 0.05))
    flow = shared(*promises)
    controller, decision = Controller(flow, drain=1e9), None
    for _ in range(6):
        decision = controller.cycle(shared_load(flow, [0.0125, 0.0, 0.0, 0.0], 100.0, 50.0, decision))
    assert decision is not None
    (short,) = decision.short
    assert (short.sink, short.wants) == ("fraud", 1.0)
    assert short.gets == pytest.approx(0.8, abs=0.01)
    wanted = dict(zip(flow.tasks, decision.desired.tolist(), strict=True))
    assert wanted["fraud"] == pytest.approx(0.8, abs=0.01)
    assert wanted["archive"] >= 0.05
    assert wanted["revenue"] >= 0.3


def test_minima_of_the_lowest_priorities_give_way_before_an_operator_that_all_share() -> None:
    promises = ("fraud", Promise(10, 1.0)), ("revenue", Promise(5, 0.3)), ("archive", Promise(1, 0.2))
    flow = shared(*promises)
    controller, decision = Controller(flow, drain=1e9), None
    for _ in range(6):
        decision = controller.cycle(shared_load(flow, [0.004, 0.004, 0.005, 0.005], 100.0, 50.0, decision))
    assert decision is not None
    assert [short.sink for short in decision.short] == ["archive"]
    wanted = dict(zip(flow.tasks, decision.desired.tolist(), strict=True))
    assert (wanted["fraud"], wanted["revenue"]) == (1.0, pytest.approx(0.3))
    assert wanted["archive"] == pytest.approx(0.1, abs=0.01)


def test_while_nothing_waits_no_minimum_is_said_to_be_short() -> None:
    flow = shared(("fraud", Promise(10, 1.0)), ("archive", Promise(1, 0.05)))
    controller, decision = Controller(flow, drain=1e9), None
    for _ in range(6):
        decision = controller.cycle(shared_load(flow, [0.0125, 0.0, 0.0], 100.0, 0.0, decision))
    assert decision is not None
    assert decision.short == ()
    assert decision.desired[flow.tasks.index("fraud")] == 1.0


def test_a_shortage_stays_one_while_its_cut_keeps_rows_from_waiting() -> None:
    flow = shared(("fraud", Promise(10, 1.0)), ("archive", Promise(1, 0.05)))
    controller, decision = Controller(flow, drain=1e9), None
    for cycle in range(8):
        waiting = 50.0 if cycle < 3 else 0.0
        decision = controller.cycle(shared_load(flow, [0.0125, 0.0, 0.0], 100.0, waiting, decision))
    assert decision is not None
    assert [short.sink for short in decision.short] == ["fraud"]
