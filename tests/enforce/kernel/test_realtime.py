"""Real-time priorities on real threads, in a group whose budget leaves the rest of the machine its share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.enforce import Enforcer
from treadle.enforce.kernel import Budget, Cgroups, GroupKnob, RealtimeKnob, facts, make, thread_ref
from treadle.enforce.recovery.new_threads import NewThreadReset
from treadle.enforce.recovery.releasable import Releasable
from treadle.errors import ConfigError, EngineError
from treadle.linux.sched import Attributes, get_attributes, set_attributes
from treadle.model import ThreadRef, Topology
from treadle.testing import check_knob

pytestmark = pytest.mark.usefixtures("root")
FLAG = os.SCHED_RESET_ON_FORK


@pytest.fixture(autouse=True)
def _sends_all_threads_home(threads: tuple[ThreadRef, ...]) -> Iterator[None]:
    yield
    knob = RealtimeKnob()
    knob.close()
    if knob.budget is not None:
        groups = knob.budget.cgroups
        assert all(groups.of(thread) == groups.place(thread) for thread in threads)


@pytest.fixture
def apart(budget: Budget) -> Iterator[Cgroups]:
    """A group with a budget of its own, so that nobody else's groups are in what it has."""
    top = Cgroups(f"treadle-test-{uuid.uuid4().hex[:8]}")
    top.make(top.base)
    try:
        top.write(top.base, "cpu.rt_runtime_us", "30000")
        yield Cgroups(parent=top.base)
    finally:
        top.write(top.base, "cpu.rt_runtime_us", "0")
        assert top.clean() == []


@pytest.fixture
def budget() -> Budget:
    found = RealtimeKnob().budget
    if found is None:
        pytest.skip("this kernel has no real-time budgets per group")
    return found


@pytest.mark.parametrize("fifo", [False, True])
def test_rt_passes_the_checks_for_knobs(threads: tuple[ThreadRef, ...], fifo: bool) -> None:
    check_knob(lambda: RealtimeKnob(fifo=fifo), threads, [1.0, 99.0, 101.0, 199.0, -1.0, -2.0, 0.0, 50.5, 0.5])


def test_the_numbers_mean_the_kernels_policies(threads: tuple[ThreadRef, ...]) -> None:
    tid, knob = threads[0].tid, RealtimeKnob()
    for value, policy, priority in [
        (7.0, os.SCHED_RR, 7),
        (150.0, os.SCHED_FIFO, 50),
        (-1.0, os.SCHED_BATCH, 0),
        (-2.0, os.SCHED_IDLE, 0),
        (0.0, os.SCHED_OTHER, 0),
    ]:
        knob.write(threads[0], value)
        assert os.sched_getscheduler(tid) & ~FLAG == policy
        assert os.sched_getparam(tid).sched_priority == priority


def test_fifo_takes_the_same_numbers(threads: tuple[ThreadRef, ...]) -> None:
    knob = RealtimeKnob(fifo=True)
    knob.write(threads[0], 7.0)
    assert os.sched_getscheduler(threads[0].tid) & ~FLAG == os.SCHED_FIFO
    assert RealtimeKnob().read(threads[0]) == 107.0
    knob.write(threads[0], 0.0)


@pytest.mark.parametrize("value", [100.0, 200.0, -3.0, 1.25, float("nan"), "first"])
def test_numbers_without_a_meaning_are_refused(threads: tuple[ThreadRef, ...], value: float | str) -> None:
    with pytest.raises(ConfigError, match="knob 'rt'"):
        RealtimeKnob().write(threads[0], value)


def test_threads_that_a_real_time_one_starts_are_ordinary_unless_they_inherit(threads: tuple[ThreadRef, ...]) -> None:
    for inherit in (False, True):
        knob = RealtimeKnob(inherit=inherit)
        knob.write(threads[0], 5.0)
        assert bool(os.sched_getscheduler(threads[0].tid) & FLAG) is not inherit
        knob.write(threads[0], 0.0)
        assert os.sched_getscheduler(threads[0].tid) == os.SCHED_OTHER


