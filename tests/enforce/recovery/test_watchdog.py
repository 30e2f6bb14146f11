"""Real-time that leads nowhere is taken off: the logic on a clock of its own, and a livelock of real threads."""

from __future__ import annotations

import math
import mmap
import os
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import LONG, until
from treadle.enforce import Enforcer, Per, Target, Value, kernel
from treadle.enforce.kernel import RealtimeKnob, thread_ref
from treadle.enforce.recovery.releasable import Releasable
from treadle.enforce.recovery.watchdog import BURNT, PATIENCE, WINDOW, Watchdog
from treadle.errors import ConfigError, TargetGone
from treadle.model import ThreadRef

PERIOD = 0.05


class World:
    """A watchdog with a clock of its own, threads that use so many cores, and work that moves or doesn't."""

    def __init__(self, cores: float = 2.0) -> None:
        self.time = 100.0
        self.cpu = 0.0
        self.progress = 0.0
        self.told: list[tuple[float, str]] = []
        self.resumed: list[float] = []
        self.watchdog = Watchdog(
            lambda reason: self.told.append((self.time, reason)),
            resume=lambda: self.resumed.append(self.time),
            cores=cores,
            now=lambda: self.time,
        )

    def run(self, seconds: float, *, used: float, moves: float = 0, known: bool = True, waiting: bool = True) -> None:
        for _ in range(round(seconds / PERIOD)):
            self.time += PERIOD
            self.cpu += used * PERIOD
            self.progress += moves
            self.watchdog.feed(self.time, self.cpu, self.progress if known else math.nan, waiting=waiting)


