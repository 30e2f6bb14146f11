"""When the loop runs which policy, and what a round does: real policies and metrics on engines in memory."""

from __future__ import annotations

import logging
import math
import threading

import numpy as np
import pytest

from loop.worlds import FOUND, ByQueue, MemoryEngine, TestClock, World, costs_seen, make_world
from treadle.decide.policies import QueueSize, Random
from treadle.loop import Binding, Engine, Loop
from treadle.model import ThreadRef


def test_the_stand_in_is_an_engine(world: World) -> None:
    assert isinstance(world.engine, Engine)


class TestRounds:
    def test_the_longest_queue_gets_the_lowest_nice(self, world: World) -> None:
        world.loop().round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]

    def test_each_policy_runs_at_its_own_period(self, world: World) -> None:
        fast, slow = ByQueue(), ByQueue()
        loop = world.loop(Binding(fast, "nice", 0.5), Binding(slow, "rank", 2.0))
        loop.run(4.0)
        assert [t - 100 for t in fast.asked] == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
        assert [t - 100 for t in slow.asked] == [0, 2]
        assert loop.stats.rounds == 8
        assert world.engine.asked == 8

    def test_it_wakes_only_when_something_is_due(self, world: World) -> None:
        world.loop(Binding(world.policy, "nice", 2.0), Binding(ByQueue(), "rank", 3.0)).run(6.0)
        assert world.clock.slept == [2.0, 1.0, 1.0, 2.0]

    def test_an_engine_is_looked_at_only_for_a_policy_that_is_due(self) -> None:
        clock, often, seldom = TestClock(), MemoryEngine("often", [0.0, 1.0]), MemoryEngine("seldom", [0.0, 1.0])
        bindings = [
            Binding(QueueSize(), "nice", period, queries=(f"{engine}/*",))
            for engine, period in (("often", 1.0), ("seldom", 3.0))
        ]
        Loop([often, seldom], bindings, clock=clock).run(6.0)
        assert (often.asked, seldom.asked) == (6, 2)

    def test_nothing_is_due_between_the_periods_unless_forced(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        world.clock.time += 0.5
        assert loop.round() == ()
        assert len(world.policy.asked) == 1
        loop.round(force=True)
        assert len(world.policy.asked) == 2
        assert loop.next_due == world.clock.time + 1.0

    def test_a_late_round_is_left_out_and_counted_and_the_next_is_on_time_again(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        world.clock.time = 103.7
        loop.round()
        assert len(world.policy.asked) == 2
        assert loop.stats.skipped == 2
        assert loop.next_due == 104.0

    def test_rounds_that_are_put_off_are_not_missed_and_the_next_is_when_it_would_have_been(self, world: World) -> None:
        loop = world.loop(Binding(QueueSize(), "nice", 1.0))
        assert not loop.settled
        loop.round()
        assert loop.settled
        world.clock.time = 102.7
        loop.put_off(world.clock.time)
        assert loop.next_due == 103.0
        assert loop.round() == ()
        loop.put_off(103.0)
        assert loop.next_due == 103.0
        loop.run(until=104.5)
        assert (loop.stats.rounds, loop.stats.skipped) == (3, 0)

    @pytest.mark.parametrize(("until", "due"), [(101.0, 102.0), (102.0, 102.0), (102.1, 104.0), (106.0, 106.0)])
    def test_rounds_are_put_off_by_whole_periods(self, world: World, until: float, due: float) -> None:
        loop = world.loop(Binding(QueueSize(), "nice", 2.0))
        loop.round()
        loop.put_off(until)
        assert loop.next_due == due

    def test_a_policy_that_decides_anew_on_what_it_has_seen_is_never_settled(self, world: World) -> None:
        loop = world.loop(Binding(Random(np.random.default_rng(1)), "nice", 1.0))
        loop.round()
        assert not loop.settled

    def test_a_period_that_floats_cannot_hold_is_neither_skipped_nor_doubled(self, world: World) -> None:
        loop = world.loop(Binding(world.policy, "nice", 0.1))
        loop.run(10.0)
        assert (len(world.policy.asked), loop.stats.skipped) == (100, 0)

    def test_it_runs_until_a_time_or_a_stop(self, world: World) -> None:
        loop, stop = world.loop(), threading.Event()
        loop.run(until=102.5)
        assert world.clock.time == pytest.approx(102.5)
        world.clock.meanwhile = lambda: stop.set() if world.clock.time > 104.1 else None
        loop.run(stop=stop)
        assert 104.1 < world.clock.time < 104.4

    def test_only_changes_are_written(self, world: World) -> None:
        loop = world.loop()
        loop.run(3.0)
        assert len(world.engine.nice.writes) == 3
        world.engine.columns["queue"][1] = 100.0
        loop.run(1.0)
        assert world.engine.nice.writes[3:] == [(ThreadRef(2), -20.0)]
        assert loop.stats.changes == 4

    @pytest.mark.parametrize(("tau", "mean"), [(0.0, 9.0), (1.0, 9.0 - 8.0 * math.exp(-1.0)), (1e12, 1.0)])
    def test_metrics_are_averaged_over_as_many_seconds_as_it_is_told(
        self, world: World, tau: float, mean: float
    ) -> None:
        assert costs_seen(world, [1.0, 9.0], tau=tau) == pytest.approx([1.0, mean])

    def test_an_average_is_kept_for_as_many_seconds_as_it_is_told(self, world: World) -> None:
        seen = costs_seen(world, [1.0, math.nan, math.nan, math.nan], forget=2.5)
        assert seen == pytest.approx([1.0, 1.0, 1.0, math.nan], nan_ok=True)

    def test_it_counts_its_own_cost(self, world: World) -> None:
        loop = world.loop()
        loop.run(3.0)
        assert loop.stats.cpu_seconds > 0
        assert len(loop.stats.round_ms) == 3
        assert loop.stats.median_ms > 0

    def test_a_dry_run_writes_nothing_but_decides(self, world: World) -> None:
        with world.loop(Binding(world.policy, "nice", 1.0), Binding(ByQueue(), "shares", 1.0), dry_run=True) as loop:
            loop.run(3.0)
        knobs = (world.engine.nice, world.engine.group, world.engine.shares)
        assert [knob.writes for knob in knobs] == [[], [], []]
        assert world.engine.nices() == [FOUND] * 3
        assert [(d.knob, d.after) for d in loop.decisions][3:] == [("group", "q")] * 3

    def test_a_dry_run_tells_the_same_as_a_real_one(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "treadle.loop")
        told = []
        for dry_run in (False, True):
            caplog.clear()
            world = make_world()
            with world.loop(stale_after=2, dry_run=dry_run) as loop:
                loop.run(2.0)
                world.engine.columns["queue"][1] = math.nan
                loop.run(4.0)
            lines = [
                record.getMessage().removeprefix("would ").replace("changed", "change") for record in caplog.records
            ]
            told.append((lines, [str(decision) for decision in loop.decisions]))
        assert told[0] == told[1]
        assert "put back 2 values" in told[0][0]
        assert len(told[0][1]) == 4

    def test_a_dry_run_does_not_mistake_its_own_pretence_for_somebody_else(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        with world.loop(dry_run=True) as loop:
            loop.run(2.0)
        assert caplog.text == ""
        assert world.engine.nice.writes == []
