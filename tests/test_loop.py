"""The loop on a clock that only the test moves, with real policies and metrics, and engines that live in memory."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from treadle.decide.policies import CongestionAware, QueueSize, UserPriority
from treadle.decide.policy import Policy
from treadle.decide.transform import nice as nice_scale
from treadle.enforce import Knob, Per, Target, Value
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.loop import Binding, Engine, Loop
from treadle.loop import signals as loop_signals
from treadle.model import Instance, Operator, Query, Role, ThreadRef, Topology
from treadle.values import Groups, Sample, Schedule, Snapshot

FOUND = 3.0
"""The nice that every thread has before the loop starts."""


class TestClock:
    """A stand-in for time. To sleep is to be there at once; `meanwhile` sees each sleep."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 100.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        self.meanwhile()


class MemoryKnob:
    """A stand-in for a setting of the system, in memory."""

    def __init__(self, name: str, per: Per, values: dict[Target, Value], *, grows: bool = False) -> None:
        self.name = name
        self.per = per
        self.values = values
        self.writes: list[tuple[Target, Value]] = []
        self.refuses = False
        self._grows = grows

    def read(self, target: Target) -> Value:
        if target not in self.values and not self._grows:
            raise TargetGone(f"{target} has ended")
        return self.values.setdefault(target, 1024.0)

    def write(self, target: Target, value: Value) -> None:
        if self.refuses:
            raise OSError("not permitted")
        self.writes.append((target, value))
        self.values[target] = value


class MemoryEngine:
    """A stand-in for an engine, in memory: one query `q`, an operator and a main thread for each queue it is given."""

    in_process = True

    def __init__(self, name: str, queue: list[float], *, helpers: bool = False) -> None:
        self.name = name
        self.offers = frozenset({"queue", "output_queue"} if helpers else {"queue"})
        self.columns = {"queue": np.array(queue), "output_queue": np.zeros(len(queue))}
        self.fails: Exception | None = None
        self.asked = 0
        self.now: Callable[[], float] = lambda: float(self.asked)
        self.version = 0
        self.helpers = helpers
        self.run([f"o{i}" for i in range(len(queue))])
        threads = self.topology().threads
        self.nice = MemoryKnob("nice", "thread", dict.fromkeys(threads, FOUND))
        self.rank = MemoryKnob("rank", "instance", dict.fromkeys(self.topology().ids, 0.0))
        self.group = MemoryKnob("group", "thread", dict.fromkeys(threads, "root"))
        self.shares = MemoryKnob("shares", "group", {}, grows=True)
        self._knobs: Mapping[str, Knob] = {k.name: k for k in (self.nice, self.rank, self.group, self.shares)}

    def run(self, operators: list[str], query: str = "q") -> None:
        """From now on the engine runs these operators, one after another."""
        chain = tuple(Operator(op, tuple(operators[i - 1 : i])) for i, op in enumerate(operators))
        instances = []
        for op in operators:
            number = int(op.removeprefix("o")) + 1
            threads = [ThreadRef(number)]
            if self.helpers:
                threads.append(ThreadRef(100 + number, role=Role.HELPER))
            instances.append(Instance(query, (op,), 0, self.name, tuple(threads)))
        self.version += 1
        self._topology = Topology((Query(query, chain),), tuple(instances), self.version)

    def split(self, first: str, second: str) -> None:
        """From now on the last operator is a query of its own."""
        *rest, last = self._topology.instances
        chain, alone = self._topology.queries[0].operators[:-1], Operator(last.operators[0])
        instances = [*(replace(i, query=first) for i in rest), replace(last, query=second)]
        self._topology = Topology((Query(first, chain), Query(second, (alone,))), tuple(instances), self.version + 1)

    def topology(self) -> Topology:
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        self.asked += 1
        if self.fails:
            raise self.fails
        return Sample(self.now(), {name: self.columns[name].copy() for name in wanted})

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    def nices(self) -> list[Value]:
        return [self.nice.values[thread] for thread in self.topology().threads]


