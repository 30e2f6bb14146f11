"""The shares of time at which slots are added or removed, and what is said of a change."""

from __future__ import annotations

import logging
import math

import pytest

from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import AGREE, CALM, FULL, QUEUE, ROOMY, STALLED, Elastic
from treadle.errors import ConfigError


class World:
    """A gate of two cores with a clock of its own, on which some hops wait and the CPU is used as told."""

    def __init__(self, slots: int = 3, *, waiting: float = 10.0, **options: float) -> None:
        self.time, self.load, self.samples = 0.0, (0.5, 0.1), 0
        self.gate = Gate(slots, now=lambda: self.time)
        self._whole, self._part = divmod(waiting, 1.0)
        self.elastic = Elastic(self.gate, self, cores=2, now=lambda: self.time, **options)  # type: ignore[arg-type]
        for number in range(self.gate.slots + int(self._whole)):
            self.gate.register(f"hop{number}")
            self.gate.offer(f"hop{number}", lambda: None)
        self.gate.register("part")

    def sample(self) -> tuple[float, float]:
        self.samples += 1
        return self.load

    def step(self, busy: float, stall: float, seconds: float = 1.0) -> int:
        """Let the time pass; one more hop waits for a part of it."""
        self.load = (busy, stall)
        if self._part:
            self.gate.offer("part", lambda: None)
            self.time += self._part * seconds
            self.gate.withdraw("part")
            self.gate.register("part")
            self.time += (1 - self._part) * seconds
        else:
            self.time += seconds
        return self.elastic.step()

    def moves(self, busy: float, stall: float, steps: int = AGREE) -> int:
        return sum(self.step(busy, stall) for _ in range(steps))


@pytest.mark.parametrize(("busy", "moves"), [(ROOMY - 0.01, 1), (ROOMY, 0), (math.nan, 0)])
def test_a_slot_is_added_only_while_the_cores_have_room(busy: float, moves: int) -> None:
    assert World().moves(busy, 0.0) == moves


@pytest.mark.parametrize(("waiting", "moves"), [(0.0, 0), (QUEUE / 2, 0), (QUEUE, 1), (1.0, 1)])
def test_a_slot_is_added_only_while_enough_hops_wait_on_average(waiting: float, moves: int) -> None:
    assert World(waiting=waiting).moves(0.5, 0.0) == moves


def test_the_average_is_over_the_time_that_has_passed() -> None:
    world = World(waiting=QUEUE / 2)
    assert [world.step(0.5, 0.0, seconds=4.0) for _ in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("busy", "stall", "moves"),
    [
        (1.0, STALLED, -1),
        (1.0, STALLED - 0.01, 0),
        (ROOMY, STALLED, -1),
        (ROOMY - 0.01, 1.0, 0),
        (math.nan, 1.0, -1),
        (FULL, math.nan, -1),
        (FULL - 0.01, math.nan, 0),
    ],
)
def test_a_slot_is_removed_if_tasks_stall_or_if_the_cores_are_full(busy: float, stall: float, moves: int) -> None:
    assert World(waiting=0.0).moves(busy, stall) == moves


def test_slots_stay_at_the_limits() -> None:
    assert World(4).moves(0.5, 0.0, 4 * AGREE) == 0  # twice the cores
    assert World(3, high=5).moves(0.5, 0.0, 8 * AGREE) == 2
    assert World(2).moves(1.0, 1.0, 4 * AGREE) == 0  # the cores
    assert World(4, low=3).moves(1.0, 1.0, 8 * AGREE) == -1
    assert World(9, low=1, high=6).gate.slots == 6
    assert World(1, low=3).gate.slots == 3
    assert World(3, low=7).elastic.high == 7
    assert World(1, low=1, high=1).gate.slots == 1


def test_without_other_limits_slots_are_from_one_to_two_for_each_core() -> None:
    for cores in (3, 5):
        elastic = Elastic(Gate(1), World(), cores=cores)
        assert (elastic.low, elastic.high, elastic.cores, elastic.gate.slots) == (1, 2 * cores, cores, 1)
        assert elastic.period == 1.0


def test_a_sample_is_taken_after_a_period_and_not_before() -> None:
    world = World(period=2.0)
    for at, samples in ((1.9, 0), (2.0, 1), (3.9, 1), (4.0, 2), (9.0, 3), (10.9, 3), (11.0, 4)):
        world.time = at
        world.elastic.step()
        assert world.samples == samples


def test_the_opposite_change_is_made_only_after_calm_and_the_same_one_at_once() -> None:
    world = World(2, high=8)
    assert [world.step(0.5, 0.0) for _ in range(2 * AGREE)] == [0, 1, 0, 1]
    assert [world.step(1.0, 1.0) for _ in range(CALM)] == [0] * (CALM - 1) + [-1]
    assert [world.step(1.0, 1.0) for _ in range(AGREE)] == [0, -1]
    assert [world.step(0.5, 0.0) for _ in range(CALM)] == [0] * (CALM - 1) + [1]


def test_the_first_change_needs_no_calm() -> None:
    assert World(4).moves(1.0, 1.0) == -1


def test_votes_that_are_interrupted_are_counted_anew() -> None:
    world = World()
    assert [world.step(busy, 0.0) for busy in (0.5, 0.9, 0.5, 0.9, 0.5, 0.5)] == [0, 0, 0, 0, 0, 1]


def test_a_change_is_logged_with_what_led_to_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle.gate")
    World().moves(0.6, 0.55)
    (record,) = caplog.records
    assert record.getMessage() == "slots to 4: 10.0 hops waited, cores 60 % busy, stalled 55 % of the time"
    found = vars(record)
    assert (found["slots"], found["queue"], found["busy"], found["stall"]) == (4, 10.0, 0.6, 0.55)


def test_what_makes_no_sense_is_refused_with_the_remedy() -> None:
    for low, high in ((0, 4), (5, 4)):
        with pytest.raises(ConfigError) as caught:
            World(low=low, high=high)
        assert str(caught.value) == (
            f"elastic slots: slots can't be between {low} and {high} (use 1 or more, and low not above high)"
        )
    for period in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError) as caught:
            World(period=period)
        assert str(caught.value) == f"elastic slots: its period can't be {period} (use seconds above 0)"
