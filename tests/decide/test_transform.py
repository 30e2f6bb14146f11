import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.transform import SCALES, Scale, create, nice, rt, rung, shares, slices, weight
from treadle.errors import ConfigError
from treadle.model import Floats
from treadle.values import Spacing, dense_rank

LIMITED = {
    "nice of a user": nice(low=0, high=19),
    "narrow nice": nice(low=5, high=5),
    "few shares": shares(low=512, high=2048),
    "low weights": weight(low=1, high=10),
    "narrow rt": rt(low=10, high=49),
    "narrow slices": slices(low=0.001, high=0.002),
    "one pool": rung(pools=1),
    "many pools": rung(pools=31),
}
EVERY = {**SCALES, **LIMITED}

spacings = st.sampled_from(("linear", "log"))
scales = st.sampled_from(sorted(EVERY)).map(EVERY.__getitem__)
edges = st.sampled_from([0.0, -0.0, 5e-324, 1e308, -1e308, 1.7976931348623157e308, math.inf, -math.inf, 1.0, -1.0])
ordinary = st.floats(allow_nan=False) | st.floats(1e-3, 1e6) | st.integers(-5, 5).map(float)
known = st.lists(ordinary | edges, min_size=1, max_size=12)
with_unknown = st.lists(ordinary | edges | st.just(math.nan), max_size=12)