def test_a_deadline_thread_is_left_alone(threads: tuple[ThreadRef, ...]) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        deadline = Attributes(policy=6, runtime=1_000_000, deadline=10_000_000, period=10_000_000)
        try:
            set_attributes(process.pid, deadline)
        except OSError as error:
            pytest.skip(f"this kernel does not let a thread be SCHED_DEADLINE: {error}")
        ref = thread_ref(process.pid, process.pid)
        for act in (lambda: RealtimeKnob().read(ref), lambda: RealtimeKnob().write(ref, 1.0)):
            with pytest.raises(EngineError, match="policy 6"):
                act()
        assert get_attributes(process.pid).policy == 6
    finally:
        process.kill()
        process.communicate()


@settings(max_examples=30)
@given(data=st.data(), fifo=st.booleans())
def test_restore_puts_back_all_that_it_found(threads: tuple[ThreadRef, ...], data: st.DataObject, fifo: bool) -> None:
    for thread in threads:
        policy = data.draw(st.sampled_from([os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE]))
        flags, nice = data.draw(st.integers(0, 1)), data.draw(st.integers(-20, 19))
        runtime = data.draw(st.sampled_from([0, 20_000_000]))
        set_attributes(thread.tid, Attributes(policy=policy, flags=flags, nice=nice, runtime=runtime))
    groups = Cgroups()
    found = [(_all_of(thread), groups.place(thread)) for thread in threads]
    enforcer = Enforcer(RealtimeKnob(fifo=fifo))
    values = st.one_of(st.integers(-2, 99), st.integers(101, 199))
    for wanted in data.draw(st.lists(st.lists(values, min_size=3, max_size=3), max_size=4)):
        assert not enforcer.apply(enforcer.diff(threads, np.array(wanted, dtype=np.float64))).failures
    assert not enforcer.restore().failures
    assert [(_all_of(thread), groups.place(thread)) for thread in threads] == found


def test_a_real_time_thread_runs_before_an_ordinary_one(
    burners: tuple[ThreadRef, ...], spend: Callable[..., list[float]]
) -> None:
    knob = RealtimeKnob()
    knob.write(burners[0], 10.0)
    high, low = spend(burners, 0.3)
    knob.write(burners[0], 0.0)
    assert high > 3 * low


def test_the_budget_is_a_limit_that_leaves_the_rest_its_share(
    burners: tuple[ThreadRef, ...], apart: Cgroups, spend: Callable[..., list[float]]
) -> None:
    knob = RealtimeKnob(cgroups=apart)
    knob.write(burners[0], 10.0)
    began = time.monotonic()
    spent = spend(burners[:1], 0.02)[0]
    part = spent / (time.monotonic() - began)
    knob.write(burners[0], 0.0)
    knob.close()
    assert part < 0.2


def test_a_thread_is_in_its_budget_while_it_is_real_time_and_then_at_home(
    threads: tuple[ThreadRef, ...], budget: Budget
) -> None:
    knob, groups = RealtimeKnob(), budget.cgroups
    home = groups.place(threads[0])
    knob.write(threads[0], 5.0)
    group = groups.place(threads[0])
    assert group.startswith(groups.realtime)
    assert groups.of(threads[0]) == home
    assert 0 < int(groups.read(group, "cpu.rt_runtime_us")) <= 0.9 * int(groups.read(group, "cpu.rt_period_us"))
    knob.write(threads[0], -1.0)
    assert groups.place(threads[0]) == home
    knob.write(threads[0], 0.0)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_thread_that_a_real_time_one_has_started_is_ordinary_and_goes_home(budget: Budget, at_once: bool) -> None:
    knob, heard, tids = RealtimeKnob(), threading.Semaphore(0), list[int]()
    bear, end = threading.Event(), threading.Event()

    def live() -> None:
        tids.append(threading.get_native_id())
        heard.release()
        if len(tids) == 1:
            bear.wait()
            threading.Thread(target=live, daemon=True).start()
        end.wait()

    threading.Thread(target=live, daemon=True).start()
    heard.acquire()
    parent = thread_ref(tids[0])
    home = budget.cgroups.place(parent)
    heirs = NewThreadReset([Releasable(knob)], [os.getpid()])
    knob.write(parent, 5.0)
    bear.set()
    heard.acquire()
    child = thread_ref(tids[1])
    assert os.sched_getscheduler(child.tid) == os.SCHED_OTHER
    assert budget.cgroups.place(child) == budget.cgroups.place(parent) != home
    if at_once:
        heirs.settle(Topology((), ()))
    else:
        knob.close()
    assert budget.cgroups.place(child) == home != budget.cgroups.place(parent)
    knob.write(parent, 0.0)
    end.set()


