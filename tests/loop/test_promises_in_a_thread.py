"""The quality step in a thread of its own: its errors, its end, and its times."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from support import LONG, until
from treadle.loop.quality_rule import QualityRule


class Slow:
    """A stand-in for promises that are measured in another thread, and end as `outcome` says."""

    period = 2.0
    in_process = False
    controller: Any = None

    def __init__(self) -> None:
        self.outcome: BaseException | None = None
        self.threads: list[threading.Thread] = []
        self.ended = 0
        self.kept_all = 0

    def measure(self, now: float) -> Any:
        self.threads.append(threading.current_thread())
        try:
            if self.outcome is not None:
                raise self.outcome
        finally:
            self.ended += 1

    def carry_out(self, decision: Any, now: float) -> None:
        raise AssertionError("there is nothing to decide")

    def keep_all(self) -> None:
        self.kept_all += 1


@pytest.fixture
def slow() -> Slow:
    return Slow()


def test_all_steps_are_in_one_thread_that_ends_with_the_rule(slow: Slow) -> None:
    rule = QualityRule(slow, 60.0)

    def done(number: int) -> bool:
        rule.round(8.0 + 2.0 * number)
        return slow.ended == number

    for number in (1, 2, 3):
        until(partial(done, number))
    (thread,) = set(slow.threads)
    assert thread.name == "treadle-quality"
    assert thread is not threading.current_thread()
    rule.rest()
    assert not thread.is_alive()
    rule.rest()
    rule.round(16.0)
    until(lambda: slow.ended == 4)
    assert slow.threads[-1] is not thread
    rule.rest()


def test_an_error_of_a_step_keeps_all_rows_and_delays_the_next(slow: Slow) -> None:
    slow.outcome = ValueError("no figures")
    rule = QualityRule(slow, 60.0)
    rule.round(10.0)
    until(lambda: slow.kept_all == 1)
    assert (rule.trouble.error, rule.trouble.streak) == ("no figures", 1)
    assert rule.next_due == pytest.approx(12.0)
    rule.rest()


def test_an_exit_within_a_step_is_a_failure_too(slow: Slow) -> None:
    slow.outcome = SystemExit("enough")
    rule = QualityRule(slow, 60.0)
    rule.round(10.0)
    until(lambda: slow.ended == 1)

    def noticed() -> bool:
        rule.round(10.5)
        return rule.trouble.streak > 0

    until(noticed)
    assert rule.trouble.error == "enough"
    rule.rest()


def test_a_pause_keeps_all_rows_and_waits_for_the_step_that_runs(slow: Slow) -> None:
    rule = QualityRule(slow, 60.0)
    rule.pause()
    assert slow.kept_all == 1
    rule.round(10.0)
    until(lambda: bool(slow.threads))
    rule.pause()
    assert (slow.kept_all, slow.ended) == (2, 1)
    slow.threads[0].join(LONG)
    assert not slow.threads[0].is_alive()
    rule.round(12.0)
    until(lambda: slow.ended == 2)
    rule.rest()


def test_times_are_kept_by_whole_periods_from_the_first_step_on(slow: Slow) -> None:
    slow.in_process = True
    rule = QualityRule(slow, 60.0)
    assert rule.next_due == float("-inf")
    for now, due in ((10.5, 12.5), (12.4, 12.5), (12.5, 14.5), (17.0, 18.5), (18.5 - 1e-7, 20.5)):
        rule.round(now)
        assert rule.next_due == due
    assert slow.ended == 4