def column(values: list[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def urgency(scale: Scale, result: Floats) -> Floats:
    return result if scale.rising else -result


@given(scales, spacings, known)
def test_a_more_urgent_row_never_gets_a_less_urgent_number(scale: Scale, spacing: Spacing, values: list[float]) -> None:
    priority = column(values)
    placed = urgency(scale, scale.apply(priority, spacing))
    in_order = placed[np.argsort(priority, kind="stable")]
    assert np.all(in_order[1:] >= in_order[:-1])


@given(scales, spacings, with_unknown)
def test_results_stay_within_the_limits(scale: Scale, spacing: Spacing, values: list[float]) -> None:
    result = scale.apply(column(values), spacing)
    inside = result[~np.isnan(result)]
    assert np.all((inside >= scale.low) & (inside <= scale.high))
    if scale.decimals == 0:
        assert np.array_equal(inside, np.rint(inside))


@given(scales, spacings, with_unknown)
def test_the_unknown_stays_unknown_and_changes_no_other(scale: Scale, spacing: Spacing, values: list[float]) -> None:
    priority = column(values)
    result = scale.apply(priority, spacing)
    gap = np.isnan(priority)
    assert np.array_equal(np.isnan(result), gap)
    assert np.array_equal(result[~gap], scale.apply(priority[~gap], spacing))


@given(scales, spacings, known)
def test_equal_priorities_get_equal_numbers(scale: Scale, spacing: Spacing, values: list[float]) -> None:
    twice = scale.apply(column(values + values), spacing)
    assert np.array_equal(twice[: len(values)], twice[len(values) :])


@given(scales, spacings, known, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(scale: Scale, spacing: Spacing, values: list[float], random: Random) -> None:
    order = random.sample(range(len(values)), len(values))
    priority = column(values)
    assert np.array_equal(scale.apply(priority, spacing)[order], scale.apply(priority[order], spacing))


@given(scales, spacings, ordinary | edges, st.integers(1, 5))
def test_rows_that_are_all_equal_get_the_default(scale: Scale, spacing: Spacing, value: float, count: int) -> None:
    if scale.neutral is not None:
        assert scale.apply(np.full(count, value), spacing).tolist() == [scale.neutral] * count


@given(scales, spacings, st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_infinities_are_at_the_ends(scale: Scale, spacing: Spacing, values: list[float]) -> None:
    if scale.neutral is None:
        return
    result = scale.apply(column([*values, math.inf, -math.inf]), spacing)
    ends = (scale.high, scale.low) if scale.rising else (scale.low, scale.high)
    assert tuple(result[-2:]) == ends


@given(spacings, with_unknown)
def test_ranks_keep_every_difference(spacing: Spacing, values: list[float]) -> None:
    priority = column(values)
    expected = dense_rank(priority[:, None])
    assert np.array_equal(SCALES["rank"].apply(priority, spacing), expected, equal_nan=True)


@given(spacings, with_unknown)
def test_thread_numbers_pass_as_they_are(spacing: Spacing, values: list[float]) -> None:
    assert np.array_equal(SCALES["owner"].apply(column(values), spacing), column(values), equal_nan=True)


@given(scales, spacings, known, known)
def test_engines_normalised_together_compare_after_the_split(
    scale: Scale, spacing: Spacing, flink: list[float], spark: list[float]
) -> None:
    together = urgency(scale, scale.apply(column(flink + spark), spacing))
    first, second = together[: len(flink)], together[len(flink) :]
    more = np.greater.outer(column(flink), column(spark))
    less = np.less.outer(column(flink), column(spark))
    assert np.all(np.greater_equal.outer(first, second)[more])
    assert np.all(np.less_equal.outer(first, second)[less])


def test_defaults_are_those_of_the_system() -> None:
    neutral = {name: scale.neutral for name, scale in SCALES.items()}
    assert neutral == {
        "unit": 0.5,
        "nice": 0.0,
        "shares": 1024,
        "weight": 100,
        "rt": 1,
        "slice": 0.003,
        "rank": None,
        "rung": 0.0,
        "owner": None,
    }
    assert nice(low=3, high=10).neutral == 3


def test_nothing_in_nothing_out() -> None:
    for scale in EVERY.values():
        assert scale.apply(np.empty(0)).tolist() == []


def test_linear_priorities_are_spread_evenly_over_the_nice_values() -> None:
    assert SCALES["nice"].apply(column([0, 50, 100, 75])).tolist() == [19, 0, -20, -10]


def test_logarithmic_priorities_stand_on_the_kernels_ladder() -> None:
    ladder = 1.25 ** np.arange(0.0, -40.0, -1.0)
    assert SCALES["nice"].apply(ladder, "log").tolist() == list(range(-20, 20))
    assert SCALES["nice"].apply(8 * ladder[[0, 3, 10]], "log").tolist() == [-20, -17, -10]


def test_ratios_too_wide_for_the_ladder_are_squeezed_into_it() -> None:
    assert SCALES["nice"].apply(column([1e6, 1e3, 1]), "log").tolist() == [-20, 0, 19]


def test_a_rate_of_zero_takes_the_bottom_and_leaves_the_ladder_to_the_others() -> None:
    assert SCALES["nice"].apply(column([0, 1.25, 1, -7]), "log").tolist() == [19, -20, -19, 19]


def test_an_infinite_rate_takes_the_step_above_the_others() -> None:
    assert SCALES["nice"].apply(column([math.inf, 1.25, 1]), "log").tolist() == [-20, -19, -18]


def test_priorities_without_a_positive_one_are_taken_linearly() -> None:
    assert SCALES["nice"].apply(column([-100, -50, 0]), "log").tolist() == [19, 0, -20]


def test_users_without_rights_never_go_below_zero() -> None:
    assert nice(low=0, high=19).apply(column([1, 2, 3])).tolist() == [19, 10, 0]


@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_twice_the_priority_gets_twice_the_share(spacing: Spacing) -> None:
    assert SCALES["shares"].apply(column([1, 2, 4]), spacing).tolist() == [512, 1024, 2048]
    assert SCALES["weight"].apply(column([10, 20, 40]), spacing).tolist() == [50, 100, 200]


@given(st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=8), spacings)
def test_shares_are_in_proportion_wherever_they_fit(values: list[float], spacing: Spacing) -> None:
    priority = column(values)
    if priority.min() < priority.max():
        result = SCALES["shares"].apply(priority, spacing)
        factor = result / priority
        assert factor.max() / factor.min() < 1.05


def test_proportion_moves_off_the_default_where_the_range_asks_for_it() -> None:
    assert shares(low=512, high=16384).apply(column([1, 8]), "log").tolist() == [512, 4096]


def test_shares_too_far_apart_are_squeezed_by_their_logarithms() -> None:
    result = SCALES["weight"].apply(column([1, 1e4, 1e8]))
    assert result.tolist() == [1, 100, 10000]


def test_no_queue_gets_the_least_share() -> None:
    assert SCALES["shares"].apply(column([0, 10, 20])).tolist() == [2, 724, 1448]


def test_negative_priorities_have_no_ratios_and_are_spread_over_the_shares() -> None:
    assert SCALES["weight"].apply(column([-1, 0, 1])).tolist() == [1, 5000, 10000]


def test_the_more_urgent_gets_the_shorter_slice() -> None:
    result = SCALES["slice"].apply(column([0, 1, 2]))
    assert result.tolist() == pytest.approx([0.1, 0.00316227766, 0.0001])


def test_rungs_follow_the_weights_of_their_pools() -> None:
    assert SCALES["rung"].apply(column([1, 2, 4, 8]), "log").tolist() == [2, 3, 4, 5]
    assert SCALES["rung"].apply(column([0, 100])).tolist() == [0, 5]


def test_real_time_priorities_use_the_whole_range() -> None:
    assert SCALES["rt"].apply(column([1, 2, 3])).tolist() == [1, 50, 99]


def test_the_largest_and_smallest_floats_are_told_apart() -> None:
    assert SCALES["unit"].apply(column([-1.7e308, 0, 1.7e308])).tolist() == [0, 0.5, 1]
    assert SCALES["unit"].apply(column([0, 5e-324])).tolist() == [0, 1]
    assert SCALES["unit"].apply(column([5e-324, 1, 1.7e308]), "log")[1] == pytest.approx(0.512, abs=0.001)


def test_infinities_stand_apart_from_finite_values() -> None:
    assert SCALES["unit"].apply(column([-math.inf, 3, math.inf])).tolist() == [0, 0.5, 1]
    low, high = SCALES["unit"].apply(column([-math.inf, 1, 2, math.inf]))[1:3]
    assert 0 < low < high < 1


@pytest.mark.parametrize("name", sorted(SCALES))
def test_a_scale_is_made_from_its_name(name: str) -> None:
    made = create(name)
    assert made == SCALES[name]
    assert made.name == name
    assert made.help


def test_a_scale_is_made_with_other_limits() -> None:
    made = create("nice: low=0, high=10")
    assert (made.low, made.high) == (0, 10)
    assert made.apply(column([1, 2])).tolist() == [10, 0]
    assert create("rung:pools=3").high == 2
    assert create("slice:high=0.01").high == 0.01


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("nicer", "unknown scale 'nicer' (known: unit, nice, shares, weight, rt, slice, rank, rung, owner)"),
        ("", "unknown scale ''"),
        ("nice:lowest=3", "unknown option 'lowest' (known: low, high)"),
        ("rank:low=3", "unknown option 'low' (it has no options)"),
        ("nice:low=", "option 'low' is '', which is not a number"),
        ("nice:low=cold", "option 'low' is 'cold', which is not a number"),
        ("nice:low=1,low=2", "option 'low' is given twice"),
        ("nice:low=1,", "unknown option ''"),
        ("nice:low=-21", "limits can't be -21..19 (use whole numbers from -20 to 19, the lower one first)"),
        ("nice:low=5,high=4", "limits can't be 5..4"),
        ("nice:low=0.5", "limits can't be 0.5..19"),
        ("nice:low=nan", "limits can't be nan..19"),
        ("weight:high=inf", "limits can't be 1..inf"),
        ("slice:low=0", "limits can't be 0..0.1 (use numbers from 0.0001 to 0.1"),
        ("rung:pools=0", "pools can't be 0 (use a whole number from 1 to 31)"),
        ("rung:pools=2.5", "pools can't be 2.5"),
    ],
)
def test_a_wrong_scale_is_refused_with_the_remedy(spec: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(spec)
    assert says in str(caught.value)