def test_homes_divide_the_budget_and_give_it_back(
    threads: tuple[ThreadRef, ...], apart: Cgroups, cgroups: Cgroups
) -> None:
    member, knob = GroupKnob(cgroups), RealtimeKnob(cgroups=apart)
    homes = [member.read(thread) for thread in threads]
    for number, thread in enumerate(threads):
        member.write(thread, f"home {number}")
        knob.write(thread, 5.0)
    parts = [int(apart.read(group, "cpu.rt_runtime_us")) for group in apart.children(apart.realtime)]
    assert parts == [1000, 1000, 1000]
    for thread, home in zip(threads, homes, strict=True):
        knob.write(thread, 0.0)
        member.write(thread, home)
    knob.close()
    assert apart.children(apart.parent) == []


def test_what_a_home_had_that_is_gone_goes_to_those_that_remain(
    threads: tuple[ThreadRef, ...], apart: Cgroups, cgroups: Cgroups
) -> None:
    member, stays, passes = GroupKnob(cgroups), RealtimeKnob(cgroups=apart), RealtimeKnob(cgroups=apart)
    homes = [member.read(thread) for thread in threads]
    for number, thread in enumerate(threads):
        member.write(thread, f"home {number}")
    stays.write(threads[0], 5.0)
    stays.write(threads[1], 5.0)
    (before, same) = (int(apart.read(group, "cpu.rt_runtime_us")) for group in apart.children(apart.realtime))
    passes.write(threads[2], 5.0)
    assert int(apart.read(apart.place(threads[0]), "cpu.rt_runtime_us")) < before
    passes.write(threads[2], 0.0)
    passes.close()
    after = [int(apart.read(group, "cpu.rt_runtime_us")) for group in apart.children(apart.realtime)]
    assert after == [before, same]
    for thread, home in zip(threads, homes, strict=True):
        stays.write(thread, 0.0)
        member.write(thread, home)
    stays.close()


def test_a_real_time_thread_may_change_its_group_and_be_restored_in_any_order(
    threads: tuple[ThreadRef, ...], budget: Budget, cgroups: Cgroups
) -> None:
    thread, member, knob = threads[0], GroupKnob(cgroups), RealtimeKnob()
    home = member.read(thread)
    member.write(thread, "query")
    knob.write(thread, 5.0)
    assert member.read(thread) == "query"
    member.write(thread, home)
    assert knob.read(thread) == 5.0
    knob.write(thread, 0.0)
    assert cgroups.place(thread) == home


def test_a_thread_that_was_real_time_before_stays_where_it_is(threads: tuple[ThreadRef, ...], budget: Budget) -> None:
    thread, groups = threads[0], budget.cgroups
    home = groups.place(thread)
    groups.move(thread, "/")
    os.sched_setscheduler(thread.tid, os.SCHED_RR, os.sched_param(3))
    enforcer = Enforcer(RealtimeKnob())
    for value in (9.0, 0.0, 8.0):
        assert not enforcer.apply(enforcer.diff((thread,), np.array([value]))).failures
        assert groups.place(thread) == "/"
    assert not enforcer.restore().failures
    assert os.sched_getscheduler(thread.tid) == os.SCHED_RR
    assert os.sched_getparam(thread.tid).sched_priority == 3
    os.sched_setscheduler(thread.tid, os.SCHED_OTHER, os.sched_param(0))
    groups.move(thread, home)


