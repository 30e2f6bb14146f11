"""Each operator of VoipStream on a few calls, with results that are worked out here."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.workloads.voip_stream import reference
from treadle.workloads.voip_stream.parameters import FAST, SLOW, Decay
from treadle.workloads.voip_stream.reference import Call, Counter, Row, Value
from workloads.voip_stream.calls import SECOND, call, line, number, traffic

QUICK, SLOWLY = math.log(1 / 0.9672), math.log(1 / 0.9917)
"""What one unit adds to a counter."""


def values(rows: list[Value]) -> dict[int, float]:
    return {row.id: row.value for row in rows}


def value(place: int, amount: float) -> Value:
    return Value(place, number(0), SECOND, amount)


class TestParser:
    def test_a_line_becomes_a_call_at_its_second_since_1970(self) -> None:
        [parsed] = reference.parser(["48213075561,90377421806,2021-03-02T10:15:42.123+0100,31542,true"])
        # 18,688 days from 1970-01-01 to 2021-03-02, and 9:15:42 in UTC.
        at = 18_688 * 86_400 + 9 * 3_600 + 15 * 60 + 42
        assert parsed == Call(0, 48_213_075_561, 90_377_421_806, at, 31_542, True, False, -1.0)

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "48213075561,90377421806,2021-03-02T10:15:42.123+0100,31542",
            "48213075561,90377421806,2021-02-30T10:15:42.123+0100,31542,true",
            "48213075561,90377421806,2021-03-02T10:15:42.123+0100,-5,true",
            "48213075561,90377421806,2021-03-02T10:15:42.123+0100,31542,yes",
            "8213075561,90377421806,2021-03-02T10:15:42.123+0100,31542,true",
        ],
    )
    def test_other_lines_are_left_out_but_counted(self, wrong: str) -> None:
        assert reference.parser([wrong, line(1, 2, 7)]) == [call(1, 1, 2, 7)]


class TestDispatcher:
    def test_a_pair_is_new_at_first_and_again_after_more_than_60_seconds_without_a_call(self) -> None:
        times = [0, 60, 120, 181]
        marked = reference.dispatcher([call(place, 1, 2, at) for place, at in enumerate(times)])
        assert [each.new_callee for each in marked] == [True, False, False, True]

    def test_the_way_back_is_another_pair(self) -> None:
        marked = reference.dispatcher([call(0, 1, 2, 0), call(1, 2, 1, 1), call(2, 1, 3, 1)])
        assert [each.new_callee for each in marked] == [True, True, True]

    def test_times_never_go_back(self) -> None:
        marked = reference.dispatcher([call(0, 1, 2, 10), call(1, 1, 3, 9), call(2, 1, 4, 12)])
        assert [each.answer_ts - SECOND for each in marked] == [10, 10, 12]

    def test_a_recording_that_begins_again_goes_on_in_time_with_new_pairs(self) -> None:
        marked = reference.dispatcher([call(place, 1, 2, at) for place, at in enumerate([0, 5, 20, 0, 5, 20])])
        assert [each.answer_ts - SECOND for each in marked] == [0, 5, 20, 20, 25, 40]
        assert [each.new_callee for each in marked] == [True, False, False, True, False, False]


class TestCounters:
    def test_ct24_adds_durations_of_established_calls_to_new_callees(self) -> None:
        calls = [
            call(0, 1, 2, 0, 100)._replace(new_callee=True),
            call(1, 1, 2, 5, 900),
            call(2, 1, 3, 7, 900, established=False)._replace(new_callee=True),
            call(3, 1, 4, 10, 50)._replace(new_callee=True),
            call(4, 2, 4, 10, 30)._replace(new_callee=True),
        ]
        expected = {0: 100 * SLOWLY, 3: (100 * 0.9917**10 + 50) * SLOWLY, 4: 30 * SLOWLY}
        assert values(reference.ct24(calls)) == pytest.approx(expected)

    def test_ecr24_counts_established_calls_over_minutes(self) -> None:
        calls = [call(0, 1, 2, 0), call(1, 1, 3, 4, established=False), call(2, 1, 2, 100), call(3, 1, 2, 701)]
        expected = {0: SLOWLY, 2: (0.9917**100 + 1) * SLOWLY, 3: SLOWLY}
        assert values(reference.ecr24(calls)) == pytest.approx(expected)

    def test_ecr_counts_established_calls_and_forgets_them_after_150_seconds(self) -> None:
        calls = [call(0, 1, 2, 0), call(1, 1, 2, 150), call(2, 1, 2, 301)]
        assert values(reference.ecr(calls)) == pytest.approx({0: QUICK, 1: (0.9672**150 + 1) * QUICK, 2: QUICK})

    def test_encr_counts_established_calls_to_new_callees_only(self) -> None:
        calls = [
            call(0, 1, 2, 0)._replace(new_callee=True),
            call(1, 1, 2, 3),
            call(2, 1, 3, 6)._replace(new_callee=True),
        ]
        assert values(reference.encr(calls)) == pytest.approx({0: QUICK, 2: (0.9672**6 + 1) * QUICK})

    def test_rcr_is_the_rate_of_calls_that_the_caller_has_received(self) -> None:
        calls = [call(0, 1, 2, 0), call(1, 3, 2, 5), call(2, 3, 2, 5, established=False), call(3, 2, 1, 15)]
        copies = reference.pre_rcr(calls)
        assert [(copy.key, copy.received) for copy in copies[:2]] == [(number(1), False), (number(2), True)]
        assert len(copies) == 8
        # Number 2 has received a call 15 s and another 10 s ago when it makes one.
        expected = {0: 0.0, 1: 0.0, 3: (0.9672**15 + 0.9672**10) * QUICK}
        assert values(reference.rcr(copies)) == pytest.approx(expected)

    @pytest.mark.parametrize("decay", [FAST, SLOW])
    @given(st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1e5)), min_size=1, max_size=20))
    def test_a_counter_is_the_sum_of_what_was_added_each_decayed_since_then(
        self, decay: Decay, added: list[tuple[int, float]]
    ) -> None:
        counter, now, history = Counter(decay), 0, []
        for gap, quantity in added:
            now += gap
            history.append((now, quantity))
            counter.add(quantity, now)
        expected = math.fsum(quantity * decay.beta ** (now - at) for at, quantity in history) * decay.weight
        assert counter.estimate(now) == pytest.approx(expected)

    @given(st.floats(0.1, 2.0))
    def test_a_counter_approaches_the_rate_of_its_calls(self, rate: float) -> None:
        counter = Counter(FAST)
        for now in range(300):
            counter.add(rate, now)
        # The units of a second are added at once, so the value is above the rate by half a second's decay.
        assert counter.value == pytest.approx(rate, rel=0.02)


class TestAverage:
    def test_the_first_ten_calls_have_a_plain_mean_and_later_ones_weigh_alpha(self) -> None:
        calls = [call(place, 1, 2, place, duration) for place, duration in enumerate([*range(1, 11), 1_000])]
        averages = values(reference.global_acd(calls))
        assert (averages[0], averages[1], averages[9]) == pytest.approx((1.0, 1.5, 5.5))
        assert averages[10] == pytest.approx(5.5 + 2 / 86_401 * (1_000 - 5.5))

    def test_calls_that_were_not_established_count(self) -> None:
        calls = [call(0, 1, 2, 0, 10), call(1, 1, 2, 0, 20, established=False)]
        assert values(reference.global_acd(calls)) == {0: 10.0, 1: 15.0}


class TestScores:
    @pytest.mark.parametrize(
        ("talk", "rate", "average", "expected"),
        [
            (700.0, 1.0, 100.0, 0.4),  # 7 is at two fifths of the way from 5 to 10
            (400.0, 1.0, 100.0, 0.0),
            (2_000.0, 1.0, 100.0, 1.0),
            (0.0, 0.0, 0.0, 0.0),
            (1.0, 1.0, 0.0, 1.0),
        ],
    )
    def test_acd_compares_the_mean_duration_with_that_of_all(
        self, talk: float, rate: float, average: float, expected: float
    ) -> None:
        found = reference.acd([value(0, talk)], [value(0, rate)], [value(0, average)])
        assert values(found) == pytest.approx({0: expected})

    @pytest.mark.parametrize(
        ("new", "rate", "expected"), [(3.0, 4.0, 0.5), (1.0, 4.0, 0.0), (4.0, 4.0, 1.0), (0.0, 0.0, 0.0)]
    )
    def test_url_is_the_share_of_new_callees(self, new: float, rate: float, expected: float) -> None:
        assert values(reference.url([value(0, new)], [value(0, rate)])) == pytest.approx({0: expected})

    @pytest.mark.parametrize(
        ("made", "received", "expected"), [(6.0, 1.0, 0.5), (2.0, 1.0, 0.0), (3.0, 0.0, 1.0), (0.0, 0.0, 0.0)]
    )
    def test_fofir_compares_calls_made_with_calls_received(self, made: float, received: float, expected: float) -> None:
        assert values(reference.fofir([value(0, made)], [value(0, received)])) == pytest.approx({0: expected})

    def test_the_score_is_emitted_once_for_each_complete_triple(self) -> None:
        fofir, url, acd = [value(0, 0.5), value(1, 1.0)], [value(0, 0.25)], [value(0, 1.0), value(2, 1.0)]
        # 2 * 0.5 + 3 * 0.25 + 3 * 1
        assert reference.score(fofir, url, acd) == [Row(0, number(0), SECOND, 0.5, 0.25, 1.0, 4.75)]

    def test_two_calls_of_a_number_within_a_second_stay_apart(self) -> None:
        assert values(reference.url([value(0, 3.0), value(1, 4.0)], [value(1, 4.0), value(0, 4.0)])) == {0: 0.5, 1: 1.0}


class TestGraph:
    def test_a_first_call_has_full_marks_for_its_callee_and_none_for_its_duration(self) -> None:
        found = reference.run([line(1, 2, 0, 50), line(2, 1, 1, 50, established=False)])
        # Nothing received: FoFiR 1. All callees new: URL 1. As long as the average: 1 is below 5.
        assert found == {"score": [Row(0, number(1), SECOND, 1.0, 1.0, 0.0, 5.0)]}

    def test_repeated_calls_have_no_score(self) -> None:
        found = reference.run([line(1, 2, 0), line(1, 2, 30), line(1, 3, 31)])["score"]
        assert [row.id for row in found] == [0, 2]
        assert found[1].url == pytest.approx(((0.9672**31 + 1) / (0.9672**31 + 0.9672 + 1) - 0.5) / 0.5)

    @given(st.integers(0, 1_000))
    def test_scores_are_between_0_and_8_and_in_the_order_of_the_input(self, seed: int) -> None:
        found = reference.run(traffic(100, seed))["score"]
        assert [row.id for row in found] == sorted({row.id for row in found})
        for row in found:
            assert row.score == pytest.approx(2 * row.fofir + 3 * row.url + 3 * row.acd)
            assert all(0 <= part <= 1 for part in (row.fofir, row.url, row.acd))
