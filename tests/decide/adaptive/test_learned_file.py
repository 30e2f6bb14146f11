"""What was learned is kept in a file: a restart begins where the run before ended, and a wrong file does no harm."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treadle.decide import registry
from treadle.decide.adaptive import Adaptive, learned_file
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot

TOPOLOGY = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))])
LATENCY = {"none": 1.0, "user-priority": 5.0}


def made(file: Path, candidates: str = "none+user-priority", objective: str = "min latency") -> Adaptive:
    spec = f"adaptive:learner=(greedy:epsilon=0),delay=1,candidates={candidates},objective={objective}"
    policy = registry.create(f"{spec},learned=({file})")
    assert isinstance(policy, Adaptive)
    return policy


def run(policy: Adaptive, rounds: int) -> list[str]:
    """A round a second; return the reasons of the choices."""
    for time in range(rounds):
        totals = {"latency": LATENCY.get(policy.current or "", 3.0), "total_queue": 1.0}
        policy.decide(Snapshot(TOPOLOGY, float(time), {"queue": np.ones(2)}, totals))
    return [choice.reason for choice in policy.history]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def learned(tmp_path: Path) -> Path:
    """A file that a run has left."""
    file = tmp_path / "learned.json"
    policy = made(file)
    run(policy, 10)
    policy.rest()
    return file


def test_a_restart_goes_on_without_a_warm_up(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = made(learned)
    assert not [reason for reason in run(policy, 3) if reason.startswith("warm-up")]
    assert policy.history[0].chosen == "none"
    assert policy.status()["candidates"]["user-priority"]["measured"] == 1
    assert warnings(caplog) == []


def test_only_its_owner_can_read_and_write_the_file(learned: Path) -> None:
    assert stat.S_IMODE(learned.stat().st_mode) == 0o600
    assert [path.name for path in learned.parent.iterdir()] == ["learned.json"]


def test_it_is_written_only_now_and_then_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "learned.json"
    policy = made(file)
    run(policy, 20)
    assert not file.exists()
    policy.rest()
    first = file.read_bytes()
    policy.rest()  # nothing new
    assert file.read_bytes() == first
    monkeypatch.setattr(learned_file, "EVERY", 0.0)
    file.unlink()
    run(policy, 5)
    policy.rest()
    assert json.loads(file.read_bytes())["runs"]["none"] > json.loads(first)["runs"]["none"]


def test_a_file_for_other_candidates_is_used_as_far_as_it_goes(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = made(learned, "none+random")
    assert [reason for reason in run(policy, 3) if reason.startswith("warm-up")] == ["warm-up, run 1 of 1"]
    assert [choice.chosen for choice in policy.history if choice.reason.startswith("warm-up")] == ["random"]
    (told,) = warnings(caplog)
    assert "has measurements of none, user-priority, but none of candidate 'random'" in told
    policy.rest()
    assert set(json.loads(learned.read_bytes())["runs"]) == {"none", "user-priority", "random"}


def test_other_options_make_another_candidate(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(made(learned, "none+(weighted:qs=1)"), 1)
    assert "but none of candidate 'weighted:qs=1'" in warnings(caplog)[0]


def test_a_file_without_an_objective_says_so(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = json.loads(learned.read_bytes())
    del saved["history"]["latency"]
    learned.write_text(json.dumps(saved))
    run(made(learned), 5)
    assert "but none of objective 'latency'" in warnings(caplog)[0]


def broken(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def spoil(text: bytes) -> bytes:
        saved = json.loads(text)
        change(saved)
        return json.dumps(saved).encode()

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: b"\x00\xff" + text,
        lambda text: b"[" * 100_000,
        lambda text: b"[1, 2]",
        lambda text: b'{"name": "of another program"}',
        broken(lambda saved: saved.pop("runs")),
        broken(lambda saved: saved["runs"].update(none=-1)),
        broken(lambda saved: saved["runs"].update(none=float("inf"))),
        broken(lambda saved: saved.update(z=3)),
        broken(lambda saved: saved.update(intervals=[["none", {}]])),
        broken(lambda saved: saved["intervals"].append(["none", {"latency": float("nan")}, {}])),
        broken(lambda saved: saved["history"].update(latency=[1, 2, 3, 4])),
        broken(lambda saved: saved["history"].update(latency=[1, 2])),
        broken(lambda saved: saved.update(history={"latency": "abcd"})),
    ],
)
def test_a_damaged_or_foreign_file_is_one_warning_and_is_left_as_it_is(
    learned: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[bytes], bytes]
) -> None:
    text = spoil(learned.read_bytes())
    learned.write_bytes(text)
    policy = made(learned)
    assert run(policy, 5)[0] == "warm-up, run 1 of 1"
    policy.rest()
    (told,) = warnings(caplog)
    assert f"learned '{learned}' is left out, and is not written" in told
    assert learned.read_bytes() == text


def test_an_empty_file_is_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "new.json").touch(0o600)
    policy = made(tmp_path / "new.json")
    run(policy, 5)
    policy.rest()
    assert json.loads((tmp_path / "new.json").read_bytes())["runs"]
    assert warnings(caplog) == []


def refused(policy: Adaptive, caplog: pytest.LogCaptureFixture) -> str:
    assert run(policy, 5)[0] == "warm-up, run 1 of 1"
    policy.rest()
    (told,) = warnings(caplog)
    return told


def test_a_link_is_neither_followed_nor_replaced(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    link, before = learned.with_name("link.json"), learned.read_bytes()
    link.symlink_to(learned)
    assert "is left out" in refused(made(link), caplog)
    assert link.is_symlink()
    assert learned.read_bytes() == before


def test_a_folder_that_others_can_change_is_not_used(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "learned.json"
        shutil.copy(learned, file)
        os.chmod(folder, 0o777)
        assert "can be changed by other users" in refused(made(file), caplog)
        assert file.read_bytes() == learned.read_bytes()


def test_a_file_that_others_can_write_is_not_used(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    learned.chmod(0o666)
    assert "can be written by others" in refused(made(learned), caplog)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_or_a_folder_of_another_user_is_not_used(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.chown(learned, 65534, 65534)
    assert "belongs to another user" in refused(made(learned), caplog)
    caplog.clear()
    theirs = learned.parent / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    assert "belongs to another user" in refused(made(theirs / "learned.json"), caplog)
    assert list(theirs.iterdir()) == []


def test_a_folder_that_is_missing_is_said_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "make the folder" in refused(made(tmp_path / "nowhere" / "learned.json"), caplog)


def test_a_file_that_can_not_be_written_is_one_warning(learned: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = made(learned)
    run(policy, 5)
    learned.unlink()
    learned.mkdir()
    for _ in range(3):
        run(policy, 5)
        policy.rest()
    (told,) = warnings(caplog)
    assert "can't be written" in told
    assert not [path for path in learned.parent.iterdir() if path.name != "learned.json"]


def test_nothing_is_kept_in_a_dry_run(learned: Path) -> None:
    before = learned.read_bytes()
    policy = made(learned)
    policy.keep_no_file()
    assert run(policy, 5)[0] == "warm-up, run 1 of 1"
    policy.rest()
    assert learned.read_bytes() == before
