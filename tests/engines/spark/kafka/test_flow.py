"""What goes through an application, told from counts that come late: a task that has enough to do asks for no more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.kafka.consumers import Consumer, Key
from treadle.engines.spark.kafka.flow import FADES, LONGEST, QUIET, Flow
from treadle.engines.spark.threads.sockets import Traffic

A: Key = (1, "a")
B: Key = (1, "b")
OUT: Key = (1, "producer-1")


def consumer(consumed: float, lag: float = 0.0, received: int = 0) -> Consumer:
    return Consumer(lag, consumed, Traffic(0, received))


def test_nothing_is_known_of_an_application_without_consumers() -> None:
    flow = Flow()
    flow.update(0.0, {}, {OUT: 5.0}, 1.0)
    flow.update(1.0, {A: consumer(math.nan)}, {OUT: 9.0}, 1.0)
    assert math.isnan(flow.rate)
    assert math.isnan(flow.waiting)


def test_what_was_taken_and_has_not_left_waits_inside() -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(100.0, lag=5.0), B: consumer(0.0)}, {OUT: 100.0}, 1.0)
    assert flow.waiting == 5.0
    assert math.isnan(flow.rate)
    flow.update(2.0, {A: consumer(160.0), B: consumer(40.0)}, {OUT: 130.0}, 1.0)
    assert flow.waiting == 5.0 + 55.0 + 40.0 - 30.0
    assert flow.rate == 15.0


def test_rows_are_those_that_come_whatever_becomes_of_them() -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 0.25)
    flow.update(1.0, {A: consumer(100.0)}, {OUT: 20.0}, 0.25)
    assert flow.rate == 80.0
    assert flow.waiting == pytest.approx(20.0)


@pytest.mark.parametrize(("sent", "selectivity"), [({}, 1.0), ({OUT: 50.0}, math.nan), ({OUT: 50.0}, 0.0)])
def test_where_it_is_not_known_what_leaves_what_was_taken_is_done_with(
    sent: dict[Key, float], selectivity: float
) -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {}, selectivity)
    flow.update(1.0, {A: consumer(100.0, lag=7.0)}, sent, selectivity)
    assert (flow.rate, flow.waiting) == (100.0, 7.0)


def test_records_that_are_handed_out_one_by_one_and_counted_late_are_not_forgotten() -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 1.0)
    for second, lag, sent in ((1, 900.0, 50.0), (2, 600.0, 200.0), (3, 0.0, 500.0)):
        flow.update(second, {A: consumer(100.0, lag=lag)}, {OUT: sent}, 1.0)
        assert flow._known == 1000.0 - sent


def steady(flow: Flow, until: int) -> None:
    for second in range(until + 1):
        flow.update(second, {A: consumer(100.0 * second, received=second)}, {OUT: 100.0 * second}, 1.0)
    assert flow.waiting == 0.0


def test_a_task_that_can_not_get_rid_of_its_rows_hears_of_no_new_ones() -> None:
    flow = Flow()
    steady(flow, 4)
    flow.update(7.0, {A: consumer(400.0, received=4)}, {OUT: 400.0}, 1.0)
    assert flow.waiting == 300.0
    flow.update(8.0, {A: consumer(400.0, lag=400.0, received=8)}, {OUT: 400.0}, 1.0)
    assert flow.waiting == 400.0


def test_a_consumer_that_is_left_over_from_a_query_that_ended_expects_nothing() -> None:
    flow = Flow()
    steady(flow, 4)
    for second, waiting in ((5.0, 30.0), (6.0 + LONGEST, 0.0)):
        flow.update(second, {A: consumer(400.0, lag=30.0, received=5)}, {OUT: 400.0}, 1.0)
        assert flow.waiting == waiting


def test_no_rows_are_expected_where_it_asks_and_none_come() -> None:
    """Also while it has some left."""
    flow = Flow()
    steady(flow, 4)
    flow.update(5.0, {A: consumer(400.0, lag=50.0, received=5)}, {OUT: 400.0}, 1.0)
    for second in range(6, 12):
        flow.update(second, {A: consumer(400.0, lag=50.0, received=second)}, {OUT: 400.0}, 1.0)
        assert (flow.rate, flow.waiting) == (0.0, 50.0)


def test_when_all_stands_still_nothing_is_inside() -> None:
    """Rows that a join or an aggregate keeps do not leave; nor does what a selectivity of another hour expects."""
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 1.0)
    for second, inside in ((1, 10.0), (2, 10.0), (2 + QUIET, 0.0)):
        flow.update(second, {A: consumer(100.0, received=int(second))}, {OUT: 90.0}, 1.0)
        assert flow.waiting == inside


def test_rows_are_inside_still_where_nothing_moves_because_nobody_runs() -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 1.0)
    for second in (1, 2, 3, 4, 5, 8, 15):
        flow.update(second, {A: consumer(100.0)}, {OUT: 10.0}, 1.0)
        assert flow._known == 90.0


def test_what_an_inexact_selectivity_adds_fades() -> None:
    flow = Flow()
    for second in range(2000):
        flow.update(second, {A: consumer(100.0 * second)}, {OUT: 50.0 * second}, 0.51)
    assert 0.0 < flow.waiting < 0.02 * 100.0 * FADES


def test_with_a_consumer_that_comes_or_goes_the_count_begins_anew() -> None:
    flow = Flow()
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 1.0)
    flow.update(1.0, {A: consumer(100.0)}, {OUT: 20.0}, 1.0)
    flow.update(2.0, {A: consumer(100.0, received=2), B: consumer(5000.0, lag=3.0)}, {OUT: 20.0}, 1.0)
    assert flow.waiting == 3.0
    flow.update(3.0, {B: consumer(5010.0, lag=3.0)}, {OUT: 20.0}, 1.0)
    assert flow.waiting == 3.0


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500), st.integers(0, 500)), max_size=40))
def test_waits_what_came_and_did_not_leave(steps: list[tuple[int, int, int]]) -> None:
    """Whoever takes and sends how many, as long as it is told at once and something moves."""
    flow = Flow()
    came = taken = sent = 0
    flow.update(0.0, {A: consumer(0.0)}, {OUT: 0.0}, 1.0)
    for second, (new, most_taken, most_sent) in enumerate(steps, start=1):
        came += new
        taken = min(came, taken + most_taken)
        sent = min(taken, sent + most_sent)
        flow.update(second, {A: consumer(float(taken), lag=float(came - taken))}, {OUT: float(sent)}, 1.0)
        assert flow.waiting == came - sent
