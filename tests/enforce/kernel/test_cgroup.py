"""All of cgroup's paths and names, on the real file system of cgroup v1 where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from treadle.enforce.kernel import Cgroups, GroupKnob, Mount, find_mount, thread_ref
from treadle.enforce.kernel.names import escape, escape_parts, unescape
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.model import ThreadRef

V1 = "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


@given(st.text())
@example("\0")
@example("a//%")
def test_any_text_is_a_name_that_can_be_read_back(name: str) -> None:
    path = escape_parts(name)
    parts = path.split("/")
    assert all(0 < len(part.encode()) <= 255 and part not in (".", "..", "tasks") for part in parts)
    assert not any(ord(char) < 32 for char in path)
    if max(len(part.encode()) for part in parts) < 200:
        assert unescape(path) == name


@settings(max_examples=30)
@given(st.text(max_size=5), st.text(max_size=5))
def test_very_long_names_stay_different(one: str, other: str) -> None:
    assert (escape("é" * 200 + one) == escape("é" * 200 + other)) == (one == other)


@pytest.mark.parametrize("name", ["cpu.shares", "cgroup.procs", "tasks", ".", "..", "a/b", "a\nb", "100%", "q" * 300])
def test_names_that_the_kernel_would_not_take_are_groups_all_the_same(cgroups: Cgroups, name: str) -> None:
    path = cgroups.path(name)
    cgroups.make(path)
    assert cgroups.exists(path)
    assert cgroups.name(path) == name
    assert cgroups.remove(path)


def test_a_nested_name_is_a_group_in_a_group(cgroups: Cgroups) -> None:
    path = cgroups.path("query/operator")
    cgroups.make(path)
    assert cgroups.children(cgroups.path("query")) == [path]


def test_a_group_without_a_name_is_refused(cgroups: Cgroups) -> None:
    with pytest.raises(ConfigError, match="no name"):
        cgroups.path("")


def test_a_group_that_is_not_there_is_gone(cgroups: Cgroups) -> None:
    with pytest.raises(TargetGone, match="does not exist"):
        cgroups.read(cgroups.path("nowhere"), "cpu.shares")


def test_no_path_leads_out_of_the_groups(cgroups: Cgroups) -> None:
    with pytest.raises(EngineError, match="outside"):
        cgroups.read("/../../proc", "version")


def test_clean_removes_what_another_process_left_and_sends_its_threads_home(
    cgroups: Cgroups, threads: tuple[ThreadRef, ...]
) -> None:
    home = cgroups.place(threads[0])
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = thread_ref(child.pid, child.pid)
        left = Cgroups(cgroups.options["base"] + "-left", parent=cgroups.parent)
        for thread, group in zip((*threads, started), ("a", "a/b", "c", "c"), strict=True):
            GroupKnob(left).write(thread, group)
        assert Cgroups(left.options["base"], parent=left.parent).clean() == []
        assert not left.exists(left.base)
        assert {left.place(thread) for thread in (*threads, started)} == {home}
    finally:
        child.kill()
        child.communicate()


def test_clean_where_nothing_was_made_is_harmless(cgroups: Cgroups) -> None:
    assert Cgroups("treadle-was-never-here", parent=cgroups.parent).clean() == []


def test_the_mount_of_v1_is_found_also_if_it_has_other_controllers(tmp_path: Path) -> None:
    assert _mounted(tmp_path, V1) == Mount(1, "/sys/fs/cgroup/cpu,cpuacct")


def test_v2_is_found_only_where_it_has_the_cpu_controller(tmp_path: Path) -> None:
    point = tmp_path / "with space"
    point.mkdir()
    line = f"41 31 0:38 / {str(point).replace(' ', chr(92) + '040')} rw - cgroup2 cgroup2 rw\n"
    assert _mounted(tmp_path, line) is None
    (point / "cgroup.controllers").write_text("cpuset cpu io\n")
    assert _mounted(tmp_path, line) == Mount(2, str(point))
    assert _mounted(tmp_path, line + V1) == Mount(1, "/sys/fs/cgroup/cpu,cpuacct")


def test_without_the_controller_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.enforce.kernel.cgroup.find_mount", lambda: None)
    with pytest.raises(EngineError, match=r"no CPU groups \(mount"):
        Cgroups()


def test_in_a_container_paths_begin_at_its_own_group() -> None:
    mount = Mount(1, "/sys/fs/cgroup/cpu", "/docker/abc")
    assert mount.directory("/docker/abc") == "/sys/fs/cgroup/cpu"
    assert mount.directory("/docker/abc/treadle/q") == "/sys/fs/cgroup/cpu/treadle/q"
    assert Cgroups(mount=mount).base == "/docker/abc/treadle"


def test_this_system_has_the_group_that_proc_says() -> None:
    mount = find_mount()
    if mount is None:
        pytest.skip("no cpu controller here")
    groups = Cgroups(mount=mount)
    assert os.getpid() in groups.threads(groups.place(thread_ref(os.getpid())))


def _mounted(folder: Path, text: str) -> Mount | None:
    file = folder / "mountinfo"
    file.write_text(text)
    return find_mount(str(file))
