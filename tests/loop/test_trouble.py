"""What fails again and again is logged rarely, tried again later, and keeps nothing else from working."""

from __future__ import annotations

import logging
import operator
from functools import partial

import pytest

from treadle.loop.trouble import Attempts

log = logging.getLogger("treadle.test")


def test_one_that_fails_every_time_is_logged_with_its_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempts(0.0, 0.0, log)
    for _ in range(500):
        assert not attempt("dividing", lambda: 1 / 0)
    assert [record.exc_info is not None for record in caplog.records] == [True, False, False]
    assert "100 times" in caplog.records[-1].getMessage()


def test_one_that_fails_is_left_alone_for_a_while_and_the_others_are_not() -> None:
    attempt, calls = Attempts(3600.0, 3600.0, log), list[str]()

    def fails() -> None:
        calls.append("fails")
        raise ValueError

    for _ in range(3):
        assert not attempt("failing", fails)
        assert attempt("working", lambda: calls.append("works"))
    assert calls == ["fails", "works", "works", "works"]


def test_one_that_works_again_is_logged_and_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    attempt = Attempts(0.0, 0.0, log)
    for divisor in (0, 0, 1, 0):
        attempt("dividing", partial(operator.truediv, 1, divisor))
    assert [record.getMessage().split(",")[0].split(":")[0] for record in caplog.records] == [
        "dividing fails",
        "dividing works again after 2 failures",
        "dividing fails",
    ]