class TestLogic:
    def test_burning_without_progress_is_let_go_once_within_two_seconds(self) -> None:
        world = World()
        world.run(5, used=1.9, moves=True)
        stuck = world.time
        world.run(5, used=1.9)
        ((when, reason),) = world.told
        assert when - stuck < 2
        assert reason == "1.9 cores used without any progress for 1.0 s"
        assert world.watchdog.off

    def test_an_answer_that_was_starved_itself_delays_nothing(self) -> None:
        world = World()
        world.run(5, used=1.9, moves=True)
        stuck = world.time
        world.run(1.5 * PATIENCE, used=1.9, waiting=False)  # as far as is known
        world.watchdog.feed(world.time + PERIOD, world.cpu, world.progress + 1, asked=stuck)
        world.progress += 1
        world.run(2 * PERIOD, used=1.9)
        assert world.told == [], "what was not known to wait was no livelock"
        world.run(0.6 * PATIENCE, used=1.9)
        world.progress += 1
        world.watchdog.feed(world.time, world.cpu, world.progress, asked=world.time - 0.5 * PATIENCE)
        world.run(0.7 * PATIENCE, used=1.9)
        assert len(world.told) == 1

    def test_it_is_seen_as_fast_after_a_long_calm_in_which_work_waited(self) -> None:
        world = World()
        world.run(30, used=0.1)
        stuck = world.time
        world.run(5, used=2.0)
        assert world.told[0][0] - stuck < 2

    def test_nothing_happens_while_it_moves_or_idles_or_nothing_waits_or_nothing_is_known(self) -> None:
        world = World()
        world.run(10, used=2.0, known=False)
        world.run(10, used=2.0, moves=True)
        world.run(10, used=0.9 * BURNT * 2)
        world.run(0.5, used=2.0, moves=True)
        world.run(10, used=2.0, waiting=False)
        assert world.told == []

    def test_a_trickle_that_a_budget_leaves_to_the_helpers_is_no_progress(self) -> None:
        world = World()
        world.run(20, used=1.9, moves=100)
        stuck = world.time
        world.run(10, used=1.9, moves=1)
        ((when, reason),) = world.told
        assert when - stuck < WINDOW + PERIOD
        assert "cores used with little progress" in reason
        assert world.watchdog.off

    def test_work_that_is_as_slow_without_real_time_is_not_its_fault(self) -> None:
        world = World()
        world.run(20, used=1.9, moves=100)
        world.run(100, used=1.9, moves=1)
        assert (len(world.told), len(world.resumed)) == (1, 1)

    def test_work_that_slows_down_slowly_or_less_is_let_be(self) -> None:
        world = World()
        for rate in np.geomspace(1000, 1, 100):
            world.run(3, used=1.9, moves=rate)
        world.run(60, used=1.9, moves=10)
        world.run(60, used=1.9, moves=2)
        world.run(60, used=0.1, moves=0.01)
        assert world.told == []

    def test_a_counter_that_cannot_be_read_any_more_does_not_move(self) -> None:
        world = World()
        world.run(5, used=1.9, moves=True)
        world.run(5, used=1.9, known=False)
        assert len(world.told) == 1

    def test_a_counter_that_begins_anew_has_moved(self) -> None:
        world = World()
        for _ in range(10):
            world.run(0.8, used=2.0)
            world.progress = -world.progress if world.progress else 5.0
        assert world.told == []

    def test_a_thread_that_joins_with_all_it_ever_used_burns_nothing(self) -> None:
        world = World()
        world.run(2, used=0.5)
        world.cpu += 10_000
        world.run(2, used=0.5)
        world.cpu -= 10_000
        world.run(2, used=0.5)
        assert world.told == []

    def test_without_real_time_threads_there_is_nothing_to_take_off(self) -> None:
        world = World()
        for _ in range(100):
            world.time += PERIOD
            world.watchdog.feed(world.time, math.nan, 1.0)
        world.watchdog.look(world.time + 100, late=100)
        assert world.told == []

    def test_it_stays_off_for_a_pause_that_doubles(self) -> None:
        world = World()
        world.run(200, used=2.0)
        released, resumed = [when for when, _ in world.told], world.resumed
        pauses = [b - a for a, b in zip(released, resumed, strict=False)]
        assert pauses == pytest.approx([10, 20, 40, 80], abs=0.1)

    def test_a_long_time_without_trouble_makes_the_pause_short_again(self) -> None:
        world = World()
        world.run(40, used=2.0)
        world.run(500, used=2.0, moves=True)
        before = len(world.resumed)
        world.run(15, used=2.0)
        assert world.resumed[before] - world.told[before][0] == pytest.approx(10, abs=0.1)

    def test_a_release_that_fails_is_tried_again(self) -> None:
        tries: list[str] = []

        def refuse(reason: str) -> None:
            tries.append(reason)
            raise OSError("not permitted")

        watchdog = Watchdog(refuse, cores=1)
        for step in range(100):
            watchdog.feed(step * PERIOD, step * PERIOD, 1.0)
        assert 2 <= len(tries) <= 5
        assert not watchdog.off

    def test_a_machine_that_does_not_answer_is_seen_by_its_thread(self) -> None:
        for silence, late in ((1.5, 0.0), (0.1, 1.5)):
            world = World()
            world.run(1, used=0.1, moves=True)
            world.watchdog.look(world.time + 0.2, late=0.0)
            assert world.told == []
            world.watchdog.look(world.time + silence, late)
            assert "does not respond" in world.told[0][1]
            world.watchdog.look(world.time + silence, late)
            assert len(world.told) == 1

    def test_a_look_at_any_moment_of_the_round_that_ends_a_pause_lets_nothing_go(self) -> None:
        class Watched(Watchdog):
            watched = False

            def __setattr__(self, name: str, value: object) -> None:
                super().__setattr__(name, value)
                if self.watched:
                    self.look(again)

        reasons: list[str] = []
        watchdog, again = Watched(reasons.append, cores=1), 100.0
        for step in range(100):
            watchdog.feed(step * PERIOD, step * PERIOD, 1.0)
        assert (len(reasons), watchdog.off) == (1, True)
        watchdog.watched = True
        watchdog.feed(again, 5.0, 2.0)  # there was no round since then: it is late
        assert (len(reasons), watchdog.off) == (1, False)

    @given(st.lists(st.tuples(st.integers(1, 15), st.floats(0, 2), st.booleans()), min_size=1, max_size=12))
    def test_it_never_lets_go_without_both_signs_and_always_with_them(
        self, stretches: list[tuple[int, float, bool]]
    ) -> None:
        world = World()
        stuck = 0.0
        for used, moves in [(used, moves) for length, used, moves in stretches for _ in range(length)]:
            told, resumed = len(world.told), len(world.resumed)
            world.run(1, used=used, moves=moves)
            if moves or world.watchdog.off or (len(world.told), len(world.resumed)) != (told, resumed):
                stuck = 0.0  # none, or it was seen, or its time is counted anew
            else:
                stuck = stuck + 1 if used > BURNT * 2 + 0.01 else -1.0
            assert stuck < 2 + PATIENCE
            for _, reason in world.told[told:]:  # that for less work than is usual looks at more than this second
                assert not moves or "little progress" in reason
        assert len(world.told) - len(world.resumed) in (0, 1)

    def test_its_thread_lets_go_when_rounds_stay_away(self) -> None:
        reasons: list[str] = []
        watchdog = Watchdog(reasons.append, cores=1)
        watchdog.start()
        watchdog.feed(time.monotonic(), 0.0, 1.0)
        until(lambda: reasons)
        watchdog.stop()
        assert len(reasons) == 1

    def test_its_thread_sends_heartbeats_until_it_is_stopped(self) -> None:
        beats: list[int] = []
        watchdog = Watchdog(lambda reason: None, cores=1, beat=lambda: beats.append(len(beats)))
        watchdog.start()
        until(lambda: len(beats) > 2)
        watchdog.stop()

    def test_what_somebody_else_has_let_go_stays_off_for_a_pause_too(self) -> None:
        reasons: list[str] = []
        resumed: list[bool] = []
        watchdog = Watchdog(reasons.append, resume=lambda: resumed.append(True), cores=1, now=lambda: 5.0)
        watchdog.let_go("the owner was stopped")
        watchdog.let_go("once more")
        watchdog.feed(14.0, 0.0, 1.0)
        assert (reasons, resumed, watchdog.off) == (["the owner was stopped"], [], True)
        watchdog.feed(15.0, 0.0, 2.0)
        assert (resumed, watchdog.off) == ([True], False)

    def test_numbers_that_make_no_sense_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"watchdog: cores=0\.0"):
            Watchdog(lambda reason: None, cores=0)


