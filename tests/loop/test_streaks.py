"""A streak of failures: when it is tried again, and what is logged of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import pytest

from treadle.loop.trouble import Attempts, Trouble


def test_pauses_double_up_to_the_longest_and_a_round_at_their_end_is_not_too_early() -> None:
    trouble = Trouble("engine 'x'", pause=2.0, longest=5.0)
    assert not trouble.waits(-1e9)
    for streak, pause in enumerate((2.0, 4.0, 5.0, 5.0), 1):
        trouble.failed(100.0, OSError("down"))
        assert (trouble.streak, trouble.total) == (streak, streak)
        assert trouble.waits(100.0 + 0.99 * pause)
        assert not trouble.waits(100.0 + pause)
        assert trouble.retry_at == pytest.approx(100.0 + pause, abs=1e-4)
    trouble.worked()
    assert (trouble.streak, trouble.total, trouble.error, trouble.retry_at) == (0, 4, "", -math.inf)
    trouble.failed(200.0, OSError("down"))
    assert not trouble.waits(202.0)


def test_there_is_news_of_each_failure_and_of_the_end_of_a_streak() -> None:
    trouble = Trouble("engine 'x'")
    trouble.news = False
    trouble.worked()
    assert not trouble.news
    calls: list[Callable[[], None]] = [partial(trouble.failed, 0.0, "down")] * 2 + [trouble.worked]
    for call in calls:
        trouble.news = False
        call()
        assert trouble.news


def test_an_error_without_words_is_its_kind_and_control_characters_are_shown_as_such() -> None:
    trouble = Trouble("engine 'x'")
    trouble.failed(0.0, ZeroDivisionError())
    assert trouble.error == "ZeroDivisionError"
    trouble.failed(0.0, OSError("a\x1b[31mb"))
    assert "\x1b" not in trouble.error


def test_the_first_the_tenth_and_the_hundredth_failure_and_the_end_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    trouble = Trouble("engine 'x'", means="its rows are unknown")
    for _ in range(150):
        trouble.failed(0.0, OSError("down"))
    trouble.worked()
    trouble.worked()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "engine 'x' fails, its rows are unknown: down"),
        ("WARNING", "engine 'x' has failed 10 times in a row: down"),
        ("WARNING", "engine 'x' has failed 100 times in a row: down"),
        ("INFO", "engine 'x' works again after 150 failures"),
    ]
    assert [vars(record)["trouble"] for record in caplog.records] == ["engine 'x'"] * 4
    assert [vars(record)["error"] for record in caplog.records[:3]] == ["down"] * 3
    assert {record.name for record in caplog.records} == {"treadle.loop"}
    assert not any(record.exc_info for record in caplog.records)


def test_a_part_that_fails_is_logged_where_its_owner_logs(caplog: pytest.LogCaptureFixture) -> None:
    attempt = Attempts(0.0, 0.0, logging.getLogger("treadle.test.owner"))
    attempt("dividing", lambda: 1 / 0)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == (
        "treadle.test.owner",
        "dividing fails, the rest goes on: division by zero",
    )


def test_the_pause_of_a_part_ends_and_it_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], list[float]()
    monkeypatch.setattr("treadle.loop.trouble.time.monotonic", lambda: now[0])
    attempt = Attempts(1.0, 3.0, logging.getLogger("treadle.test.owner"))

    def fails() -> None:
        calls.append(now[0])
        if len(calls) != 5:
            raise ValueError

    done = []
    for second in range(13):
        now[0] = float(second)
        done.append(attempt("part", fails))
    assert calls == [0.0, 1.0, 3.0, 6.0, 9.0, 10.0, 11.0]
    assert done.index(True) == 9
    assert done.count(True) == 1
