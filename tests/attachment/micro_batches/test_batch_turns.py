"""How many micro-batches of a running application run at once, and how far apart those of a query begin."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import pytest

from treadle.attachment.micro_batches.batch_turns import LONGEST, WINDOW, BatchTurns, checked
from treadle.engines.spark.agent.agents import NO_TURNS
from treadle.engines.spark.counters.batches import BatchReading
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import ConfigError


class Engine:
    """An engine with two queries that read rows at these rates."""

    def __init__(self, *, cost: float = 1e-4, batch_cost: float = 0.2) -> None:
        self.agents = SimpleNamespace(turns=NO_TURNS)
        self.counted_at = 0.0
        self.batches: dict[str, BatchReading] = {}
        self._costs = cost, batch_cost
        self.after(0.0)

    def after(self, seconds: float, rate: float = 1000.0) -> None:
        self.counted_at += seconds
        cost, batch_cost = self._costs
        for run in ("one", "two"):
            before = self.batches[run].tuples_in if run in self.batches else 0.0
            self.batches[run] = BatchReading(
                before + rate * seconds, math.nan, 0.0, 0.0, 0.0, True, cost, batch_cost, selectivity=1.0
            )


def turns_of(engine: Engine, *, cores: float = 1.0) -> BatchTurns:
    return BatchTurns(cast(SparkEngine, engine), cores)


@pytest.mark.parametrize(("cores", "slots"), [(1.0, 1), (4.0, 4), (0.5, 1)])
def test_auto_is_a_slot_for_each_core(cores: float, slots: int) -> None:
    engine = Engine()
    turns_of(engine, cores=cores).update("auto")
    assert engine.agents.turns[0] == slots


def test_batches_are_as_far_apart_as_the_cores_need_for_one_of_each_query() -> None:
    engine = Engine()
    turns = turns_of(engine)
    turns.update(1)
    engine.after(WINDOW)
    turns.update(1)
    left = 1.0 - 2 * 1000.0 * 1e-4
    assert engine.agents.turns == (1, pytest.approx(2 * 0.2 / left, abs=0.05))


def test_until_rates_are_known_batches_need_not_be_apart() -> None:
    engine = Engine()
    turns = turns_of(engine)
    for _ in range(4):
        turns.update(2)
        assert engine.agents.turns == (2, 0.0)
        engine.after(WINDOW / 10)


def test_however_little_cpu_is_left_there_is_a_longest_spacing() -> None:
    engine = Engine(cost=1.0)
    turns = turns_of(engine)
    turns.update(1)
    engine.after(WINDOW)
    turns.update(1)
    assert engine.agents.turns == (1, LONGEST)


def test_unknown_costs_count_as_nothing() -> None:
    engine = Engine(cost=math.nan)
    turns = turns_of(engine)
    turns.update(1)
    engine.after(WINDOW)
    turns.update(1)
    assert engine.agents.turns == (1, 0.0)


def test_without_a_limit_nothing_is_held_back() -> None:
    engine = Engine()
    turns = turns_of(engine)
    turns.update("auto")
    turns.update(None)
    assert engine.agents.turns == NO_TURNS


@pytest.mark.parametrize("slots", [None, "auto", 1, 40])
def test_a_number_of_slots_or_auto_or_none_is_accepted(slots: object) -> None:
    assert checked(slots) == slots


@pytest.mark.parametrize("slots", [0, -1, True, 1.5, "many", ""])
def test_anything_else_is_refused(slots: object) -> None:
    with pytest.raises(ConfigError, match="slots can't be"):
        checked(slots)
