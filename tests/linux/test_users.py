from __future__ import annotations

import os
import subprocess

import pytest

from treadle.errors import ConfigError, TargetGone
from treadle.linux import users
from treadle.linux.thread_times import start_time


def test_the_owner_is_the_user_that_started_the_process() -> None:
    assert users.owner(os.getpid(), start_time(os.getpid(), os.getpid())) == os.getuid()


def test_a_process_that_ended_or_whose_id_was_given_away_has_no_owner() -> None:
    with pytest.raises(TargetGone, match="another process has its id"):
        users.owner(os.getpid(), 1)
    gone = subprocess.Popen(["/bin/true"])
    gone.wait()
    with pytest.raises(TargetGone, match="has ended"):
        users.owner(gone.pid, 1)


def test_a_user_is_given_by_name_or_number() -> None:
    assert users.number("root") == users.number(0) == users.number("0") == 0
    assert users.number(users.name(0)) == 0
    assert users.name(4_000_000) == "4000000"


@pytest.mark.parametrize("user", ["nobody-at-all", "", "-1", -1, True, None, "²"])
def test_a_user_that_is_not_there_is_one_clear_error(user: object) -> None:
    with pytest.raises(ConfigError, match="there is no user"):
        users.number(user)  # type: ignore[arg-type]
