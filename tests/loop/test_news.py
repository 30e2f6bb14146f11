"""Engines that say when there is nothing new, and engines that answer late."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from loop.worlds import ByQueue, MemoryEngine, TestClock, World
from support import until
from treadle.decide.policies import Random
from treadle.loop import Binding, Loop
from treadle.values import Sample


class Telling(MemoryEngine):
    """Says whether there is news."""

    has_news = True

    def news(self) -> bool:
        return self.has_news


class Late(MemoryEngine):
    """Answers when it is told to."""

    in_process = False

    def __init__(self) -> None:
        super().__init__("late", [0.0, 50.0, 100.0])
        self.may_answer = threading.Event()
        self.answered = 0

    def sample(self, wanted: frozenset[str]) -> Sample:
        self.may_answer.wait()
        self.answered += 1
        return super().sample(wanted)


@pytest.fixture
def world() -> World:
    found = World(TestClock(), Telling("mem", [0.0, 50.0, 100.0]), ByQueue())
    found.engine.now = found.clock.now
    return found


def telling(world: World) -> Telling:
    assert isinstance(world.engine, Telling)
    return world.engine


def test_without_news_nobody_is_asked(world: World) -> None:
    loop = world.loop()
    loop.round()
    telling(world).has_news = False
    loop.run(5.0)
    assert (world.engine.asked, len(world.policy.asked)) == (1, 1)
    assert loop.stats.rounds == 5
    assert len(loop.stats.phase_ms["quiet"]) == 4


def test_news_are_decided_on_in_the_same_round(world: World) -> None:
    loop = world.loop()
    loop.round()
    telling(world).has_news = False
    loop.run(3.0)
    telling(world).has_news = True
    world.engine.columns["queue"] = np.array([100.0, 50.0, 0.0])
    loop.run(1.0)
    assert world.engine.nices() == [-20.0, 0.0, 19.0]


def test_a_policy_that_is_not_steady_decides_again_on_what_it_saw(world: World) -> None:
    loop = world.loop(Binding(Random(np.random.default_rng(0)), "nice", 1.0))
    loop.round()
    before = world.engine.nices()
    telling(world).has_news = False
    loop.run(2.0)
    assert world.engine.asked == 1
    assert world.engine.nices() != before


def test_what_failed_is_tried_again_without_news(world: World) -> None:
    loop = world.loop()
    world.engine.nice.refuses = True
    loop.round()
    telling(world).has_news = world.engine.nice.refuses = False
    loop.run(2.0)
    assert world.engine.nices() == [19.0, 0.0, -20.0]


def test_unknown_decisions_grow_stale_without_news(world: World) -> None:
    loop = world.loop(stale_after=3)
    loop.round()
    world.engine.columns["queue"] = np.full(3, np.nan)
    loop.round(force=True)
    telling(world).has_news = False
    loop.run(5.0)
    assert world.engine.nices() == [3.0, 3.0, 3.0]


def test_a_new_policy_decides_without_news(world: World) -> None:
    loop = world.loop()
    loop.round()
    telling(world).has_news = False
    other = ByQueue()
    loop.rebind(other)
    loop.run(2.0)
    assert len(other.asked) == 1


def test_a_round_goes_on_without_a_late_answer_and_takes_it_when_it_is_there() -> None:
    clock, engine, policy = TestClock(), Late(), ByQueue()
    engine.may_answer.set()
    with Loop([engine], [Binding(policy, "nice", 1.0)], clock=clock, patience=0.01) as loop:
        until(lambda: bool(loop.round(force=True)))
        engine.may_answer.clear()
        engine.columns["queue"] = np.array([100.0, 50.0, 0.0])
        asked = engine.answered
        for _ in range(3):
            loop.round(force=True)
        assert engine.nices() == [19.0, 0.0, -20.0]
        assert not loop.stats.troubles
        engine.may_answer.set()
        until(lambda: engine.answered > asked)
        until(lambda: bool(loop.round(force=True)))
        assert engine.nices() == [-20.0, 0.0, 19.0]
