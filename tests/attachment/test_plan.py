"""Which policy turns which knob, and what users' priorities become: numbers of the kernel, and real CPU time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import until
from treadle.attachment import plan
from treadle.attachment.policies.limits import WIDEST
from treadle.enforce import kernel
from treadle.enforce.kernel import find_mount
from treadle.errors import ConfigError
from treadle.model import Floats, Instance, Operator, Query, Topology
from treadle.values import Snapshot

WEIGHTS = (
    *(88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121),
    *(2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23),
    *(18, 15),
)
"""Of nice -20 to 19: the kernel's `sched_prio_to_weight`."""
MEANS = st.sampled_from([("nice", 1), ("nice:low=0", 1), ("cgroup", 1), ("cgroup", 2)])


def values(priorities: Sequence[float], enforce: str = "nice", version: int = 1, *, strict: bool = False) -> Floats:
    """What queries of these priorities get: nice, shares (cgroup v1) or weight (v2)."""
    queries = tuple(Query(f"q{n}", (Operator("all"),), priority) for n, priority in enumerate(priorities))
    rows = tuple(Instance(query.name, ("all",), 0, "spark") for query in queries)
    chosen = plan.make("user-priority", enforce, 0.05, {}, {}, ("*",), strict=strict)
    (binding,) = chosen.bindings(version)[0]
    schedule = binding.policy.decide(Snapshot(Topology(queries, rows, 1), 0.0, {}))
    priority = schedule.scalar if schedule.groups is None else schedule.groups.priority
    return binding.to_scale.apply(priority, schedule.spacing)


def weights(found: Floats, enforce: str) -> Floats:
    return np.array([WEIGHTS[int(nice) + 20] for nice in found]) if enforce.startswith("nice") else found


@pytest.mark.parametrize(
    ("policy", "enforce", "loads"),
    [
        ("congestion-aware", "nice", True),
        ("user-priority", "nice", False),
        ("downstream-first", "cgroup", False),
        ("user-priority", "rt", True),  # its watchdog has to see work move on
    ],
)
def test_jolokia_is_loaded_only_where_its_figures_are_needed_or_it_is_asked_for(
    policy: str, enforce: str, loads: bool
) -> None:
    chosen = plan.make(policy, enforce, 0.05, {}, {}, ("*",))
    assert chosen.loads_jolokia(None, dry_run=False) is loads
    assert not chosen.loads_jolokia(None, dry_run=True)
    for dry_run in (False, True):
        assert chosen.loads_jolokia(True, dry_run=dry_run)
        assert not chosen.loads_jolokia(False, dry_run=dry_run)


# ------------------------------------------------------------ users' priorities


@pytest.mark.parametrize(
    ("priorities", "nices"),
    [
        ([2, 1], [-3, 0]),
        ([10, 1], [-10, 0]),
        ([10, 2, 1, 0.5], [-10, -3, 0, 3]),
        ([50, 40], [-18, -17]),
        ([200, 100], [-20, -17]),  # 1 would be beyond the range: moved, with the same ratio
        ([0.01, 0.02], [19, 16]),
        ([7, 7], [0, 0]),
        ([0, 1], [19, -1]),
        ([10_000, 100, 1], [-20, -10, 0]),  # too wide: squeezed
    ],
)
def test_priorities_are_shares_by_nice_to_the_nearest_step(priorities: list[float], nices: list[float]) -> None:
    assert values(priorities).tolist() == nices


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("priorities", [[2, 1], [10, 3, 1], [0.5, 1], [100, 1], [99, 7, 0.99]])
def test_priorities_are_shares_by_cgroup(priorities: list[float], version: int) -> None:
    found = values(priorities, "cgroup", version)
    assert found / found[-1] == pytest.approx(np.array(priorities) / priorities[-1], rel=0.01)


def test_in_strict_order_only_the_order_counts() -> None:
    assert values([2, 1], strict=True).tolist() == values([1000, 0], strict=True).tolist() == [-20, 0]
    assert values([10, 9, 1], strict=True).tolist() == [-20, -10, 0]
    assert values([2, 1], "nice:low=-20,high=19", strict=True).tolist() == [-20, 19]
    for version in (1, 2):
        found = values([9, 2, 1], "cgroup", version, strict=True)
        assert (found / found[-1]).tolist() == pytest.approx([100, 10, 1], rel=0.01)


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=8), MEANS, st.booleans())
def test_whatever_the_priorities_the_least_important_keeps_its_part(
    priorities: list[float], means: tuple[str, int], strict: bool
) -> None:
    found = weights(values(priorities, *means, strict=strict), means[0])
    assert found.max() <= WIDEST * found.min() * 1.001
    order = np.argsort(priorities, kind="stable")
    assert np.all(np.diff(found[order]) >= 0)


def test_strict_order_is_refused_for_a_policy_that_has_another() -> None:
    with pytest.raises(ConfigError, match=r"strict: 'queue-size' does not decide by users' priorities"):
        plan.make("queue-size", "nice", 0.05, {"a": 2.0}, {}, ("*",), strict=True)
    assert plan.make("queue-size", "cgroup+nice", 0.05, {"a": 2.0}, {}, ("*",), strict=True).strict
    assert plan.make(None, None, 0.05, {}, {}, ("*",), strict=True).strict  # nothing to put in order: harmless


# ------------------------------------------------------------ what the kernel makes of it


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Processes that never rest, all on one core."""
    core = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def used(pids: Sequence[int]) -> Floats:
    """Their CPU seconds."""
    return np.array([int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9 for pid in pids])


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Two CPU groups of cgroup v1, side by side."""
    mount = find_mount()
    if mount is None or mount.version != 1 or os.geteuid() != 0:
        pytest.skip("needs a writable cgroup v1")
    made = [Path(mount.directory(f"/treadle-shares-{os.getpid()}-{number}")) for number in range(2)]
    for group in made:
        group.mkdir()
    yield made
    for group in made:
        group.rmdir()


def ratio(pids: Sequence[int]) -> float:
    """The CPU time of the first one to that of the second, while both together had a second of it."""
    before = used(pids)
    until(lambda: (used(pids) - before).sum() > 1.0)
    spent = used(pids) - before
    return float(spent[0] / max(spent[1], 1e-9))


def test_by_nice_two_processes_get_a_core_in_these_shares(record_property: Callable[[str, object], None]) -> None:
    """Loosely, since others run here too: more for more, and not all of it."""
    if not kernel.facts(["nice"])[0].works:
        pytest.skip("needs the right to set nice")
    ratios: list[float] = []
    with busy(2) as pids:
        for priorities in ([2, 1], [10, 1]):
            for pid, nice in zip(pids, values(priorities), strict=True):
                os.setpriority(os.PRIO_PROCESS, pid, int(nice))
            ratios.append(ratio(pids))
    record_property("ratios", ratios)
    assert 1.0 < ratios[0] < ratios[1] < WIDEST


def test_by_cgroup_two_processes_get_a_core_in_these_shares(
    groups: list[Path], record_property: Callable[[str, object], None]
) -> None:
    ratios: list[float] = []
    with busy(2) as pids:
        for pid, group in zip(pids, groups, strict=True):
            (group / "tasks").write_text(str(pid))
        for priorities in ([2, 1], [10, 1]):
            for group, shares in zip(groups, values(priorities, "cgroup"), strict=True):
                (group / "cpu.shares").write_text(f"{shares:.0f}")
            ratios.append(ratio(pids))
    record_property("ratios", ratios)
    assert 1.0 < ratios[0] < ratios[1] < WIDEST
