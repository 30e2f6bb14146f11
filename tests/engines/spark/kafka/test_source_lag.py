"""Records that wait before a source, against how they were sent."""

from __future__ import annotations

import pytest

from treadle.engines.spark.kafka.source_lag import SourceLag


def test_a_consumer_that_has_all_it_has_heard_of_has_no_lag() -> None:
    lag = SourceLag()
    lag.update(0.0, 100, 100)
    lag.update(50.0, 100, 100)
    assert (lag.waiting, lag.age) == (0.0, 0.0)


@pytest.mark.parametrize("answers_every", [1, 5, 25])
def test_lag_and_age_are_those_of_the_records_also_between_answers(answers_every: int) -> None:
    """A thousand records a second come, 600 are taken, and only now and then the consumer hears of new ones."""
    lag = SourceLag()
    end = 0.0
    for step in range(200):
        now = 0.1 * step
        if step % answers_every == 0:
            end = 1000.0 * now
        lag.update(now, 600.0 * now, max(end, 600.0 * now))
    assert lag.waiting == pytest.approx(400.0 * now, rel=0.02)
    assert lag.age == pytest.approx(0.4 * now, rel=0.02)


def test_what_came_before_the_first_answer_came_at_the_same_rate() -> None:
    lag = SourceLag()
    for step in range(20):
        lag.update(0.1 * step, 100.0 * step, 5000.0 + 100.0 * step)
    assert lag.age == pytest.approx(5.0, rel=0.02)


def test_a_consumer_that_hears_nothing_for_long_is_sent_nothing_more() -> None:
    lag = SourceLag()
    for now in (0.0, 1.0, 1000.0):
        lag.update(now, 0.0, 100.0 + 10 * min(now, 1.0))
    assert lag.waiting == pytest.approx(110 + 300)
