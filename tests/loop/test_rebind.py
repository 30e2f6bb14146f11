"""Another policy for a binding while the loop runs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from loop.worlds import FOUND, Failing, NeedsCost, Reversed, World
from treadle.errors import EngineError
from treadle.loop import Binding


class TestRebind:
    def test_the_next_round_is_the_new_policys(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        loop.rebind(Reversed())
        world.clock.time += 1.0
        (batch,) = loop.round()
        assert batch.policy == "reversed"
        assert world.engine.nices() == [-20.0, 0.0, 19.0]
        assert len(world.policy.asked) == 1

    def test_what_was_found_is_put_back_whoever_changed_it(self, world: World) -> None:
        with world.loop() as loop:
            loop.round()
            loop.rebind(Reversed())
            loop.round(force=True)
            assert world.engine.nices() == [-20.0, 0.0, 19.0]
        assert world.engine.nices() == [FOUND] * 3

    def test_one_that_the_engine_can_not_serve_changes_nothing(self, world: World) -> None:
        loop = world.loop()
        with pytest.raises(EngineError, match="needs-cost"):
            loop.rebind(NeedsCost())
        loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]

    def test_a_metric_must_have_been_asked_for_when_the_loop_was_made(self, world: World) -> None:
        world.engine.offers = frozenset({"queue", "cost"})
        world.engine.columns["cost"] = np.array([3.0, 2.0, 1.0])
        with pytest.raises(EngineError, match=r"metric 'cost' was not requested.*Loop\(metrics="):
            world.loop().rebind(NeedsCost())
        loop = world.loop(metrics={"cost"})
        loop.rebind(NeedsCost())
        loop.round()
        assert world.engine.nices()[0] == -20.0

    def test_a_metric_beyond_the_policies_that_can_not_be_had_is_told_at_once(self, world: World) -> None:
        with pytest.raises(EngineError, match="cost"):
            world.loop(metrics={"cost"})

    def test_the_pause_after_failures_is_not_the_new_ones(self, world: World) -> None:
        loop = world.loop(Binding(Failing(), "nice", 1.0))
        loop.run(20.0)
        assert loop.stats.troubles == {"policy 'failing'": "broken"}
        loop.rebind(world.policy)
        loop.run(1.0)
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert loop.stats.troubles == {}

    def test_it_may_be_done_from_another_thread_while_rounds_run(self, world: World) -> None:
        loop, done = world.loop(), threading.Event()

        def change() -> None:
            while not done.is_set():
                loop.rebind(Reversed())
                loop.rebind(world.policy)

        changer = threading.Thread(target=change)
        changer.start()
        try:
            for _ in range(300):
                loop.round(force=True)
                ordered = [float(nice) for nice in world.engine.nices()]
                assert sorted(ordered) == [-20.0, 0.0, 19.0]
        finally:
            done.set()
            changer.join()
        assert loop.stats.troubles == {}
