from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from treadle.errors import RightsError, TargetGone
from treadle.linux.process import claim
from treadle.linux.thread_times import start_time

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")

CLAIM = """
import os, sys
from treadle.errors import RightsError
from treadle.linux.process import claim
uid, pid, began = map(int, sys.argv[1:])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
try:
    print("no" if claim(pid, began) is None else "yes", flush=True)
except RightsError as error:
    print(error.message, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sleeper() -> Iterator[tuple[int, int]]:
    """A process of user nobody, by id and start time."""
    uid = NOBODY if os.geteuid() == 0 else None
    with subprocess.Popen(["/bin/sleep", "600"], user=uid, group=uid, extra_groups=[] if uid else None) as process:
        yield process.pid, start_time(process.pid, process.pid)
        process.kill()


def claims_as(uid: int, process: tuple[int, int]) -> subprocess.Popen[str]:
    """A process of a user that tries to claim another, says how that went, and keeps what it has until it is ended."""
    words = [sys.executable, "-c", CLAIM, str(uid), *map(str, process)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(claimer: subprocess.Popen[str]) -> str:
    assert claimer.stdout is not None
    return claimer.stdout.readline().strip()


def test_a_process_is_claimed_once_until_the_claim_is_given_up(sleeper: tuple[int, int]) -> None:
    first = claim(*sleeper)
    assert first is not None
    assert claim(*sleeper) is None
    os.close(first)
    second = claim(*sleeper)
    assert second is not None
    os.close(second)


def test_a_process_that_ended_can_not_be_claimed(sleeper: tuple[int, int]) -> None:
    with pytest.raises(TargetGone):
        claim(sleeper[0], sleeper[1] + 1)


@AS_ROOT
def test_root_and_the_owner_exclude_each_other_also_after_kill_9_and_a_third_user_is_in_nobodys_way(
    sleeper: tuple[int, int],
) -> None:
    with claims_as(12345, sleeper) as third, claims_as(NOBODY, sleeper) as owner:
        assert said(third) == "can't be inspected by this user"
        assert said(owner) == "yes"
        assert claim(*sleeper) is None
        owner.kill()
        owner.wait()
        mine = claim(*sleeper)
        assert mine is not None
        with claims_as(NOBODY, sleeper) as again:
            assert said(again) == "no"
            again.kill()
        os.close(mine)
        third.kill()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may claim everything")
def test_a_process_of_another_user_is_a_clear_error() -> None:
    with pytest.raises(RightsError):
        claim(1, start_time(1, 1))
