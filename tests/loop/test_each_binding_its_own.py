"""What a change of one binding, or the end of one engine, means for the others."""

from __future__ import annotations

import numpy as np
import pytest

from loop.worlds import FOUND, MemoryEngine, NeedsCost, Reversed, TestClock, World
from treadle.decide.policies import QueueSize
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop


def two_engines(*, able_first: bool = True) -> tuple[Loop, MemoryEngine, MemoryEngine]:
    """A binding for each of two engines, of which only one measures costs."""
    able, unable = MemoryEngine("able", [0.0, 10.0]), MemoryEngine("unable", [0.0, 10.0])
    able.offers = frozenset({"queue", "cost"})
    able.columns["cost"] = np.array([2.0, 1.0])
    engines = [able, unable] if able_first else [unable, able]
    bindings = [Binding(QueueSize(), "nice", 1.0, queries=(f"{engine.name}/*",)) for engine in engines]
    return Loop(engines, bindings, clock=TestClock()), able, unable


def test_a_new_policy_needs_only_the_metrics_of_the_engines_of_its_own_binding() -> None:
    loop, able, unable = two_engines()
    with pytest.raises(EngineError, match="needs-cost"):
        loop.rebind(NeedsCost(), 1)
    with pytest.raises(EngineError, match="needs-cost"):
        loop.check_policy(NeedsCost(), 1)
    loop.check_policy(NeedsCost())
    loop.rebind(NeedsCost())
    loop.round()
    assert (able.nices(), unable.nices()) == ([-20.0, 19.0], [19.0, -20.0])
    loop, able, unable = two_engines(able_first=False)
    loop.rebind(NeedsCost(), 1)
    loop.round()
    assert (able.nices(), unable.nices()) == ([-20.0, 19.0], [19.0, -20.0])


def test_a_new_policy_of_one_binding_takes_no_metric_from_another(world: World) -> None:
    world.engine.offers = frozenset({"queue", "cost"})
    world.engine.columns["cost"] = np.array([3.0, 2.0, 1.0])
    loop = world.loop(Binding(world.policy, "nice", 1.0), Binding(Reversed(), "rank", 1.0))
    loop.round()
    loop.rebind(NeedsCost(), 1)
    world.engine.columns["queue"] = np.array([100.0, 50.0, 0.0])
    loop.round(force=True)
    assert loop.stats.troubles == {}
    assert world.engine.nices() == [-20.0, 0.0, 19.0]
    assert list(world.engine.rank.values.values()) == [2.0, 1.0, 0.0]


def test_what_can_not_be_put_back_of_several_removed_engines_is_all_tried_again_at_the_end() -> None:
    engines = [MemoryEngine(name, [0.0, 10.0]) for name in ("one", "two", "three")]
    with Loop(engines, [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()) as loop:
        loop.round()
        for engine in engines[:2]:
            engine.nice.refuses = True
            loop.remove(engine.name)
            assert engine.nices() != [FOUND] * 2
            engine.nice.refuses = False
    assert [engine.nices() for engine in engines] == [[FOUND] * 2] * 3


def test_a_second_engine_of_a_name_is_refused_with_the_remedy() -> None:
    loop, able, _ = two_engines()
    with pytest.raises(ConfigError) as caught:
        loop.add(able)
    assert str(caught.value) == "loop: two engines are named 'able' (rename one of them)"


@pytest.mark.parametrize("period", [0.01, 1000.0])
def test_a_round_is_left_out_only_within_a_millionth_of_its_period_before_the_end(world: World, period: float) -> None:
    world.loop(Binding(world.policy, "nice", period)).run(2 * period + 1e-4 * period)
    assert len(world.policy.asked) == 3
    world.policy.asked.clear()
    world.clock.time = 100.0
    world.loop(Binding(world.policy, "nice", period)).run(2 * period + 1e-7 * period)
    assert len(world.policy.asked) == 2