class ByQueue(QueueSize):
    """Queue size, which also notes when it was asked."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.asked.append(snapshot.time)
        return super().decide(snapshot)


class NeedsCost(Policy):
    """Cost, which also notes that of the first operator."""

    name: ClassVar[str] = "needs-cost"
    needs = ("cost",)

    def __init__(self) -> None:
        self.seen: list[float] = []

    def decide(self, snapshot: Snapshot) -> Schedule:
        self.seen.append(float(snapshot["cost"][0]))
        return Schedule(snapshot["cost"])


class Reversed(QueueSize):
    """The shortest queue first."""

    name: ClassVar[str] = "reversed"

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(-snapshot["queue"])


class Failing(QueueSize):
    """Never decides."""

    name: ClassVar[str] = "failing"

    def decide(self, snapshot: Snapshot) -> Schedule:
        raise RuntimeError("broken")


@dataclass
class World:
    clock: TestClock
    engine: MemoryEngine
    policy: ByQueue

    def loop(self, *bindings: Binding, **options: Any) -> Loop:
        return Loop([self.engine], bindings or [Binding(self.policy, "nice", 1.0)], clock=self.clock, **options)


@pytest.fixture
def world() -> World:
    return make_world()


def make_world() -> World:
    world = World(TestClock(), MemoryEngine("mem", [0.0, 50.0, 100.0]), ByQueue())
    world.engine.now = world.clock.now
    return world


ENDING = [n for n in loop_signals.ENDING if signal.getsignal(n) != signal.SIG_IGN and n != signal.SIGABRT]
"""Not what Python ignores; SIGABRT is pytest's own here, through faulthandler."""


def costs_seen(world: World, costs: list[float], **options: Any) -> list[float]:
    """The costs that a policy sees, second by second, where the engine measures these."""
    policy, world.engine.offers = NeedsCost(), frozenset({"cost"})
    loop = world.loop(Binding(policy, "nice", 1.0), **options)
    for cost in costs:
        world.engine.columns["cost"] = np.full(3, cost)
        loop.run(1.0)
    return policy.seen


def note_threads(engine: MemoryEngine) -> list[threading.Thread]:
    """From now on the threads in which the engine is asked."""
    threads: list[threading.Thread] = []
    sample = engine.sample

    def noting(wanted: frozenset[str]) -> Sample:
        threads.append(threading.current_thread())
        return sample(wanted)

    engine.sample = noting  # type: ignore[method-assign]
    return threads


