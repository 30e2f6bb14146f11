"""The kernel's knobs as a whole: made by name, and what works here for whom."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from treadle.enforce import Knob
from treadle.enforce.kernel import NAMES, Cgroups, facts, find_mount, make
from treadle.errors import ConfigError, EngineError
from treadle.model import ThreadRef

AS_NOBODY = """
import os, sys
from treadle.enforce.kernel import facts, make, thread_ref
from treadle.errors import RightsError
thread = thread_ref(int(sys.argv[1]), int(sys.argv[2]))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for name, value in (("nice", -5.0), ("nice", 5.0), ("rt", 5.0), ("slice", 0.01), ("group", "query")):
    try:
        make(name).write(thread, value)
        print(name, "went well")
    except RightsError as error:
        print(f"{name}: {error}")
print([fact.what for fact in facts() if not fact.works])
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_knob_is_made_again_by_its_name_and_options(name: str) -> None:
    try:
        knob = make(name)
    except EngineError as error:
        pytest.skip(str(error))
    assert isinstance(knob, Knob)
    options = knob.options  # type: ignore[attr-defined]
    again = make(name, **options)
    assert again.name == name
    assert again.options == options  # type: ignore[attr-defined]


def test_knobs_on_groups_share_what_knows_their_paths() -> None:
    if find_mount() is None:
        pytest.skip("no cpu controller here")
    cgroups = Cgroups("treadle-shared")
    assert make("group", cgroups=cgroups).options["base"] == "treadle-shared"  # type: ignore[attr-defined]


def test_an_unknown_name_or_option_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="known: nice, rt"):
        make("speed")
    with pytest.raises(ConfigError, match="knob 'slice'"):
        make("slice", colour="red")


def test_facts_say_what_works_and_leave_nothing_behind() -> None:
    mount = find_mount()
    before = set(os.listdir(mount.directory("/"))) if mount else set()
    found = facts()
    assert [fact.what for fact in found] == ["nice", "autogroup", "cgroup", "quota", "real-time", "time slice"]
    assert all(fact.why and (fact.works or fact.remedy) for fact in found)
    assert not {name for name in os.listdir(mount.directory("/")) if "probe" in name} - before if mount else True


def test_a_fact_that_is_not_asked_for_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["treadle.enforce.kernel.facts"], "RealtimeKnob")
    assert [fact.what for fact in facts(["nice", "time slice"])] == ["nice", "time slice"]


@pytest.mark.usefixtures("root")
def test_without_rights_each_knob_says_one_clear_line_and_changes_nothing(threads: tuple[ThreadRef, ...]) -> None:
    thread = threads[0]
    command = [sys.executable, "-c", AS_NOBODY, str(thread.tid), str(thread.pid)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    *lines, unable = ended.stdout.splitlines()
    assert len(lines) == 5
    for line, name in zip(lines, ("nice", "nice", "rt", "slice", "group"), strict=True):
        assert line.startswith(f"{name}: ")
        assert "run as root" in line
    assert "'nice'" in unable
    assert "'real-time'" in unable
    assert os.sched_getscheduler(thread.tid) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, thread.tid) == 0