class MemoryKnob:
    """A stand-in for real-time priorities, in memory."""

    name = "rt"
    per: Per = "thread"

    def __init__(self, values: dict[Target, Value]) -> None:
        self.values = values

    def read(self, target: Target) -> Value:
        if target not in self.values:
            raise TargetGone(f"{target} has ended")
        return self.values[target]

    def write(self, target: Target, value: Value) -> None:
        self.read(target)
        self.values[target] = value


class TestLeash:
    ONE, TWO = ThreadRef(1), ThreadRef(2)

    def test_what_is_wanted_while_it_is_off_holds_when_it_is_on_again(self) -> None:
        knob = MemoryKnob({self.ONE: 0.0, self.TWO: 0.0})
        leash, targets = Releasable(knob), (self.ONE, self.TWO)
        enforcer = Enforcer(leash)
        enforcer.apply(enforcer.diff(targets, np.array([10.0, 20.0])))
        leash.release("stuck")
        assert (knob.values, leash.reason) == ({self.ONE: 0.0, self.TWO: 0.0}, "stuck")
        outcomes = enforcer.apply(enforcer.diff(targets, np.array([10.0, 30.0])))
        assert not outcomes.failures
        assert knob.values == {self.ONE: 0.0, self.TWO: 0.0}
        leash.resume()
        assert knob.values == {self.ONE: 10.0, self.TWO: 30.0}
        enforcer.restore()
        assert (knob.values, leash.targets) == ({self.ONE: 0.0, self.TWO: 0.0}, ())

    def test_all_can_be_put_back_while_it_is_off(self) -> None:
        knob = MemoryKnob({self.ONE: 0.0, self.TWO: 0.0})
        leash, targets = Releasable(knob), (self.ONE, self.TWO)
        enforcer = Enforcer(leash)
        enforcer.apply(enforcer.diff(targets, np.array([10.0, 20.0])))
        leash.release("stuck")
        del knob.values[self.TWO]
        outcomes = enforcer.restore()
        assert (outcomes.gone, outcomes.failures, outcomes.left) == ((self.TWO,), (), ())
        leash.resume()
        assert (knob.values, leash.targets) == ({self.ONE: 0.0}, ())

    def test_a_write_that_meets_a_release_of_another_thread_does_not_stay(self) -> None:
        class Meets(MemoryKnob):
            def write(self, target: Target, value: Value) -> None:
                if value == 10.0:
                    leash.release("stuck")
                super().write(target, value)

        knob = Meets({self.ONE: 0.0})
        leash = Releasable(knob)
        leash.write(self.ONE, 10.0)
        assert knob.values == {self.ONE: 0.0}
        assert leash.read(self.ONE) == 10.0

    def test_a_release_while_it_is_taken_up_again_holds_for_all(self) -> None:
        class Meets(MemoryKnob):
            again = False

            def write(self, target: Target, value: Value) -> None:
                super().write(target, value)
                if self.again and value == 10.0:
                    self.again = False
                    leash.release("stuck again")

        knob = Meets({self.ONE: 0.0, self.TWO: 0.0})
        leash = Releasable(knob)
        leash.write(self.ONE, 10.0)
        leash.write(self.TWO, 20.0)
        leash.release("stuck")
        knob.again = True
        leash.resume()
        assert knob.values == {self.ONE: 0.0, self.TWO: 0.0}


