"""Slots follow the CPU: up while there is room, down when they stall, and never to and fro."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import AGREE, CALM, Elastic, starting_slots, usable_cores
from treadle.errors import ConfigError

ROOM = (0.5, 0.1)
STALLED = (1.0, 0.9)
FINE = (0.95, 0.3)
UNKNOWN = (math.nan, math.nan)
NO_PSI = (1.0, math.nan)


class World:
    """A gate with a clock of its own, hops that wait or don't, and a CPU as told."""

    def __init__(self, slots: int = 2, *, waiting: bool = True, low: int = 1, high: int | None = None) -> None:
        self.time = 0.0
        self.load = ROOM
        self.gate = Gate(slots, now=lambda: self.time)
        self.elastic = Elastic(self.gate, self, low=low, high=high, cores=2, now=lambda: self.time)
        for i in range(100 if waiting else 0):
            self.gate.register(f"hop{i}")
            self.gate.offer(f"hop{i}", lambda: None)

    def sample(self) -> tuple[float, float]:
        return self.load

    def run(self, loads: Iterable[tuple[float, float]], seconds: float = 1.0) -> list[int]:
        moves = []
        for load in loads:
            self.time += seconds
            self.load = load
            moves.append(self.elastic.step())
        return moves


def test_slots_grow_while_hops_wait_and_there_is_room_up_to_twice_the_cores() -> None:
    world = World()
    assert world.run([ROOM] * 8) == [0, 1, 0, 1, 0, 0, 0, 0]
    assert world.gate.slots == 4
    assert len(world.gate.stats.holding) == 4


def test_slots_stay_where_nobody_waits() -> None:
    world = World(waiting=False)
    assert not any(world.run([ROOM] * 10))


def test_slots_shrink_to_the_cores_when_they_stall() -> None:
    world = World(5, high=8)
    assert sum(world.run([STALLED] * 20)) == -3
    assert world.gate.slots == 2


def test_a_full_cpu_counts_as_stalled_where_there_is_no_psi() -> None:
    world = World(4)
    assert sum(world.run([NO_PSI] * 20)) == -2


@pytest.mark.parametrize("load", [FINE, UNKNOWN])
def test_slots_stay_where_the_cpu_is_well_used_or_unknown(load: tuple[float, float]) -> None:
    assert not any(World(4).run([load] * 20))


def test_one_look_alone_changes_nothing() -> None:
    assert not any(World().run([ROOM, FINE] * 10))


def test_the_way_back_is_open_only_after_a_while() -> None:
    world = World(2)
    world.run([ROOM] * AGREE)
    moves = world.run([STALLED] * 20)
    assert moves.index(-1) == CALM - 1


def test_a_look_comes_once_a_period_however_often_it_is_called() -> None:
    world = World()
    moves = world.run([ROOM] * 40, seconds=0.1)
    assert sum(moves) == 1


LOADS = st.lists(st.sampled_from([ROOM, STALLED, FINE, UNKNOWN, NO_PSI]), max_size=80)


@given(LOADS, st.integers(1, 8), st.integers(1, 4), st.integers(0, 6))
def test_it_stays_between_low_and_high_and_never_flaps(
    loads: list[tuple[float, float]], slots: int, low: int, more: int
) -> None:
    world = World(slots, low=low, high=low + more)
    last, when = 0, -CALM
    for i, load in enumerate(loads):
        (move,) = world.run([load])
        assert low <= world.gate.slots <= low + more
        if move:
            assert move == last or last == 0 or i - when >= CALM
            assert loads[i - 1] == load or {loads[i - 1], load} <= {STALLED, NO_PSI}
            last, when = move, i


@given(LOADS)
def test_the_same_looks_make_the_same_moves(loads: list[tuple[float, float]]) -> None:
    assert World(3).run(loads) == World(3).run(loads)


def test_auto_starts_with_two_for_each_usable_core() -> None:
    assert starting_slots("auto") == 2 * usable_cores() >= 2
    assert starting_slots(7) == 7


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 4)])
def test_limits_that_make_no_sense_are_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="elastic slots"):
        World(low=low, high=high)


def test_a_period_of_nothing_is_refused() -> None:
    world = World()
    with pytest.raises(ConfigError, match="period"):
        Elastic(world.gate, world, period=0.0)
