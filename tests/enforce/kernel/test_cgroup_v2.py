"""cgroup v2: its files on a directory that mimics them, and its threaded mode in the real one where that is mounted."""

from __future__ import annotations

import math
import os
import shutil
import uuid
from pathlib import Path

import pytest

from treadle.enforce.kernel import Cgroups, GroupKnob, Mount, QuotaKnob, SharesKnob, WeightKnob
from treadle.enforce.kernel.mounts import group_of
from treadle.errors import EngineError, TargetGone
from treadle.model import ThreadRef
from treadle.testing import check_knob

FILES = {
    "cgroup.type": "domain invalid\n",
    "cgroup.threads": "",
    "cgroup.subtree_control": "",
    "cpu.weight": "100\n",
    "cpu.max": "max 100000\n",
}


class Mimic(Cgroups):
    """A directory in the place of cgroup v2: what the kernel does by itself there, this does."""

    def __init__(self, folder: Path, *, base: str = "treadle", controlled: bool | None = None) -> None:
        if not (folder / "app").exists():
            (folder / "app").mkdir()
            for name, text in FILES.items():
                (folder / "app" / name).write_text(text.replace("domain invalid", "domain"))
        super().__init__(base, parent="/app", mount=Mount(2, str(folder)), controlled=controlled)
        self.places: dict[int, str] = {}
        self.writes: list[tuple[str, str, str]] = []

    def place(self, thread: ThreadRef) -> str:
        return self.places.get(thread.tid, "/app")

    def _mkdir(self, directory: str) -> None:
        super()._mkdir(directory)
        for name, text in FILES.items():
            Path(directory, name).write_text(text)

    def _drop(self, path: str) -> None:
        if path in self.places.values():
            raise OSError("busy")
        shutil.rmtree(self.directory(path))

    def _put(self, path: str, file: str, text: str) -> None:
        super()._put(path, file, text.replace("+", ""))
        self.writes.append((path, file, text))
        if file == "cgroup.threads":
            self.places[int(text)] = path


@pytest.fixture
def mimic(tmp_path: Path) -> Mimic:
    return Mimic(tmp_path)


def test_on_a_mimic_of_v2_membership_passes_the_checks_for_knobs(mimic: Mimic, threads: tuple[ThreadRef, ...]) -> None:
    check_knob(lambda: GroupKnob(mimic), threads, ["query", "query/operator"])


def test_on_a_mimic_of_v2_weight_and_quota_pass_the_checks_for_knobs(mimic: Mimic) -> None:
    for name in ("one", "other"):
        mimic.make(mimic.path(name))
    check_knob(lambda: WeightKnob(mimic), ["one", "other"], [1.0, 10000.0, 100.0])
    check_knob(lambda: QuotaKnob(mimic), ["one", "other"], [0.5, math.inf, 2.0])


def test_on_a_mimic_of_v2_a_group_is_threaded_before_the_controller_is_switched_on_around_it(mimic: Mimic) -> None:
    mimic.make(mimic.path("query/operator"))
    assert mimic.writes == [
        ("/app/treadle", "cgroup.type", "threaded"),
        ("/app", "cgroup.subtree_control", "+cpu"),
        ("/app/treadle/query", "cgroup.type", "threaded"),
        ("/app/treadle", "cgroup.subtree_control", "+cpu"),
        ("/app/treadle/query/operator", "cgroup.type", "threaded"),
        ("/app/treadle/query", "cgroup.subtree_control", "+cpu"),
    ]
    mimic.writes.clear()
    mimic.make(mimic.path("query/other"))
    assert mimic.writes == [("/app/treadle/query/other", "cgroup.type", "threaded")]


def test_on_a_mimic_of_v2_clean_leaves_the_application_as_it_was(mimic: Mimic, threads: tuple[ThreadRef, ...]) -> None:
    GroupKnob(mimic).write(threads[0], "query")
    Path(mimic.directory(mimic.path("query")), "cgroup.threads").write_text(f"{threads[0].tid}\n")
    assert mimic.clean() == []
    assert mimic.place(threads[0]) == "/app"
    assert mimic.children("/app") == []
    assert mimic.writes[-1] == ("/app", "cgroup.subtree_control", "-cpu")


def test_on_a_mimic_of_v2_another_process_switches_the_controller_off_after_a_kill(
    mimic: Mimic, tmp_path: Path
) -> None:
    options = dict(mimic.options)  # as the journal has them, from before the first write
    mimic.make(mimic.path("query"))
    guardian = Mimic(tmp_path, controlled=options["controlled"])
    assert guardian.options == options
    assert guardian.clean() == []
    assert guardian.writes[-1] == ("/app", "cgroup.subtree_control", "-cpu")


def test_on_a_mimic_of_v2_the_controller_stays_on_where_it_was_so_or_others_have_groups(
    mimic: Mimic, tmp_path: Path
) -> None:
    mimic.make(mimic.path("query"))
    other = Mimic(tmp_path, base="other")
    other.make(other.path("query"))
    assert mimic.clean() == []
    assert other.clean() == []
    assert ("/app", "cgroup.subtree_control", "-cpu") not in mimic.writes + other.writes


def test_on_a_mimic_of_v2_a_group_that_is_not_there_is_gone(mimic: Mimic) -> None:
    with pytest.raises(TargetGone):
        WeightKnob(mimic).write("nowhere", 5.0)


def test_on_a_mimic_of_v2_shares_are_refused_with_what_to_use(mimic: Mimic) -> None:
    with pytest.raises(EngineError, match="use the knob 'weight'"):
        SharesKnob(mimic)


class Threaded(Cgroups):
    """The kernel's own cgroup v2, without the cpu controller, which may be with v1."""

    def _switch_on(self, path: str) -> None:
        pass


def test_in_the_real_v2_threads_move_between_threaded_groups_and_home(threads: tuple[ThreadRef, ...]) -> None:
    groups = Threaded(f"treadle-test-{uuid.uuid4().hex[:8]}", parent=_own_group(), mount=_real_v2())
    knob = GroupKnob(groups)
    home = knob.read(threads[0])
    try:
        try:
            knob.write(threads[0], "query/operator")
        except EngineError as error:
            pytest.skip(f"this cgroup can't have threaded groups: {error}")
        assert knob.read(threads[0]) == "query/operator"
        assert groups.type_of(groups.path("query")) == "threaded"
        assert threads[0].tid in groups.threads(groups.path("query/operator"))
        assert knob.read(threads[1]) == home
        knob.write(threads[0], home)
        assert knob.read(threads[0]) == home
        knob.write(threads[1], "query")
    finally:
        assert groups.clean() == []
    assert knob.read(threads[1]) == home


def _real_v2() -> Mount:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            mount = Mount(2, line.split()[4], line.split()[3])
            if os.access(mount.directory(group_of("/proc/self/cgroup", mount)), os.W_OK):
                return mount
    pytest.skip("no cgroup v2 that this user may write to")


def _own_group() -> str:
    return group_of("/proc/self/cgroup", _real_v2())
