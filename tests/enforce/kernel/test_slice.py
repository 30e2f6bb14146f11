"""Time slices on real threads."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.enforce import Enforcer
from treadle.enforce.kernel import SliceKnob
from treadle.enforce.kernel import slice as kernel_slice
from treadle.errors import ConfigError, EngineError
from treadle.linux.sched import Attributes, get_attributes, set_attributes
from treadle.model import ThreadRef
from treadle.testing import check_knob


@pytest.fixture(autouse=True)
def _takes_slices() -> None:
    try:
        kernel_slice.default_slice()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("batch", [False, True])
def test_slice_passes_the_checks_for_knobs(threads: tuple[ThreadRef, ...], batch: bool) -> None:
    check_knob(lambda: SliceKnob(batch=batch), threads, [0.02, 0.003000001, 0.1, 0.0001, 0.0, -0.004])


def test_a_batch_slice_makes_the_thread_batch_and_zero_makes_it_ordinary_again(threads: tuple[ThreadRef, ...]) -> None:
    knob = SliceKnob(batch=True)
    knob.write(threads[0], 0.02)
    assert os.sched_getscheduler(threads[0].tid) == os.SCHED_BATCH
    assert get_attributes(threads[0].tid).runtime == 20_000_000
    knob.write(threads[0], 0.0)
    assert os.sched_getscheduler(threads[0].tid) == os.SCHED_OTHER
    assert knob.read(threads[0]) == 0.0


def test_a_slice_leaves_nice_and_the_fork_flag_as_they_are(threads: tuple[ThreadRef, ...]) -> None:
    tid = threads[1].tid
    os.setpriority(os.PRIO_PROCESS, tid, 3)
    os.sched_setscheduler(tid, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    SliceKnob(batch=True).write(threads[1], 0.01)
    assert os.getpriority(os.PRIO_PROCESS, tid) == 3
    assert os.sched_getscheduler(tid) == os.SCHED_BATCH | os.SCHED_RESET_ON_FORK


@pytest.mark.parametrize("value", [0.2, 0.00001, float("inf"), float("nan"), "short"])
def test_what_the_kernel_would_cut_is_refused(threads: tuple[ThreadRef, ...], value: float | str) -> None:
    with pytest.raises(ConfigError, match="knob 'slice'"):
        SliceKnob().write(threads[0], value)


def test_a_kernel_that_ignores_slices_is_one_clear_error(
    threads: tuple[ThreadRef, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before Linux 6.12: the call goes well, and 0 is read."""
    monkeypatch.setattr(kernel_slice, "_probed", lambda: (0, 0))
    for act in (lambda: SliceKnob().read(threads[0]), lambda: SliceKnob().write(threads[0], 0.01)):
        with pytest.raises(EngineError, match=r"has no settable time slices \(use Linux 6.12 or later"):
            act()


@settings(max_examples=30)
@given(data=st.data(), batch=st.booleans())
def test_restore_puts_back_policy_and_slice_that_it_found(
    threads: tuple[ThreadRef, ...], data: st.DataObject, batch: bool
) -> None:
    nanoseconds = st.one_of(st.just(0), st.integers(100_000, 100_000_000))
    for thread in threads:
        policy = data.draw(st.sampled_from([os.SCHED_OTHER, os.SCHED_BATCH]))
        set_attributes(thread.tid, Attributes(policy=policy, nice=0, runtime=data.draw(nanoseconds)))
    found = [_standing(thread) for thread in threads]
    enforcer = Enforcer(SliceKnob(batch=batch))
    for _ in range(data.draw(st.integers(0, 4))):
        wanted = np.array([data.draw(nanoseconds) for _ in threads]) / 1e9
        assert not enforcer.apply(enforcer.diff(threads, wanted)).failures
    assert not enforcer.restore().failures
    assert [_standing(thread) for thread in threads] == found


def _standing(thread: ThreadRef) -> tuple[int, int]:
    seen = get_attributes(thread.tid)
    return seen.policy, seen.runtime
