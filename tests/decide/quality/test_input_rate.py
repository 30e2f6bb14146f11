"""The window over which the input rate of a source is known."""

from __future__ import annotations

from treadle.decide.quality import InputRate
from treadle.decide.quality.rates import Rate


def test_the_rate_is_since_the_latest_sample_that_is_a_window_old() -> None:
    rate = InputRate(window=2.0)
    found = [rate.update(float(time), taken, 0.0) for time, taken in enumerate((0.0, 10.0, 40.0, 50.0, 50.0))]
    assert found == [None, Rate(10.0, 10.0), Rate(20.0, 20.0), Rate(20.0, 20.0), Rate(5.0, 5.0)]


def test_samples_older_than_the_window_are_forgotten_but_for_one() -> None:
    rate = InputRate(window=2.0)
    rate.update(0.0, 0.0, 0.0)
    rate.update(1.0, 100.0, 0.0)
    assert rate.update(11.0, 120.0, 30.0) == Rate(5.0, 2.0)
    assert rate.update(21.0, 120.0, 30.0) == Rate(0.0, 0.0)


def test_the_window_is_five_seconds_unless_another_is_given() -> None:
    rate = InputRate()
    rate.update(0.0, 0.0, 0.0)
    rate.update(1.0, 100.0, 0.0)
    assert rate.update(6.0, 110.0, 0.0) == Rate(2.0, 2.0)


def test_a_source_that_takes_nothing_has_a_rate_and_a_clock_that_stands_still_has_none() -> None:
    rate = InputRate()
    rate.update(0.0, 5.0, 0.0)
    assert rate.update(2.0, 5.0, 1.0) == Rate(0.5, 0.0)
    assert rate.update(2.0, 6.0, 1.0) is None
    assert rate.update(1.0, 7.0, 1.0) is None
    assert rate.update(3.0, 9.0, 0.0) == Rate(0.5, 1.0)


def test_rows_that_vanish_from_the_queue_are_no_negative_rate() -> None:
    rate = InputRate()
    rate.update(0.0, 0.0, 10.0)
    assert rate.update(1.0, 2.0, 0.0) == Rate(0.0, 2.0)
