"""The generated call records have the format and the statistics of the specification."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from treadle.workloads.voip_stream import records, reference


def columns(lines: list[str]) -> list[list[str]]:
    return [list(column) for column in zip(*(line.split(",") for line in lines), strict=True)]


def test_all_lines_and_the_example_of_the_specification_have_the_format_of_a_call() -> None:
    example = "48213075561,90377421806,2021-03-02T10:15:42.123+0100,31542,true"
    assert re.fullmatch(records.CALL, example)
    assert all(re.fullmatch(records.CALL, line) for line in records.lines(2_000, pool=5_000))


def test_the_same_seed_gives_the_same_lines_and_another_seed_others() -> None:
    first = records.lines(100, seed=3, pool=1_000)
    assert first == records.lines(100, seed=3, pool=1_000)
    assert first != records.lines(100, seed=4, pool=1_000)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_lines_can_be_made(count: int) -> None:
    assert len(records.lines(count, pool=10)) == count


def test_nobody_calls_oneself_and_numbers_are_from_a_pool_of_the_given_size() -> None:
    calling, called, *_ = columns(records.lines(20_000, pool=50))
    assert all(caller != callee for caller, callee in zip(calling, called, strict=True))
    assert len({*calling, *called}) == 50


def test_answer_times_have_equal_distances_by_the_rate() -> None:
    answered = columns(records.lines(2_001, pool=100, rate=500))[2]
    assert answered[0] == "2021-03-02T10:00:00.000+0100"
    assert answered[1] == "2021-03-02T10:00:00.002+0100"
    assert answered[2_000] == "2021-03-02T10:00:04.000+0100"


def test_95_of_100_calls_are_established_and_durations_are_uniform_over_a_day() -> None:
    *_, durations, established = columns(records.lines(50_000, pool=10_000, telemarketers=0.0))
    assert established.count("true") / 50_000 == pytest.approx(0.95, abs=0.005)
    seconds = np.array(durations, dtype=np.int64)
    assert np.quantile(seconds, [0.25, 0.5, 0.75]) == pytest.approx([21_600, 43_200, 64_800], rel=0.03)
    assert seconds.min() >= 0
    assert seconds.max() < 86_400


def test_one_of_1000_numbers_makes_100_times_as_many_short_calls_each_to_another_number() -> None:
    calling, called, _, durations, _ = columns(records.lines(50_000, pool=10_000))
    calls = Counter(calling)
    sellers = {caller for caller, count in calls.items() if count > 100}
    assert len(sellers) == 10
    # 10 of 10,000 numbers count 100 times: 1,000 of 1,000 + 9,990 parts of all calls.
    assert sum(calls[caller] for caller in sellers) / 50_000 == pytest.approx(1_000 / 10_990, abs=0.005)
    sold = [(caller, callee) for caller, callee in zip(calling, called, strict=True) if caller in sellers]
    assert len(set(sold)) == len(sold)
    lengths = [int(length) for caller, length in zip(calling, durations, strict=True) if caller in sellers]
    assert max(lengths) < 60


def test_the_share_of_new_pairs_is_that_of_the_original_filters() -> None:
    calls = reference.dispatcher(reference.parser(records.lines(30_000, pool=1_000_000)))
    assert sum(call.new_callee for call in calls) / len(calls) == pytest.approx(0.955, abs=0.005)


def test_pairs_stay_new_when_a_list_is_replayed() -> None:
    played = records.lines(4_000, pool=100_000)
    calls = reference.dispatcher(reference.parser(played * 3))
    times = [call.answer_ts for call in calls]
    assert times == sorted(times)
    assert times[-1] - times[0] == 9  # a lap begins in the second in which the one before it has ended
    shares = [sum(call.new_callee for call in calls[lap : lap + 4_000]) / 4_000 for lap in (0, 4_000, 8_000)]
    assert shares == [shares[0]] * 3
