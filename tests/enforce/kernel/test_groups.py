"""Groups of threads and their part of the CPU, really written in cgroup v1."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.enforce import Enforcer
from treadle.enforce.kernel import Cgroups, GroupKnob, QuotaKnob, SharesKnob, WeightKnob
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.model import ThreadRef
from treadle.testing import check_knob


@pytest.fixture
def two(cgroups: Cgroups) -> tuple[str, str]:
    for name in ("one", "other"):
        cgroups.make(cgroups.path(name))
    return "one", "other"


def test_group_passes_the_checks_for_knobs(cgroups: Cgroups, threads: tuple[ThreadRef, ...]) -> None:
    check_knob(lambda: GroupKnob(cgroups), threads, ["query", "query/operator", "söme query: 100 %.."])


def test_shares_pass_the_checks_for_knobs(cgroups: Cgroups, two: tuple[str, str]) -> None:
    check_knob(lambda: SharesKnob(cgroups), two, [2.0, 262144.0, 3.0, 1024.0])


def test_quota_passes_the_checks_for_knobs(cgroups: Cgroups, two: tuple[str, str]) -> None:
    check_knob(lambda: QuotaKnob(cgroups), two, [0.01, 1.5, math.inf, 0.33333])


def test_writing_membership_makes_the_group_and_a_thread_elsewhere_reads_as_a_path(
    cgroups: Cgroups, threads: tuple[ThreadRef, ...]
) -> None:
    knob = GroupKnob(cgroups)
    found = knob.read(threads[0])
    assert found == cgroups.place(threads[0])
    assert str(found).startswith("/")
    with pytest.raises(TargetGone):
        SharesKnob(cgroups).read("new")
    knob.write(threads[0], "new")
    assert SharesKnob(cgroups).read("new") == 1024
    assert threads[0].tid in cgroups.threads(cgroups.path("new"))
    assert threads[1].tid not in cgroups.threads(cgroups.path("new"))
    knob.write(threads[0], found)
    assert knob.read(threads[0]) == found


def test_a_path_that_is_not_there_makes_no_group(cgroups: Cgroups, threads: tuple[ThreadRef, ...]) -> None:
    with pytest.raises(EngineError, match="does not exist"):
        GroupKnob(cgroups).write(threads[0], f"{cgroups.parent.rstrip('/')}/nowhere")


@pytest.mark.parametrize("value", [1.0, 262145.0, 2.5, math.nan, "many"])
def test_shares_that_the_kernel_would_cut_are_refused(
    cgroups: Cgroups, two: tuple[str, str], value: float | str
) -> None:
    with pytest.raises(ConfigError, match="knob 'shares'"):
        SharesKnob(cgroups).write("one", value)


@pytest.mark.parametrize("value", [0.0, -1.0, 0.001, math.nan, "all"])
def test_a_quota_that_is_too_small_is_refused(cgroups: Cgroups, two: tuple[str, str], value: float | str) -> None:
    with pytest.raises(ConfigError, match="knob 'quota'"):
        QuotaKnob(cgroups).write("one", value)


def test_weights_of_v2_are_refused_on_v1_with_what_to_use(cgroups: Cgroups) -> None:
    with pytest.raises(EngineError, match=r"needs cgroup v2.*use the knob 'shares'"):
        WeightKnob(cgroups)


@settings(max_examples=20)
@given(data=st.data())
def test_restore_puts_threads_and_groups_back_as_found(
    cgroups: Cgroups, threads: tuple[ThreadRef, ...], data: st.DataObject
) -> None:
    names = ("a", "b", "a/c")
    for name in names[:2]:
        cgroups.make(cgroups.path(name))
        SharesKnob(cgroups).write(name, float(data.draw(st.integers(2, 262144))))
    found = _state(cgroups, threads)
    member, shares, quota = (Enforcer(kind(cgroups)) for kind in (GroupKnob, SharesKnob, QuotaKnob))
    for _ in range(data.draw(st.integers(0, 3))):
        groups = [data.draw(st.sampled_from(names)) for _ in threads]
        targets = tuple(dict.fromkeys(groups))
        parts = np.array([data.draw(st.integers(2, 262144)) for _ in targets], dtype=np.float64)
        caps = np.array([data.draw(st.integers(1, 100)) / 100 for _ in targets])
        caps[[name == "a" for name in targets]] = math.inf  # no group may have more than the one around it
        for enforcer, those, wanted in (
            (member, threads, np.array(groups, dtype=np.object_)),
            (shares, targets, parts),
            (quota, targets, caps),
        ):
            assert not enforcer.apply(enforcer.diff(those, wanted)).failures
    for enforcer in (quota, shares, member):
        assert not enforcer.restore().failures
    assert _state(cgroups, threads) == found
    assert cgroups.clean() == []


def test_the_group_with_more_shares_gets_more_of_the_core(
    cgroups: Cgroups, burners: tuple[ThreadRef, ...], two: tuple[str, str], spend: Callable[..., list[float]]
) -> None:
    for thread, name, shares in zip(burners, two, (1024.0, 64.0), strict=True):
        GroupKnob(cgroups).write(thread, name)
        SharesKnob(cgroups).write(name, shares)
    high, low = spend(burners, 0.3)
    assert high > 3 * low


def test_a_quota_holds_a_group_back(
    cgroups: Cgroups, burners: tuple[ThreadRef, ...], two: tuple[str, str], spend: Callable[..., list[float]]
) -> None:
    for thread, name in zip(burners, two, strict=True):
        GroupKnob(cgroups).write(thread, name)
    QuotaKnob(cgroups).write("other", 0.01)
    free, capped = spend(burners, 0.3)
    assert free > 2 * capped
    throttled = dict(line.split() for line in cgroups.read(cgroups.path("other"), "cpu.stat").splitlines())
    assert int(throttled["nr_throttled"]) > 0


def _state(cgroups: Cgroups, threads: tuple[ThreadRef, ...]) -> list[object]:
    places: list[object] = [GroupKnob(cgroups).read(thread) for thread in threads]
    return places + [(SharesKnob(cgroups).read(name), QuotaKnob(cgroups).read(name)) for name in ("a", "b")]
