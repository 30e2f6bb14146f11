"""Scales at the ends of their ranges, and the numbers that their formulas give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.transform import (
    BEYOND,
    NICE_STEP,
    SCALES,
    Scale,
    create,
    nice,
    nice_of_shares,
    rt,
    rung,
    shares,
    slices,
    weight,
)
from treadle.errors import ConfigError
from treadle.values import Spacing


def applied(scale: Scale, values: list[float], spacing: Spacing = "linear") -> list[float]:
    result: list[float] = scale.apply(np.array(values, dtype=np.float64), spacing).tolist()
    return result


def steps(*exponents: float) -> list[float]:
    """Priorities this many steps of nice above 1."""
    return [NICE_STEP**exponent for exponent in exponents]


def test_as_shares_a_priority_of_one_is_nice_zero_and_each_step_is_a_quarter_more_cpu() -> None:
    assert applied(nice_of_shares(), steps(3, 1, 0, -1, -10)) == [-3, -1, 0, 1, 10]
    assert applied(nice_of_shares(), [2.0, 1.0, 0.5]) == [-3, 0, 3]


def test_as_shares_all_are_shifted_by_no_more_than_one_that_would_leave_the_range() -> None:
    assert applied(nice_of_shares(), steps(25, 20)) == [-20, -15]
    assert applied(nice_of_shares(), steps(-25, -20)) == [19, 14]
    assert applied(nice_of_shares(low=0), steps(2, 1, 0)) == [0, 1, 2]
    assert applied(nice_of_shares(low=-5, high=5), steps(2, -8)) == [-5, 5]


def test_as_shares_ratios_wider_than_the_range_are_compressed_into_it() -> None:
    assert applied(nice_of_shares(), steps(39, 0)) == [-20, 19]
    assert applied(nice_of_shares(), steps(78, 39, 0)) == [-20, 0, 19]
    assert applied(nice_of_shares(low=-4, high=4), steps(20, 10, 0)) == [-4, 0, 4]


def test_as_shares_nothing_and_without_end_are_at_the_ends_and_shift_no_other() -> None:
    assert applied(nice_of_shares(), [0.0, 1.0, NICE_STEP, math.inf]) == [19, 0, -1, -20]
    assert applied(nice_of_shares(), [0.0, math.inf]) == [19, -20]


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8))
def test_as_shares_twice_the_priority_is_twice_the_cpu_wherever_the_range_allows(values: list[float]) -> None:
    ratio = max(values) / min(values)
    if min(values) < max(values) and ratio < NICE_STEP**38:
        given_cpu = NICE_STEP ** -np.array(applied(nice_of_shares(), values))
        share = given_cpu / np.array(values)
        assert share.max() / share.min() <= NICE_STEP * 1.001


@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_as_shares_the_spacing_does_not_matter(spacing: Spacing) -> None:
    assert applied(nice_of_shares(), [1.0, 4.0], spacing) == [0, -6]


@pytest.mark.parametrize(
    ("scale", "neutral"),
    [
        (nice(-20, -5), -5),
        (nice(5, 10), 5),
        (shares(low=2048), 2048),
        (shares(high=512), 512),
        (weight(low=200), 200),
        (weight(high=50), 50),
        (rt(low=10), 10),
        (slices(low=0.005), 0.005),
        (slices(high=0.002), 0.002),
        (rung(4), 0),
    ],
)
def test_the_neutral_number_is_the_systems_default_or_the_limit_next_to_it(scale: Scale, neutral: float) -> None:
    assert scale.neutral == neutral
    assert applied(scale, [7.0, 7.0]) == [neutral, neutral]


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ("nice", -20, 19),
        ("shares", 2, 262144),
        ("weight", 1, 10000),
        ("rt", 1, 99),
        ("rt:low=0", 0, 99),
        ("slice", 0.0001, 0.1),
        ("rung", 0, 5),
        ("rung:pools=31", 0, 30),
        ("rung:pools=1", 0, 0),
        ("unit", 0, 1),
        ("rank", 0, math.inf),
        ("owner", -math.inf, math.inf),
    ],
)
def test_the_ranges_are_those_of_the_kernel(spec: str, low: float, high: float) -> None:
    scale = create(spec)
    assert (scale.low, scale.high) == (low, high)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "nice:high=20",
            "scale 'nice': limits can't be -20..20 (use whole numbers from -20 to 19, the lower one first)",
        ),
        ("nice:high=1.5", "scale 'nice': limits can't be -20..1.5 (use whole numbers"),
        ("rt:low=-1", "scale 'rt': limits can't be -1..99 (use whole numbers from 0 to 99, the lower one first)"),
        ("rt:high=100", "scale 'rt': limits can't be 1..100"),
        ("shares:low=1", "scale 'shares': limits can't be 1..262144 (use whole numbers from 2 to 262144"),
        ("shares:high=262145", "scale 'shares': limits can't be 2..262145"),
        ("weight:low=0", "scale 'weight': limits can't be 0..10000 (use whole numbers from 1 to 10000"),
        ("weight:high=10001", "scale 'weight': limits can't be 1..10001"),
        ("slice:high=0.2", "scale 'slice': limits can't be 0.0001..0.2 (use numbers from 0.0001 to 0.1, the lower"),
        ("rung:pools=32", "scale 'rung': pools can't be 32 (use a whole number from 1 to 31)"),
        ("rank:low=3", "scale 'rank:low=3': unknown option 'low' (it has no options)"),
        ("nice:low=x", "scale 'nice:low=x': option 'low' is 'x', which is not a number (write it as low=5)"),
        ("nice:low=1=2", "scale 'nice:low=1=2': option 'low' is '1=2', which is not a number"),
        ("nice:low=1,low=2", "scale 'nice:low=1,low=2': option 'low' is given twice (give it once)"),
        ("nicer:", "scale 'nicer:': unknown scale 'nicer' (known: unit, nice, "),
    ],
)
def test_what_is_just_beyond_a_range_is_refused_with_the_range(spec: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(spec)
    assert str(caught.value).startswith(says)


def test_spaces_around_names_and_options_do_not_matter() -> None:
    assert create(" nice : low = 0 , high = 10 ") == nice(0, 10)
    assert create("rank: ") == SCALES["rank"]


@given(st.sampled_from(sorted(SCALES)), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_no_number_is_a_negative_zero(name: str, values: list[float]) -> None:
    result = SCALES[name].apply(np.array(values))
    assert not np.signbit(result[result == 0]).any()


def test_a_number_just_below_zero_is_rounded_to_zero_without_a_sign() -> None:
    (number,) = SCALES["nice"].apply(np.array([0.0, 1.0, 0.498]))[2:]
    assert math.copysign(1.0, number) == 1.0
    assert number == 0.0


def test_infinite_priorities_are_a_tenth_of_the_spread_beyond_the_finite_ones() -> None:
    unit, b = SCALES["unit"], BEYOND
    assert applied(unit, [-math.inf, 10, 15, 20, math.inf]) == pytest.approx(
        [0, b / (1 + 2 * b), (0.5 + b) / (1 + 2 * b), (1 + b) / (1 + 2 * b), 1]
    )
    assert applied(unit, [10, 20, math.inf]) == pytest.approx([0, 1 / (1 + b), 1])
    assert applied(unit, [-math.inf, 10, 20]) == pytest.approx([0, b / (1 + b), 1])
    assert applied(unit, [10, math.inf]) == [0, 1]
    assert applied(unit, [-math.inf, 10]) == [0, 1]


def test_logarithms_are_spread_evenly_by_log_spacing() -> None:
    unit = SCALES["unit"]
    assert applied(unit, [1, 10, 100], "log") == pytest.approx([0, 0.5, 1])
    assert applied(unit, [0, 10, 100, 1000], "log") == pytest.approx([0, 0.1 / 1.1, 0.6 / 1.1, 1])
    assert applied(unit, [-1.0, 0.0], "log") == [0, 1]
    assert applied(create("rt"), [1, 10, 100], "log") == [1, 50, 99]
    assert applied(create("slice"), [1, 10, 100], "log") == pytest.approx([0.1, 0.00316227766, 0.0001])


def test_slices_are_whole_nanoseconds() -> None:
    assert applied(create("slice"), [0, 1, 2])[1] == 0.003162278
    assert applied(slices(0.001, 0.01), [0, 1, 2]) == [0.01, 0.003162278, 0.001]


def test_only_the_infinite_and_the_zero_leave_the_ladder_to_the_ratios_of_the_others() -> None:
    """39 steps fit from -20 to 19. An infinite priority takes one of them."""
    ladder = SCALES["nice"]
    assert applied(ladder, [math.inf, *steps(38, 0)], "log") == [-20, -19, 19]
    assert applied(ladder, [math.inf, *steps(60, 30, 0)], "log")[0] == -20
    assert applied(ladder, [math.inf, *steps(60, 30, 0)], "log")[3] == 19
    assert applied(ladder, [0.0, *steps(39, 1, 0)], "log") == [19, -20, 18, 19]
    assert applied(ladder, [math.inf, 0.0], "log") == [-20, 19]


def test_nice_within_limits_has_the_most_urgent_at_the_lower_one() -> None:
    assert applied(nice(-5, 5), steps(3, 1, 0), "log") == [-5, -3, -2]
    assert applied(nice(-5, 5), [0, 1, 2]) == [5, 0, -5]
    assert applied(rt(10, 20), [0, 1, 2]) == [10, 15, 20]
    assert applied(rung(5), [1, 2, 4], "log") == [2, 3, 4]
    assert applied(rung(5), [0, 1, 2]) == [0, 2, 4]


def test_shares_are_shifted_to_whichever_limit_is_near() -> None:
    assert applied(shares(high=2048), [1, 8]) == [256, 2048]
    assert applied(shares(low=512), [1, 8]) == [512, 4096]
    assert applied(weight(low=10, high=1000), [1, 100]) == [10, 1000]
    assert applied(weight(low=10, high=1000), [1, 10, 1000]) == pytest.approx([10, 46, 1000])


def test_shares_of_zero_and_negative_priorities() -> None:
    weights = create("weight")
    assert applied(weights, [0, 1, 4]) == [1, 50, 200]
    assert applied(weights, [-1, 1, 4], "log") == [1, 50, 200]
    assert applied(weights, [-2, 0, 2], "linear") == [1, 5000, 10000]
    assert applied(weights, [-1, 0], "log") == [1, 10000]
    assert applied(weights, [0, math.inf]) == [1, 10000]


def test_ranks_and_thread_numbers() -> None:
    ranks = applied(create("rank"), [7.0, math.nan, -1.0, 7.0, math.inf])
    assert ranks == pytest.approx([1, math.nan, 0, 1, 2], nan_ok=True)
    assert applied(create("owner"), [7.0, -1.5]) == [7.0, -1.5]


def test_limits_may_leave_a_single_number() -> None:
    assert applied(nice(5, 5), [1, 2]) == [5, 5]
    assert applied(weight(10, 10), [1, 2]) == [10, 10]
    assert (nice_of_shares(-4, 4).low, nice_of_shares(-4, 4).high) == (-4, 4)


def test_unknown_rows_beside_equal_ones_stay_unknown() -> None:
    assert applied(SCALES["nice"], [math.nan, 3, 3]) == pytest.approx([math.nan, 0, 0], nan_ok=True)
    assert applied(SCALES["nice"], [math.nan, math.nan]) == pytest.approx([math.nan] * 2, nan_ok=True)
