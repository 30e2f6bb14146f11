"""Slots go to queries by their weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.attachment.micro_batches.task_order import TaskOrder
from treadle.decide.transform import shares
from treadle.engines.spark.counters.batches import BatchReading
from treadle.engines.spark.engine import SparkEngine
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Schedule

ROUNDS, STEP = 300, 0.1


class Engine:
    """One slot, which the first query of the order that has work gets for a round."""

    name = "spark"

    def __init__(self, names: list[str]) -> None:
        self.batch_rows = {name: row for row, name in enumerate(names)}
        self.batches = {name: BatchReading(0.0, 0.0, 0.0, 0.0, 0.0, True, 0.0, 0.0, 0.0) for name in names}
        self.agents = SimpleNamespace(task_order=())

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.agents.task_order)

    def work(self, idle: str = "") -> None:
        first = next(run for run in self.order if run != idle)
        self.batches = {run: each._replace(works=run != idle) for run, each in self.batches.items()}
        self.batches[first] = self.batches[first]._replace(cpu_time=self.batches[first].cpu_time + STEP)

    def used(self) -> list[float]:
        return [each.cpu_time for each in self.batches.values()]


def made(count: int) -> tuple[Engine, TaskOrder, Topology]:
    names = [f"run{number}" for number in range(count)]
    queries = tuple(Query(name, (Operator("micro-batch"),)) for name in names)
    rows = tuple(Instance(name, ("micro-batch",), 0, "spark") for name in names)
    engine = Engine(names)
    return engine, TaskOrder(cast(SparkEngine, engine), shares()), Topology(queries, rows, 1)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6, unique=True))
def test_each_query_gets_the_part_of_the_slots_that_its_weight_is(weights: list[int]) -> None:
    engine, order, topology = made(len(weights))
    for _ in range(ROUNDS):
        order.update(topology, Schedule(np.array(weights, dtype=float)))
        engine.work()
    used = np.array(engine.used())
    expected = np.array(weights) / sum(weights) * ROUNDS * STEP
    assert np.abs(used - expected).max() <= STEP * (len(weights) + 1)


def test_who_had_nothing_to_do_does_not_save_up() -> None:
    engine, order, topology = made(2)
    schedule = Schedule(np.array([2.0, 1.0]))
    for round_ in range(ROUNDS):
        order.update(topology, schedule)
        engine.work("run1" if round_ < ROUNDS // 2 else "")
    assert abs(engine.used()[1] - STEP * ROUNDS / 2 / 3) <= 2 * STEP


def test_a_query_that_starts_late_does_not_go_before_all_others() -> None:
    engine, order, topology = made(3)
    late = engine.batch_rows.pop("run2")
    for round_ in range(ROUNDS):
        if round_ == ROUNDS // 2:
            engine.batch_rows["run2"] = late
        order.update(topology, Schedule(np.array([1.0, 2.0, 3.0])))
        engine.work()
    assert abs(engine.used()[2] - STEP * ROUNDS / 4) <= 3 * STEP


def test_a_query_without_a_weight_for_a_while_goes_on_where_the_others_are() -> None:
    engine, order, topology = made(3)
    for round_ in range(ROUNDS):
        unknown = 100 <= round_ < 101
        order.update(topology, Schedule(np.array([1.0, 2.0, np.nan if unknown else 3.0])))
        engine.work()
    assert np.abs(np.array(engine.used()) - STEP * ROUNDS * np.array([1, 2, 3]) / 6).max() <= 4 * STEP


def test_what_is_used_while_all_weigh_alike_is_not_forgotten() -> None:
    """Of queries that weighed alike for long, the one that got less is served first once they differ."""
    engine, order, topology = made(2)
    order.update(topology, Schedule(np.array([2.0, 1.0])))
    for _ in range(ROUNDS):
        order.update(topology, Schedule(np.array([1.0, 1.0])))
        engine.agents.task_order = ("run0", "run1")
        engine.work()
    order.update(topology, Schedule(np.array([2.0, 1.0])))
    assert engine.order == ("run1", "run0"), "it is the turn of the one that had nothing"


def test_without_a_difference_the_order_is_sparks_own() -> None:
    engine, order, topology = made(3)
    order.update(topology, Schedule(np.array([1.0, 2.0, 3.0])))
    assert list(engine.order) == ["run2", "run1", "run0"]
    for nothing in (np.full(3, 5.0), np.full(3, np.nan)):
        order.update(topology, Schedule(nothing))
        assert not engine.order


def test_a_query_of_which_nothing_is_decided_is_left_out() -> None:
    engine, order, topology = made(3)
    order.update(topology, Schedule(np.array([1.0, np.nan, 3.0])))
    assert engine.order == ("run2", "run0")
