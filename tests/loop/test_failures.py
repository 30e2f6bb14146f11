"""Engines, policies and knobs that fail or hang: each costs only its own part, and is tried again."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from loop.worlds import ByQueue, MemoryEngine, TestClock, World, note_threads
from support import LONG
from treadle.decide.policies import QueueSize, UserPriority
from treadle.loop import Binding, Loop
from treadle.values import Sample, Schedule, Snapshot


class TestFailures:
    def test_a_failing_engine_keeps_its_last_decisions_and_the_loop_goes_on(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        decided = world.engine.nices()
        world.engine.fails = OSError("connection refused")
        loop.run(4.0)
        assert world.engine.nices() == decided
        assert loop.stats.troubles == {"engine 'mem'": "connection refused"}

    def test_it_is_tried_again_after_pauses_that_double(self, world: World) -> None:
        world.engine.fails = OSError("down")
        loop = world.loop(longest_pause=4.0)
        asked = []
        for second in range(16):
            world.clock.time = 100.0 + second
            before = world.engine.asked
            loop.round()
            if world.engine.asked > before:
                asked.append(second)
        assert asked == [0, 1, 3, 7, 11, 15]
        assert loop.stats.failures == {"mem": 6}

    def test_it_is_logged_once_for_each_streak(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        loop = world.loop()
        for error in (OSError("first"), None, OSError("second")):
            world.engine.fails = error
            loop.run(8.0)
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert told == [f"engine 'mem' fails, its last decisions stay: {which}" for which in ("first", "second")]

    def test_it_costs_only_its_own_rows(self) -> None:
        clock, good, bad = TestClock(), MemoryEngine("good", [0.0, 9.0]), MemoryEngine("bad", [4.0, 8.0])
        loop = Loop([good, bad], [Binding(QueueSize(), "nice", 1.0)], clock=clock)
        loop.round()
        last = bad.nices()
        bad.fails = OSError("down")
        good.columns["queue"][:] = 9.0, 0.0
        clock.time += 1
        loop.round()
        assert good.nices() == [-20.0, 19.0]
        assert bad.nices() == last

    def test_engines_that_cannot_be_told_apart_end_no_round(self) -> None:
        one, two = MemoryEngine("one", [0.0, 9.0]), MemoryEngine("two", [4.0, 8.0])
        renamed = tuple(replace(i, engine="one") for i in two.topology().instances)
        two._topology = replace(two.topology(), instances=renamed)
        bindings = [Binding(QueueSize(), "nice", 1.0), Binding(QueueSize(), "rank", 1.0, queries=("one/*",))]
        loop = Loop([one, two], bindings, clock=TestClock())
        loop.round()
        assert "is defined twice" in loop.stats.troubles["policy 'queue-size'"]
        assert one.rank.values == {"one:q.o0[0]": 0.0, "one:q.o1[0]": 1.0}

    def test_a_policy_without_metrics_does_not_decide_for_an_engine_that_fails(self) -> None:
        clock, good, bad = TestClock(), MemoryEngine("good", [0.0, 9.0]), MemoryEngine("bad", [4.0, 8.0])

        class Turning(UserPriority):
            turn = 1.0

            def decide(self, snapshot: Snapshot) -> Schedule:
                self.turn = -self.turn
                return Schedule(self.turn * np.arange(len(snapshot.topology), dtype=np.float64))

        loop = Loop([good, bad], [Binding(Turning(), "nice", 1.0)], clock=clock)
        loop.round()
        assert (good.nices(), bad.nices()) == ([-20.0, -7.0], [6.0, 19.0])
        bad.fails = OSError("down")
        clock.time += 1
        loop.round()  # its rows keep their places on the scale, and their threads what they have
        assert (good.nices(), bad.nices()) == ([19.0, 6.0], [6.0, 19.0])

    def test_an_engine_whose_rows_do_not_fit_its_topology_fails(self, world: World) -> None:
        world.engine.columns["queue"] = np.zeros(7)
        loop = world.loop()
        loop.round()
        assert "there are 3 instances" in loop.stats.troubles["engine 'mem'"]

    def test_an_engine_that_hangs_is_left_hanging(self, world: World) -> None:
        answer, sample = threading.Event(), world.engine.sample

        def hang(wanted: frozenset[str]) -> Sample:
            answer.wait()
            return sample(wanted)

        world.engine.in_process = False
        world.engine.sample = hang  # type: ignore[method-assign]
        threads = note_threads(world.engine)
        loop = world.loop(sample_timeout=0.01)
        loop.round()
        assert "did not answer within 0.01 s" in loop.stats.troubles["engine 'mem'"]
        world.clock.time += 1
        loop.round()
        assert "has still not answered" in loop.stats.troubles["engine 'mem'"]
        answer.set()
        (thread,) = threads
        thread.join()
        world.engine.sample = sample  # type: ignore[method-assign]
        world.clock.time += 2
        loop.round()
        assert loop.stats.troubles == {}
        assert world.engine.nices() == [19.0, 0.0, -20.0]

    def test_an_error_in_time_is_told_as_it_is(self, world: World) -> None:
        world.engine.in_process = False
        world.engine.fails = OSError("down")
        loop = world.loop()
        loop.round()
        assert loop.stats.troubles == {"engine 'mem'": "down"}

    def test_an_engine_is_asked_in_one_thread_that_ends_with_the_loop(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.engine.in_process = False
        with world.loop() as loop:
            loop.run(2.0)
            world.engine.fails = OSError("down")
            loop.run(1.0)
            world.engine.fails = None
            loop.run(4.0)
            assert world.engine.nices() == [19.0, 0.0, -20.0]
        (thread,) = set(threads)
        assert (thread.name, len(threads)) == ("treadle-look-at-mem", 7)
        thread.join(LONG)
        assert not thread.is_alive()

    def test_that_thread_ends_also_with_a_loop_that_was_never_left(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.engine.in_process = False
        world.loop().round()
        gc.collect()
        threads[0].join(LONG)
        assert not threads[0].is_alive()

    def test_an_engine_in_process_is_asked_without_a_thread(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.loop().run(2.0)
        assert threads == [threading.current_thread()] * 2

    def test_one_that_can_answer_at_once_from_now_on_is_asked_without_a_thread_from_now_on(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.engine.in_process = False
        with world.loop() as loop:
            loop.run(1.0)
            world.engine.in_process = True
            loop.run(1.0)
        assert threads[0].name == "treadle-look-at-mem"
        assert threads[1] is threading.current_thread()

    def test_a_signal_that_breaks_a_round_leaves_no_old_answer_behind(self, world: World) -> None:
        answer, sample = threading.Event(), world.engine.sample

        def hang(wanted: frozenset[str]) -> Sample:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            answer.wait()
            return sample(wanted)

        world.engine.in_process = False
        world.engine.sample = hang  # type: ignore[method-assign]
        threads = note_threads(world.engine)
        with world.loop(sample_timeout=600.0) as loop:
            with pytest.raises(KeyboardInterrupt):
                loop.round()
            world.engine.sample = sample  # type: ignore[method-assign]
            answer.set()
            threads[0].join()
            world.clock.time += 1
            (batch,) = loop.round()
            assert batch.time == world.clock.time
            assert loop.stats.troubles == {}

    def test_a_failing_policy_leaves_the_others_alone(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        class Broken(ByQueue):
            name = "broken"

            def decide(self, snapshot: Snapshot) -> Schedule:
                super().decide(snapshot)
                raise ZeroDivisionError

        broken = Broken()
        loop = world.loop(Binding(broken, "rank", 1.0), Binding(world.policy, "nice", 1.0))
        loop.run(4.0)
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert [t - 100 for t in broken.asked] == [0, 1, 3]
        assert loop.stats.policy_failures == {"broken": 3, "queue-size": 0}
        assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
            "policy 'broken' fails, its last decisions stay: ZeroDivisionError"
        ]

    def test_a_schedule_of_the_wrong_size_is_refused(self, world: World) -> None:
        class Short(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                return Schedule(np.zeros(2))

        loop = world.loop(Binding(Short(), "nice", 1.0))
        loop.round()
        assert "decided 2 rows, 3 helpers and 3 group members for 3 rows" in loop.stats.troubles["policy 'queue-size'"]

    def test_a_knob_that_refuses_is_told_once_and_tried_again(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = world.loop()
        world.engine.nice.refuses = True
        loop.run(3.0)
        assert loop.stats.knob_failures == {"mem/nice": 9}
        assert len([r for r in caplog.records if "knob 'mem/nice' fails" in r.getMessage()]) == 1
        world.engine.nice.refuses = False
        loop.run(1.0)
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert loop.stats.troubles == {}
