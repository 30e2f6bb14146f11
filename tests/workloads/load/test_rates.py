"""Rates: the integral and the times of rows agree exactly, whatever the rates are and however they change."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import ConfigError
from treadle.workloads.load.rates import (
    ROW,
    SECOND,
    Arrivals,
    Even,
    Poisson,
    Rate,
    Schedule,
    bursty,
    constant,
    from_json,
    stepped,
    trace,
)

PER_SECOND = st.one_of(st.just(0.0), st.floats(0.0, 5.0), st.floats(0.0, 2000.0))
SECONDS = st.floats(1e-3, 20.0)
STEPS = st.lists(st.tuples(SECONDS, PER_SECOND), min_size=1, max_size=6)
TIMES = st.integers(0, 30 * SECOND)


def as_trace(steps: list[tuple[float, float]]) -> Rate:
    ends = list(np.cumsum([seconds for seconds, _ in steps]))
    points = zip([0.0, *ends], (rate for _, rate in steps), strict=False)
    return trace([(float(time), rate) for time, rate in points], period=float(ends[-1]))


REPEATED = st.one_of(st.builds(bursty, PER_SECOND, SECONDS, SECONDS), st.builds(as_trace, STEPS))
RATES = st.one_of(st.builds(constant, PER_SECOND), st.builds(stepped, STEPS), REPEATED)


ANY = st.one_of(st.builds(Even), st.builds(Poisson, st.integers(0, 9)))


@st.composite
def schedules(draw: st.DrawFn, arrivals: st.SearchStrategy[Arrivals] = ANY) -> Schedule:
    schedule = Schedule(draw(RATES), draw(arrivals))
    for at in sorted(draw(st.lists(TIMES, max_size=4))):
        schedule.change(at, draw(RATES))
    return schedule


@given(RATES, TIMES, TIMES, TIMES)
def test_intervals_add_up_and_are_never_negative(rate: Rate, a: int, b: int, c: int) -> None:
    start, middle, end = sorted((a, b, c))
    parts = [rate.due(middle) - rate.due(start), rate.due(end) - rate.due(middle)]
    assert sum(parts) == rate.due(end) - rate.due(start)
    assert min(parts) >= 0
    most = max(each for _, each in rate.steps)
    assert parts[0] <= most * (middle - start)


@given(REPEATED, TIMES, st.integers(1, 1000))
def test_whole_periods_have_the_mean_rate_wherever_they_begin(rate: Rate, start: int, periods: int) -> None:
    period = sum(length for length, _ in rate.steps)
    due = rate.due(start + periods * period) - rate.due(start)
    assert due == periods * sum(length * each for length, each in rate.steps)
    assert due / ROW == pytest.approx(rate.mean * periods * period / SECOND)


@given(schedules(st.builds(Even)), TIMES, TIMES)
def test_even_rows_differ_from_the_integral_by_less_than_one(schedule: Schedule, a: int, b: int) -> None:
    start, end = sorted((a, b))
    rows = schedule.rows(end) - schedule.rows(start)
    assert abs(rows - Fraction(schedule.due(end) - schedule.due(start), ROW)) < 1


@given(schedules(), TIMES)
def test_a_row_counts_from_the_microsecond_at_which_it_is_due(schedule: Schedule, until: int) -> None:
    rows = schedule.rows(until)
    first = max(0, rows - 200)
    times = schedule.times(first, rows - first).tolist()
    assert times == sorted(times)
    assert all(0 < time <= until for time in times)
    for number, time in enumerate(times, first):
        assert schedule.rows(time - 1) <= number < schedule.rows(time)


@given(schedules(), TIMES, st.lists(st.integers(1, 5000), max_size=8))
def test_times_do_not_depend_on_how_many_are_asked_for_at_once(
    schedule: Schedule, until: int, counts: list[int]
) -> None:
    rows = schedule.rows(until)
    whole = schedule.times(0, rows).tolist()
    parts: list[int] = []
    for count in counts:
        parts += schedule.times(len(parts), min(count, rows - len(parts))).tolist()
    assert parts == whole[: len(parts)]


def test_bursts_are_on_and_off() -> None:
    rate = bursty(100.0, on=2.0, off=4.0)
    assert [rate.due(second * SECOND) // ROW for second in (0, 1, 2, 5, 6, 7, 12)] == [0, 100, 200, 200, 200, 300, 400]
    # The last row of a burst is due at its end, and the next one 10 ms after the next burst has begun.
    assert Schedule(rate, Even()).times(199, 2).tolist() == [2_000_000, 6_010_000]


def test_steps_follow_one_another_and_the_last_one_stays() -> None:
    schedule = Schedule(stepped([(1.0, 2.0), (2.0, 0.0), (1.0, 4.0)]), Even())
    # Two rows in the first second, none in the next two, then one in each quarter of a second for ever.
    assert schedule.times(0, 8).tolist() == [500_000, 1_000_000] + [3_000_000 + 250_000 * k for k in range(1, 7)]


def test_a_trace_is_repeated_and_its_last_rate_holds_as_long_as_the_one_before() -> None:
    rate = trace([(7.0, 1.0), (9.0, 3.0)])
    assert rate.steps == ((2_000_000, 1000), (2_000_000, 3000))
    assert rate.mean == 2.0
    assert [rate.due(second * SECOND) // ROW for second in (2, 4, 6, 8)] == [2, 8, 10, 16]


def test_another_rate_takes_over_what_is_due_of_a_row() -> None:
    schedule = Schedule(constant(1.0), Even())
    schedule.change(1_500_000, constant(10.0))
    # At 1.5 s half of the second row is due; the other half takes 50 ms at 10 rows/s.
    assert schedule.times(0, 3).tolist() == [1_000_000, 1_550_000, 1_650_000]


def test_time_stays_exact_after_years() -> None:
    schedule = Schedule(constant(200_000.0), Even())
    row = 200_000 * 100_000_000  # after three years
    assert schedule.times(row - 1, 3).tolist() == [10**14, 10**14 + 5, 10**14 + 10]


def test_poisson_arrivals_have_the_rate_and_its_variance() -> None:
    rows = 40_000
    times = Schedule(bursty(1000.0, 0.5, 0.5), Poisson(3)).times(0, rows)
    distances = np.diff(times % SECOND)[np.diff(times) < SECOND / 4]
    assert times[-1] / SECOND == pytest.approx(rows / 500.0, rel=0.05)
    assert distances.mean() == pytest.approx(1000.0, rel=0.05)
    assert distances.std() == pytest.approx(1000.0, rel=0.05)


def test_poisson_arrivals_are_those_of_their_seed() -> None:
    one, same, other = (Schedule(constant(10.0), Poisson(seed)).times(0, 50).tolist() for seed in (1, 1, 2))
    assert one == same != other


def test_a_rate_survives_json() -> None:
    rate = bursty(12.5, 0.25, 1.5)
    assert from_json({"steps": [[250_000, 12_500], [1_500_000, 0]], "repeated": True}) == rate


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: constant(-1.0),
        lambda: constant(float("nan")),
        lambda: stepped([]),
        lambda: stepped([(0.0, 1.0)]),
        lambda: bursty(1.0, 1.0, -1.0),
        lambda: trace([(1.0, 5.0)]),
        lambda: trace([], period=1.0),
        lambda: trace([(1.0, 5.0), (0.5, 5.0)], period=10.0),
    ],
)
def test_rates_without_sense_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(ConfigError):
        wrong()