MAIN = """
import mmap, os, sys
board, mine = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 64), int(sys.argv[2])
while True:
    while not board[mine]:  # polls for what the helper brings
        pass
    board[mine] = 0
    board[8] = (board[8] + 1) % 256
"""
HELPER = """
import mmap, os, sys, time
board = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 64)
while True:
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        pass
    board[0] = board[1] = 1
"""


class Livelock:
    """Two mains that poll for what a helper brings, all on one core."""

    def __init__(self, folder: Path) -> None:
        path = folder / "board"
        path.write_bytes(bytes(64))
        with path.open("r+b") as file:
            self.board = mmap.mmap(file.fileno(), 64)
        core = max(os.sched_getaffinity(0))
        commands = [[MAIN, str(path), "0"], [MAIN, str(path), "1"], [HELPER, str(path)]]
        self.processes = [subprocess.Popen([sys.executable, "-c", *words]) for words in commands]
        for process in self.processes:
            os.sched_setaffinity(process.pid, {core})
        os.setpriority(os.PRIO_PROCESS, self.processes[2].pid, -10)
        self.mains = tuple(thread_ref(process.pid, process.pid) for process in self.processes[:2])

    @property
    def progress(self) -> float:
        return float(struct.unpack_from("B", self.board, 8)[0])

    @property
    def cpu_seconds(self) -> float:
        files = [Path(f"/proc/{main.pid}/task/{main.tid}/schedstat") for main in self.mains]
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.board.close()


@pytest.fixture
def livelock(tmp_path: Path) -> Iterator[Livelock]:
    if os.geteuid() != 0:
        pytest.skip("no right to set real-time priorities: run as root")
    made = Livelock(tmp_path)
    yield made
    made.end()


def test_a_livelock_of_real_threads_ends_within_two_seconds(livelock: Livelock) -> None:
    knob = kernel.make("rt", base=f"treadle-test-{uuid.uuid4().hex[:8]}")
    assert isinstance(knob, RealtimeKnob)
    part = knob.budget.left() if knob.budget is not None else 1.0
    if part < 0.8:
        pytest.skip(f"real-time threads may have only {part:.0%} of a core here, which starves nobody")
    leash = Releasable(knob)
    enforcer = Enforcer(leash)
    released: list[float] = []

    def release(reason: str) -> None:
        leash.release(reason)
        released.append(time.monotonic())

    before = livelock.progress
    until(lambda: livelock.progress != before)  # as ordinary threads they get on
    watchdog = Watchdog(release, cores=1, period=PERIOD)
    watchdog.start()
    try:
        outcomes = enforcer.apply(enforcer.diff(livelock.mains, np.array([50.0, 50.0])))
        if outcomes.failures:
            pytest.skip(f"no real-time priorities here: {outcomes.failures[0]}")
        begin = time.monotonic()
        while not released and time.monotonic() < begin + LONG:
            watchdog.feed(time.monotonic(), livelock.cpu_seconds, livelock.progress)
            time.sleep(PERIOD)
        assert released[0] - begin < 2.0, leash.reason
        assert [os.sched_getscheduler(main.tid) for main in livelock.mains] == [os.SCHED_OTHER] * 2
        stuck = livelock.progress
        until(lambda: livelock.progress != stuck)  # and get on again
        assert len(released) == 1
    finally:
        watchdog.stop()
        enforcer.restore()
        knob.close()