def test_without_a_budget_there_is_one_clear_error_and_nothing_is_changed(
    threads: tuple[ThreadRef, ...], apart: Cgroups
) -> None:
    """In a group of which another one has it all."""
    other = f"{apart.parent}/other"
    apart.make(other)
    apart.write(other, "cpu.rt_runtime_us", "30000")
    knob, home = RealtimeKnob(cgroups=apart), apart.place(threads[0])
    with pytest.raises(EngineError, match=r"no budget left for real-time threads.*cpu\.rt_runtime_us"):
        knob.write(threads[0], 5.0)
    assert apart.children(apart.parent) == [other]
    assert apart.place(threads[0]) == home
    assert knob.read(threads[0]) == 0.0
    apart.write(other, "cpu.rt_runtime_us", "0")


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after `sysctl kernel.sched_rt_runtime_us=-1`."""
    (tmp_path / "limit").write_text("-1\n")
    monkeypatch.setattr("treadle.enforce.kernel.budget.LIMIT", str(tmp_path / "limit"))


@pytest.mark.usefixtures("unlimited")
def test_without_any_limit_no_thread_is_made_real_time(threads: tuple[ThreadRef, ...]) -> None:
    before = _all_of(threads[0])
    with pytest.raises(EngineError, match=r"nothing limits real-time threads.*write 950000"):
        RealtimeKnob().write(threads[0], 5.0)
    assert _all_of(threads[0]) == before
    (fact,) = facts(["real-time"])
    assert not fact.works
    assert "write 950000" in fact.remedy


def test_a_limit_that_was_taken_away_does_not_keep_a_thread_from_being_put_back(
    threads: tuple[ThreadRef, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, knob = _all_of(threads[0]), RealtimeKnob()
    knob.write(threads[0], 5.0)
    (tmp_path / "limit").write_text("-1\n")
    monkeypatch.setattr("treadle.enforce.kernel.budget.LIMIT", str(tmp_path / "limit"))
    knob.write(threads[0], 0.0)
    assert _all_of(threads[0]) == before


KILLED = """
import json, os, signal, sys
from treadle.enforce.kernel import make, thread_ref
tid, pid, moment = (int(text) for text in sys.argv[1:])
thread, knob = thread_ref(tid, pid), make("rt")
found = knob.read(thread)
print(json.dumps([found, dict(knob.options)]), flush=True)
def die(*arguments): os.kill(os.getpid(), signal.SIGKILL)
if moment == 0: knob._set = die
knob.write(thread, 9.0)
if moment == 1 and knob.budget is not None: knob.budget.dismiss = die
if moment < 2: knob.write(thread, 0.0)
die()
"""


@pytest.mark.parametrize("moment", [0, 1, 2])
def test_another_process_can_put_a_thread_home_after_a_kill_at_any_moment(
    threads: tuple[ThreadRef, ...], moment: int
) -> None:
    thread, groups = threads[0], Cgroups()
    before = _all_of(thread), groups.place(thread)
    command = [sys.executable, "-c", KILLED, str(thread.tid), str(thread.pid), str(moment)]
    killed = subprocess.run(command, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found, options = json.loads(killed.stdout)
    knob = make("rt", **options)
    if knob.read(thread) != found:
        knob.write(thread, found)
    assert isinstance(knob, RealtimeKnob)
    knob.close()
    assert (_all_of(thread), groups.place(thread)) == before


def _all_of(thread: ThreadRef) -> tuple[int, ...]:
    seen = get_attributes(thread.tid)
    return seen.policy, seen.flags, seen.nice, seen.priority, seen.runtime