@contextlib.contextmanager
def handling(number: int, do: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """A program's own handler, which goes on; the signals that it was called for."""
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        do()

    before = signal.signal(number, handle)
    try:
        yield handled
    finally:
        assert signal.getsignal(number) is handle
        signal.signal(number, before)


def run_and_signal(number: int) -> None:
    """What the test of a real program runs: it is sent a signal, and at its end tells the values that are there."""
    world = make_world()
    world.clock.meanwhile = lambda: os.kill(os.getpid(), number)
    atexit.register(lambda: sys.stdout.write(f"{world.engine.nices()}\n"))
    with world.loop() as loop:
        loop.run()


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
        assert loop.stats.last_ms > 0
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
        assert "is there twice" in loop.stats.troubles["policy 'queue-size'"]
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
        loop.round()
        assert (good.nices(), bad.nices()) == ([19.0, -20.0], [6.0, 19.0])

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
        thread.join()

    def test_that_thread_ends_also_with_a_loop_that_was_never_left(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.engine.in_process = False
        world.loop().round()
        gc.collect()
        threads[0].join()

    def test_an_engine_in_process_is_asked_without_a_thread(self, world: World) -> None:
        threads = note_threads(world.engine)
        world.loop().run(2.0)
        assert threads == [threading.current_thread()] * 2

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
        assert "decided 2 rows, 3 helpers and 3 members of 3" in loop.stats.troubles["policy 'queue-size'"]

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


class TestUnknown:
    def test_an_unknown_row_keeps_its_last_decision_and_then_ages_out(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        for _ in range(3):
            world.clock.time += 1
            loop.round()
            assert world.engine.nices() == [19.0, 0.0, -20.0]
        world.clock.time += 1
        (batch,) = loop.round()
        assert world.engine.nices() == [19.0, FOUND, -20.0]
        (decision,) = batch
        assert decision.instance == "mem:q.o1[0]"
        assert decision.reason == "unknown for more than 3 rounds, put back as it was found"

    def test_what_is_known_again_is_set_again(self, world: World) -> None:
        loop = world.loop(stale_after=1)
        loop.round()
        for value in (np.nan, np.nan, 50.0):
            world.engine.columns["queue"][1] = value
            world.clock.time += 1
            loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]

    def test_a_stale_value_that_cannot_be_put_back_is_tried_again(self, world: World) -> None:
        loop = world.loop(stale_after=1)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        world.engine.nice.refuses = True
        for _ in range(3):
            world.clock.time += 1
            loop.round()
        world.engine.nice.refuses = False
        world.clock.time += 1
        loop.round()
        assert world.engine.nices() == [19.0, FOUND, -20.0]

    def test_a_change_of_the_topology_makes_nothing_younger(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        loop.run(3.0)
        world.engine.run(["o1", "o0"])
        world.engine.columns["queue"] = np.array([np.nan, 5.0])
        loop.run(2.0)
        assert world.engine.nice.values[ThreadRef(2)] == FOUND

    def test_an_engine_that_stays_away_ages_out_as_a_whole(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.fails = OSError("down")
        loop.run(5.0)
        assert world.engine.nices() == [FOUND] * 3


class TestTargets:
    def test_helpers_follow_their_main_where_the_policy_says_nothing_else(self) -> None:
        engine = MemoryEngine("mem", [0.0, 100.0], helpers=True)
        Loop([engine], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()).round()
        assert engine.nices() == [19.0, 19.0, -20.0, -20.0]

    def test_helpers_have_their_own_priority_where_the_policy_gives_one(self) -> None:
        engine = MemoryEngine("mem", [0.0, 100.0], helpers=True)
        engine.columns["output_queue"][:] = 100.0, 0.0
        Loop([engine], [Binding(CongestionAware(), "nice", 1.0)], clock=TestClock()).round()
        assert engine.nices() == [19.0, -20.0, -20.0, 19.0]

    def test_a_thread_of_several_instances_has_the_highest_of_their_priorities(self, world: World) -> None:
        topology = world.engine.topology()
        shared = tuple(replace(i, threads=(ThreadRef(1 + row // 2),)) for row, i in enumerate(topology.instances))
        world.engine._topology = replace(topology, instances=shared)
        world.engine.columns["queue"][:] = 50.0, 10.0, 0.0
        world.loop().round()
        assert world.engine.nice.writes == [(ThreadRef(1), -20.0), (ThreadRef(2), 19.0)]

    def test_instances_are_called_as_their_engine_calls_them(self) -> None:
        engines = [MemoryEngine(name, [1.0, 2.0]) for name in ("one", "two")]
        Loop(engines, [Binding(QueueSize(), "rank", 1.0)], clock=TestClock()).round()
        assert engines[1].rank.values == {"two:q.o0[0]": 0.0, "two:q.o1[0]": 1.0}

    def test_two_engines_are_put_on_one_scale(self) -> None:
        calm, busy = MemoryEngine("calm", [0.0, 10.0]), MemoryEngine("busy", [90.0, 100.0])
        Loop([calm, busy], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()).round()
        assert calm.nices() == [19.0, 15.0]
        assert busy.nices() == [-16.0, -20.0]

    def test_nobody_changes_places_when_the_threads_of_one_are_gone_for_a_while(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        topology = world.engine.topology()
        first, *rest = topology.instances
        world.engine._topology = replace(topology, instances=(replace(first, threads=()), *rest), version=2)
        loop.round(force=True)
        assert world.engine.nices() == [0.0, -20.0]

    def test_an_engine_that_is_added_later_shares_the_scale(self) -> None:
        calm, busy = MemoryEngine("calm", [0.0, 10.0]), MemoryEngine("busy", [90.0, 100.0])
        loop = Loop([calm], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock())
        loop.round()
        assert (calm.nices(), busy.nices()) == ([19.0, -20.0], [FOUND] * 2)
        loop.add(busy)
        loop.round(force=True)
        assert (calm.nices(), busy.nices()) == ([19.0, 15.0], [-16.0, -20.0])
        loop.restore()
        assert (calm.nices(), busy.nices()) == ([FOUND] * 2, [FOUND] * 2)
        with pytest.raises(ConfigError, match="two engines are named 'busy'"):
            loop.add(MemoryEngine("busy", [0.0]))

    def test_a_binding_can_have_a_scale_of_its_own(self, world: World) -> None:
        world.loop(Binding(world.policy, "nice", 1.0, scale=nice_scale(low=0))).round()
        assert world.engine.nices() == [19.0, 10.0, 0.0]

    def test_a_binding_is_for_its_queries_only_and_the_first_that_fits_has_them(self) -> None:
        engines = [MemoryEngine(name, [0.0, 10.0]) for name in ("one", "two", "three")]
        engines[2].run(["o0", "o1"], "other")
        bindings = [
            Binding(QueueSize(), "nice", 1.0, queries=("two/*", "othe?")),
            Binding(QueueSize(), "nice", 1.0, scale=nice_scale(0, 5), queries=("q",)),
        ]
        loop = Loop(engines, bindings, clock=TestClock())
        loop.round()
        assert [engine.nices() for engine in engines] == [[5.0, 0.0], [19.0, -20.0], [19.0, -20.0]]
        loop.restore()
        assert [engine.nices() for engine in engines] == [[FOUND] * 2] * 3

    def test_only_engines_that_can_be_meant_must_have_the_metrics(self) -> None:
        able, unable = MemoryEngine("able", [0.0, 1.0]), MemoryEngine("unable", [0.0, 1.0])
        unable.offers = frozenset()
        Loop([able, unable], [Binding(QueueSize(), "nice", 1.0, queries=("able/*",))], clock=TestClock()).round()
        assert (able.nices(), unable.nices()) == ([19.0, -20.0], [FOUND] * 2)


class TestGroups:
    def test_members_are_put_into_groups_before_the_groups_get_their_shares(self) -> None:
        one, two = MemoryEngine("one", [0.0, 100.0]), MemoryEngine("two", [50.0, 25.0])
        writes: list[tuple[Target, Value]] = []
        one.group.writes = one.shares.writes = writes
        loop = Loop([one, two], [Binding(QueueSize(), "shares", 1.0, grouping="query")], clock=TestClock())
        loop.round()
        assert set(one.group.values.values()) == {"one/q"}
        assert set(two.group.values.values()) == {"two/q"}
        assert one.shares.values["one/q"] == pytest.approx(2 * float(two.shares.values["two/q"]), rel=0.01)
        assert "two/q" not in one.shares.values
        assert [target for target, _ in writes] == [ThreadRef(1), ThreadRef(2), "one/q"]
        loop.restore()
        assert set(one.group.values.values()) == {"root"}
        assert one.shares.values == {"one/q": 1024.0}
        assert [target for target, _ in writes[3:]] == ["one/q", ThreadRef(1), ThreadRef(2)]

    def test_groups_of_the_policy_itself_are_taken(self, world: World) -> None:
        class Pair(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                groups = Groups(("low", "high"), np.array([0, -1, 1]), np.array([1.0, 4.0]))
                return Schedule(snapshot["queue"], groups=groups)

        world.loop(Binding(Pair(), "shares", 1.0)).round()
        assert list(world.engine.group.values.values()) == ["low", "root", "high"]
        assert world.engine.shares.values == {"low": 512.0, "high": 2048.0}

    def test_a_group_that_is_not_named_any_more_keeps_its_shares_and_ages_out(self, world: World) -> None:
        loop = world.loop(Binding(world.policy, "shares", 1.0, grouping="kmeans"), stale_after=2)
        world.engine.columns["queue"][:] = 1.0, 2.0, 4.0
        loop.round()
        shares = dict(world.engine.shares.values)
        assert set(shares) == {"cluster-0", "cluster-1", "cluster-2"}
        world.engine.fails = OSError("down")
        loop.run(2.0)
        assert world.engine.shares.values == shares
        loop.run(2.0)
        assert set(world.engine.shares.values.values()) == {1024.0}
        assert set(world.engine.group.values.values()) == {"root"}
        assert {d.instance for d in loop.decisions.batches[-1]} == {""}

    def test_groups_of_two_bindings_of_one_knob_are_kept_apart(self) -> None:
        one, two = MemoryEngine("one", [0.0, 100.0]), MemoryEngine("two", [50.0, 25.0])
        bindings = [Binding(QueueSize(), "shares", 1.0, grouping="one", queries=(f"{e}/*",)) for e in ("one", "two")]
        Loop([one, two], bindings, clock=TestClock()).round()
        assert set(one.shares.values) == {"all"}
        assert set(two.shares.values) == {"all-2"}

    def test_what_is_another_bindings_does_not_grow_stale(self, world: World) -> None:
        world.engine.split("left", "right")
        world.engine.shares.values.update({"all": 10.0, "all-2": 10.0})
        loop = world.loop(
            Binding(QueueSize(), "shares", 1.0, grouping="one", queries=("left",)),
            Binding(QueueSize(), "shares", 1.0, grouping="one", queries=("right",)),
            Binding(QueueSize(), "nice", 1.0, queries=("left",)),
            Binding(QueueSize(), "nice", 1.0, queries=("right",)),
            stale_after=2,
        )
        loop.round()
        assert FOUND not in world.engine.nices()
        knobs = (world.engine.nice, world.engine.group, world.engine.shares)
        assert [len(knob.writes) for knob in knobs] == [3, 3, 2]
        loop.run(6.0)
        assert [len(knob.writes) for knob in knobs] == [3, 3, 2]
        assert world.engine.shares.values == {"all": 1024.0, "all-2": 1024.0}
        assert list(world.engine.group.values.values()) == ["all", "all", "all-2"]


class TestTopologyChanges:
    def test_new_threads_are_set_and_those_that_left_are_put_back(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        world.engine.run(["o1", "o3"])
        world.engine.columns["queue"] = np.array([0.0, 9.0])
        world.engine.nice.values[ThreadRef(4)] = FOUND
        world.engine.nice.values.pop(ThreadRef(1))
        world.clock.time += 1
        loop.round()
        assert world.engine.nices() == [19.0, -20.0]
        assert world.engine.nice.values == {ThreadRef(2): 19.0, ThreadRef(3): FOUND, ThreadRef(4): -20.0}
        loop.restore()
        assert set(world.engine.nice.values.values()) == {FOUND}

    def test_an_engine_that_runs_nothing_is_no_problem(self, world: World) -> None:
        world.engine._topology = Topology((), (), 9)
        world.engine.columns["queue"] = np.zeros(0)
        loop = world.loop(Binding(world.policy, "nice", 1.0), Binding(ByQueue(), "shares", 1.0))
        loop.round()
        assert loop.stats.troubles == {}
        assert world.policy.asked == []


class TestRestore:
    def test_leaving_puts_back_what_was_found(self, world: World) -> None:
        with world.loop() as loop:
            loop.run(2.0)
            assert world.engine.nices() != [FOUND] * 3
        assert world.engine.nices() == [FOUND] * 3
        writes = len(world.engine.nice.writes)
        loop.restore()
        assert len(world.engine.nice.writes) == writes

    def test_what_fails_at_the_end_is_tried_once_more(self, world: World) -> None:
        write = world.engine.nice.write

        def write_later(target: Target, value: Value) -> None:
            world.engine.nice.write = write  # type: ignore[method-assign]
            raise OSError("busy")

        with world.loop() as loop:
            loop.round()
            world.engine.nice.write = write_later  # type: ignore[method-assign]
        assert world.engine.nices() == [FOUND] * 3

    def test_an_error_puts_back_what_was_found(self, world: World) -> None:
        def stumble() -> None:
            raise RuntimeError("in the middle")

        world.clock.meanwhile = stumble
        with pytest.raises(RuntimeError), world.loop() as loop:
            loop.run()
        assert world.engine.nices() == [FOUND] * 3

    def test_what_somebody_else_changed_is_left_and_told(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with world.loop() as loop:
            loop.round()
            world.engine.nice.values[ThreadRef(1)] = 7.0
        assert world.engine.nices() == [7.0, FOUND, FOUND]
        assert "is left at 7.0: somebody else has changed it since we set it to 19.0" in caplog.text

    def test_what_cannot_be_put_back_is_told(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with world.loop() as loop:
            loop.round()
            world.engine.nice.refuses = True
        assert "could not put back nice of thread 1 to 3.0: not permitted" in caplog.text
        world.engine.nice.refuses = False
        loop.restore()
        assert world.engine.nices() == [FOUND] * 3

    @pytest.mark.parametrize("number", ENDING)
    def test_a_signal_puts_back_what_was_found(self, world: World, number: int) -> None:
        before = signal.getsignal(number)
        world.clock.meanwhile = lambda: signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as error, world.loop() as loop:
            loop.run()
        assert world.engine.nices() == [FOUND] * 3
        assert signal.getsignal(number) is before
        if isinstance(error.value, SystemExit):
            assert error.value.code == 128 + number

    @pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGUSR1, signal.SIGTERM])
    def test_a_signal_to_a_program_puts_back_what_was_found(self, number: signal.Signals) -> None:
        script = f"import runpy; runpy.run_path({__file__!r})['run_and_signal']({number:d})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.stdout, done.returncode) == (f"{[FOUND] * 3}\n", 128 + number), done.stderr

    @pytest.mark.skipif(sys.platform != "linux", reason="others have other signals")
    def test_all_others_end_no_program_or_cannot_be_caught_or_are_its_own_faults(self) -> None:
        harmless = {"SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"}
        faults = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
        others = {signal.Signals(number).name for number in signal.valid_signals() - set(loop_signals.ENDING)}
        assert others == harmless | faults | {"SIGKILL", "SIGSTOP"}

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGALRM])
    def test_a_signal_that_the_program_handles_without_ending_is_left_to_it(
        self, world: World, number: signal.Signals
    ) -> None:
        with handling(number) as handled, world.loop() as loop:
            loop.round()
            decided = world.engine.nices()
            signal.raise_signal(number)
            assert (handled, world.engine.nices()) == ([number], decided)

    def test_a_handler_that_python_does_not_know_of_stays(self, world: World, tmp_path: Path) -> None:
        with (tmp_path / "stacks").open("w+") as stacks:
            faulthandler.register(signal.SIGUSR2, stacks, all_threads=False)
            try:
                with world.loop() as loop:
                    loop.round()
                    signal.raise_signal(signal.SIGUSR2)
                signal.raise_signal(signal.SIGUSR2)
            finally:
                faulthandler.unregister(signal.SIGUSR2)
            stacks.seek(0)
            assert stacks.read().count("most recent call first") == 2

    def test_the_programs_own_handler_is_called_after_all_is_put_back(self, world: World) -> None:
        seen: list[list[Value]] = []
        with handling(signal.SIGTERM, lambda: seen.append(world.engine.nices())) as handled, world.loop() as loop:
            loop.round()
            signal.raise_signal(signal.SIGTERM)
            assert (handled, seen) == ([signal.SIGTERM], [[FOUND] * 3])
            world.clock.time += 1
            loop.round()
            assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert world.engine.nices() == [FOUND] * 3

    def test_the_programs_own_handler_is_called_after_the_round(self, world: World) -> None:
        seen: list[list[Value]] = []

        class Signalled(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                signal.raise_signal(signal.SIGTERM)
                assert seen == []
                return super().decide(snapshot)

        with (
            handling(signal.SIGTERM, lambda: seen.append(world.engine.nices())),
            world.loop(Binding(Signalled(), "nice", 1.0)) as loop,
        ):
            loop.round()
            assert seen == [[FOUND] * 3]
        assert len(loop.decisions) == 3

    def test_the_programs_own_handlers_are_all_called_for_what_came_while_things_were_put_back(
        self, world: World
    ) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def write_under_fire(target: Target, value: Value) -> None:
            if value == FOUND:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
            write(target, value)

        world.engine.nice.write = write_under_fire  # type: ignore[method-assign]
        with handling(signal.SIGTERM) as terms, handling(signal.SIGHUP) as hups:
            with loop:
                loop.round()
            assert (terms, hups) == ([signal.SIGTERM], [signal.SIGHUP])
        assert world.engine.nices() == [FOUND] * 3

    def test_two_loops_both_put_back_what_they_found(self) -> None:
        engines = [MemoryEngine(name, [0.0, 1.0]) for name in ("one", "two")]
        one, two = (Loop([engine], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()) for engine in engines)
        with one, two:
            one.round()
            two.round()
            with contextlib.suppress(SystemExit):
                signal.raise_signal(signal.SIGUSR1)
            assert [engine.nices() for engine in engines] == [[FOUND] * 2] * 2
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL

    def test_a_handler_set_in_the_meantime_stays(self, world: World) -> None:
        try:
            with world.loop():
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def test_a_signal_while_things_are_put_back_does_not_keep_it_from_the_second_try(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def fail_under_fire(target: Target, value: Value) -> None:
            world.engine.nice.write = write  # type: ignore[method-assign]
            signal.raise_signal(signal.SIGINT)
            raise OSError("busy")

        loop.round()
        world.engine.nice.write = fail_under_fire  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt), loop:
            pass
        assert world.engine.nices() == [FOUND] * 3
        assert "could not put back nice of thread 1 to 3.0: busy" in caplog.text

    def test_a_signal_puts_back_what_was_found_even_if_its_exception_gets_lost(self, world: World) -> None:
        with world.loop() as loop:
            loop.round()
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert world.engine.nices() == [FOUND] * 3

    def test_a_signal_waits_for_the_end_of_the_round(self, world: World) -> None:
        class Signalled(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                signal.raise_signal(signal.SIGINT)
                return super().decide(snapshot)

        with pytest.raises(KeyboardInterrupt), world.loop(Binding(Signalled(), "nice", 1.0)) as loop:
            loop.run()
        assert len(loop.decisions) == 3
        assert world.engine.nices() == [FOUND] * 3

    def test_a_second_signal_breaks_a_round_that_hangs(self, world: World) -> None:
        reached = []

        class Hanging(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                for step in range(3):
                    reached.append(step)
                    signal.raise_signal(signal.SIGTERM)
                return super().decide(snapshot)

        with pytest.raises(SystemExit), world.loop(Binding(Hanging(), "nice", 1.0)) as loop:
            loop.run()
        assert reached == [0, 1]
        assert world.engine.nices() == [FOUND] * 3

    def test_signals_wait_while_things_are_put_back(self, world: World) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def write_under_fire(target: Target, value: Value) -> None:
            if value == FOUND:
                signal.raise_signal(signal.SIGTERM)
            write(target, value)

        world.engine.nice.write = write_under_fire  # type: ignore[method-assign]
        with pytest.raises(SystemExit), loop:
            loop.round()
        assert world.engine.nices() == [FOUND] * 3

    def test_a_signal_that_is_ignored_stays_ignored(self, world: World) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            world.clock.meanwhile = lambda: signal.raise_signal(signal.SIGHUP)
            with world.loop() as loop:
                loop.run(2.0)
            assert loop.stats.rounds == 2
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_handlers_are_for_the_main_thread_only(self, world: World) -> None:
        before, inside = signal.getsignal(signal.SIGTERM), []

        def work() -> None:
            with world.loop() as loop:
                loop.run(2.0)
                inside.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert inside == [before]
        assert world.engine.nices() == [FOUND] * 3


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
        with pytest.raises(EngineError, match=r"metric 'cost' was not asked for.*Loop\(metrics="):
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


class TestRecords:
    def test_a_decision_says_what_from_to_why_and_on_which_metrics(self, world: World) -> None:
        (batch,) = world.loop().round()
        decision = list(batch)[1]
        assert (decision.target, decision.instance) == (ThreadRef(2), "mem:q.o1[0]")
        assert (decision.knob, decision.before, decision.after) == ("nice", FOUND, 0.0)
        assert (decision.policy, decision.engine, decision.time) == ("queue-size", "mem", 100.0)
        assert (decision.priority, decision.metrics) == (50.0, {"queue": 50.0})
        assert decision.reason.startswith("longest queue first")
        assert str(decision).startswith("nice of thread 2 of mem:q.o1[0]: 3.0 -> 0.0, queue-size: longest queue first")
        assert str(decision).endswith("priority 50 (queue 50)")

    def test_a_groups_decision_names_its_most_urgent_member(self, world: World) -> None:
        world.engine.columns["queue"][:] = 50.0, 100.0, 0.0
        world.engine.shares.values["q"] = 10.0
        *_, batch = world.loop(Binding(world.policy, "shares", 1.0, grouping="query")).round()
        (decision,) = batch
        assert (decision.target, decision.instance, decision.metrics) == ("q", "mem:q.o1[0]", {"queue": 100.0})
        assert str(decision).startswith("shares of q: 10.0 -> 1024.0, queue-size: ")

    def test_one_line_is_logged_for_a_round_with_changes(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "treadle.loop")
        loop = world.loop()
        loop.run(3.0)
        (record,) = caplog.records
        assert record.getMessage().startswith("changed 3: 3 nice of mem by queue-size (longest queue first")
        assert (record.__dict__["changes"], record.__dict__["failures"]) == (3, 0)

    def test_every_decision_is_a_line_at_debug(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "treadle.loop")
        world.loop().round()
        assert [r.__dict__["decision"].instance for r in caplog.records if r.levelno == logging.DEBUG] == list(
            world.engine.topology().ids
        )

    def test_only_the_latest_are_remembered(self, world: World) -> None:
        loop = world.loop(log_size=6)
        for second in range(5):
            world.engine.columns["queue"] = world.engine.columns["queue"][::-1].copy()
            world.clock.time = 100.0 + second
            loop.round()
        assert len(loop.decisions) <= 6
        assert [d.time for d in loop.decisions][-1] == 104.0
        assert len(list(loop.decisions)) == len(loop.decisions)

    def test_the_last_round_is_remembered_whole(self, world: World) -> None:
        loop = world.loop(log_size=1)
        loop.round()
        assert len(loop.decisions) == 3


class TestWrongSetups:
    @pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
    def test_a_period_must_be_above_zero(self, period: float) -> None:
        with pytest.raises(ConfigError, match="policy 'queue-size': its period can't be"):
            Binding(QueueSize(), "nice", period)

    def test_what_is_unknown_is_named(self) -> None:
        with pytest.raises(ConfigError, match="unknown grouping 'colour'"):
            Binding(QueueSize(), "shares", 1.0, grouping="colour")
        with pytest.raises(ConfigError, match="knob 'volume' has no scale of its own"):
            Binding(QueueSize(), "volume", 1.0)
        with pytest.raises(ConfigError, match="it is for no query"):
            Binding(QueueSize(), "nice", 1.0, queries=())

    def test_a_knob_that_no_engine_has_is_named_with_those_it_has(self, world: World) -> None:
        with pytest.raises(EngineError, match=r"no engine has a knob 'rt' \(mem has group, nice, rank, shares"):
            world.loop(Binding(world.policy, "rt", 1.0))
        with pytest.raises(EngineError, match=r"its queries flink/\* fit no engine"):
            world.loop(Binding(world.policy, "nice", 1.0, queries=("flink/*",)))

    def test_a_grouping_is_for_groups(self, world: World) -> None:
        with pytest.raises(ConfigError, match="knob 'nice' is not for groups"):
            world.loop(Binding(world.policy, "nice", 1.0, grouping="query"))

    def test_a_metric_that_cannot_be_had_is_named_before_anything_is_changed(self, world: World) -> None:
        with pytest.raises(EngineError, match="needs-cost"):
            world.loop(Binding(world.policy, "rank", 1.0), Binding(NeedsCost(), "nice", 1.0))
        assert world.engine.rank.writes == []

    def test_a_loop_needs_engines_of_different_names_and_a_policy(self, world: World) -> None:
        with pytest.raises(ConfigError, match="there is no policy to run"):
            Loop([world.engine], [])
        with pytest.raises(ConfigError, match="there is no engine to run"):
            Loop([], [Binding(world.policy, "nice", 1.0)])
        with pytest.raises(ConfigError, match="two engines are named 'mem'"):
            Loop([world.engine, world.engine], [Binding(world.policy, "nice", 1.0)])
        with pytest.raises(ConfigError, match="stale_after=0"):
            world.loop(stale_after=0)
        with pytest.raises(ConfigError, match="sample_timeout=0"):
            world.loop(sample_timeout=0)
        with pytest.raises(ConfigError, match="tau=-1"):
            world.loop(tau=-1)
