"""Another policy for a binding while the loop runs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from loop.worlds import FOUND, Failing, NeedsCost, Reversed, World
from treadle.decide.transform import nice
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

    def test_a_policy_saves_what_it_keeps_when_it_is_replaced_and_when_the_loop_ends(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        saved: list[str] = []

        class Keeping(Reversed):
            def __init__(self, name: str) -> None:
                self.label = name

            def rest(self) -> None:
                saved.append(self.label)
                if self.label == "second":
                    raise OSError("the disk is full")

        first, second = Keeping("first"), Keeping("second")
        with world.loop(Binding(first, "nice", 1.0)) as loop:
            loop.round()
            loop.rebind(first)
            assert saved == []
            loop.rebind(second)
            assert saved == ["first"]
            loop.round(force=True)
        assert saved == ["first", "second"]
        assert "could not save what it keeps: the disk is full" in caplog.text
        assert world.engine.nices() == [FOUND] * 3

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

    @pytest.mark.parametrize("before", [(), ("cost",)])
    def test_a_metric_that_nobody_needed_before_is_computed_from_then_on(
        self, world: World, before: tuple[str, ...]
    ) -> None:
        world.engine.offers = frozenset({"queue", "cost"})
        world.engine.columns["cost"] = np.array([3.0, 2.0, 1.0])
        loop = world.loop(metrics=before)
        loop.round()
        loop.rebind(NeedsCost())
        loop.round(force=True)
        assert world.engine.nices()[0] == -20.0

    def test_a_whole_binding_can_be_replaced(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        loop.rebind(Binding(Reversed(), "nice", 5.0, scale=nice(low=0, high=10)))
        world.clock.time += 1.0
        loop.round()
        assert world.engine.nices() == [0.0, 5.0, 10.0]
        assert loop.period() == 5.0

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

    def test_failures_of_the_new_one_are_its_own_and_it_is_tried_again(self, world: World) -> None:
        loop = world.loop(longest_pause=4.0)
        loop.rebind(Failing())
        loop.run(1.0)
        assert loop.stats.troubles == {"policy 'failing'": "broken"}
        loop.run(30.0)
        assert loop.stats.policy_failures == {"failing": 9}  # after 1, 2, 4, 4, … seconds

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


class TestOtherChanges:
    def test_a_pause_puts_everything_back_and_a_round_after_it_decides_again(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        loop.pause()
        assert world.engine.nices() == [FOUND] * 3
        loop.run(3.0)
        assert world.engine.nices() == [FOUND] * 3
        loop.resume()
        loop.run(1.0)
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert loop.stats.skipped == 0

    def test_another_period_counts_from_now(self, world: World) -> None:
        loop = world.loop()
        loop.run(3.0)
        assert len(world.policy.asked) == 3
        loop.set_period(0.5)
        loop.run(3.0)
        assert len(world.policy.asked) == 9
        loop.set_period(10.0)
        loop.run(10.0)
        assert len(world.policy.asked) == 10

    def test_failures_are_tried_again_by_the_new_period(self, world: World) -> None:
        loop = world.loop(Binding(Failing(), "nice", 1.0))
        loop.set_period(5.0)
        loop.run(16.0)
        assert loop.stats.policy_failures == {"failing": 3}  # at 0, 5 and 15
