"""An accuracy of a user's own: what it says of a result is true, and the least part of the rows for it is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality import Kept, least_part, relative_error
from treadle.errors import ConfigError
from treadle.estimates import total

parts = st.floats(0.01, 1.0)
spreads = st.floats(1.0, 100.0)
rates = st.floats(1.0, 1e5)


@given(parts, parts, rates, spreads)
def test_the_more_is_kept_the_better_the_sum_is_known(one: float, other: float, rate: float, spread: float) -> None:
    measure = relative_error(window=10)
    low, high = sorted((one, other))
    assert 0.0 <= measure(Kept(low, rate, spread)) <= measure(Kept(high, rate, spread)) <= 1.0


@given(st.floats(0.01, 0.999), rates, spreads)
def test_the_least_part_gives_the_accuracy_and_hardly_less_does_not(minimum: float, rate: float, spread: float) -> None:
    measure, kept = relative_error(window=10), Kept(1.0, rate, spread)
    part = least_part(measure, minimum, kept)
    assert measure(kept._replace(part=part)) >= minimum
    assert part < 1e-6 or measure(kept._replace(part=0.999 * part)) < minimum


def test_where_no_part_is_enough_everything_is() -> None:
    assert least_part(lambda kept: 0.5 * kept.part, 0.9, Kept(1.0, 10.0, 1.0)) == 1.0
    assert least_part(relative_error(), 0.9, Kept(1.0, 0.0, 1.0)) == 1.0
    assert least_part(lambda kept: kept.part, 0.25, Kept(1.0, 10.0, 1.0)) == pytest.approx(0.25)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.8])
def test_what_it_says_of_a_sum_is_what_the_estimate_from_the_kept_rows_says(part: float) -> None:
    random = np.random.default_rng(1)
    values = random.lognormal(0.0, 1.0, 50_000)
    kept = values[random.random(len(values)) < part]
    spread = float((values**2).mean() / values.mean() ** 2)
    said = 1.0 - relative_error(window=10)(Kept(part, len(values) / 10, spread))
    assert total(np.full(len(kept), 1.0 / part), kept).relative_error == pytest.approx(said, rel=0.15)


def test_with_the_least_part_the_sum_is_as_right_as_promised_in_95_of_100_cases() -> None:
    random = np.random.default_rng(2)
    values = random.exponential(1.0, 20_000)
    spread = float((values**2).mean() / values.mean() ** 2)
    part = least_part(relative_error(window=1), 0.95, Kept(1.0, len(values), spread))
    errors = []
    for _ in range(400):
        kept = values[random.random(len(values)) < part]
        errors.append(abs(kept.sum() / part - values.sum()) / values.sum())
    assert 0.92 <= float(np.mean(np.array(errors) <= 0.05)) <= 0.98


def test_a_window_must_be_a_time() -> None:
    with pytest.raises(ConfigError, match="the window"):
        relative_error("amount", window="soon")
