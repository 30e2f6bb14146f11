"""Nice on real threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.enforce import Enforcer
from treadle.enforce.kernel import NiceKnob, arenas, autogroup_enabled
from treadle.errors import ConfigError
from treadle.model import ThreadRef
from treadle.testing import check_knob


@pytest.mark.usefixtures("root")
def test_nice_passes_the_checks_for_knobs(threads: tuple[ThreadRef, ...]) -> None:
    check_knob(NiceKnob, threads, [5.0, -20.0, 19.0, 0.0])


def test_nice_is_that_of_the_thread_and_not_of_its_process(threads: tuple[ThreadRef, ...]) -> None:
    NiceKnob().write(threads[0], 1.0)
    assert os.getpriority(os.PRIO_PROCESS, threads[0].tid) == 1
    assert os.getpriority(os.PRIO_PROCESS, threads[0].pid) == 0


@pytest.mark.parametrize("value", [20.0, -21.0, 1.5, float("nan"), "fast"])
def test_what_the_kernel_would_cut_is_refused(threads: tuple[ThreadRef, ...], value: float | str) -> None:
    with pytest.raises(ConfigError, match="knob 'nice'"):
        NiceKnob().write(threads[0], value)


@pytest.mark.usefixtures("root")
@settings(max_examples=30)
@given(data=st.data())
def test_restore_puts_back_the_nice_it_found(threads: tuple[ThreadRef, ...], data: st.DataObject) -> None:
    nices = st.lists(st.integers(-20, 19), min_size=3, max_size=3)
    found = data.draw(nices)
    for thread, nice in zip(threads, found, strict=True):
        os.setpriority(os.PRIO_PROCESS, thread.tid, nice)
    enforcer = Enforcer(NiceKnob())
    for wanted in data.draw(st.lists(nices, max_size=4)):
        outcomes = enforcer.apply(enforcer.diff(threads, np.array(wanted, dtype=np.float64)))
        assert not outcomes.failures
        assert [os.getpriority(os.PRIO_PROCESS, thread.tid) for thread in threads] == wanted
    assert not enforcer.restore().failures
    assert [os.getpriority(os.PRIO_PROCESS, thread.tid) for thread in threads] == found


def test_a_nicer_thread_gets_less_of_the_core(
    burners: tuple[ThreadRef, ...], spend: Callable[..., list[float]]
) -> None:
    NiceKnob().write(burners[1], 15.0)
    high, low = spend(burners, 0.3)
    assert high > 3 * low


def test_processes_of_two_sessions_do_not_compare_by_nice_while_autogroup_is_on() -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=apart)
        for apart in (False, True)
    ]
    try:
        here, apart = (process.pid for process in started)
        assert len(arenas([os.getpid(), here])) == 1
        assert sorted(pid for pids in arenas([here, apart]).values() for pid in pids) == sorted([here, apart])
        in_a_cgroup = all(arena.startswith("cgroup") for arena in arenas([here, apart]))
        assert len(arenas([here, apart])) == (2 if autogroup_enabled() and not in_a_cgroup else 1)
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_process_that_has_ended_is_in_no_arena() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert arenas([process.pid]) == {}
