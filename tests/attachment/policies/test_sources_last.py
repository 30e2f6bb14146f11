"""Stages that read a source run after all others, where threads are scheduled by rates or ages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.attachment import plan
from treadle.attachment.policies.threads import SourcesLast
from treadle.decide.policies import CongestionAware, Fcfs, HighestRate, MultiClass
from treadle.decide.policy import Policy
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Schedule, Snapshot

NAN = float("nan")


def topology(*lengths: int, priorities: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Topology:
    """Queries a, b, c, each a line of so many stages; last the driver."""
    queries = [
        Query(name, tuple(Operator(f"{at}", (f"{at - 1}",) if at else ()) for at in range(length)), priority)
        for name, length, priority in zip("abc", lengths, priorities, strict=False)
    ]
    queries.append(Query("driver", (Operator("scheduler"),), max(priorities)))
    instances = [Instance(query.name, (each.name,), 0, "spark") for query in queries for each in query.operators]
    return Topology(tuple(queries), tuple(instances), 1)


def decide(policy: Policy, found: Topology, *, by_class: bool = False, **columns: list[float]) -> Schedule:
    arrays = {name: np.array([*values, NAN]) for name, values in columns.items()}
    return SourcesLast(policy, by_class=by_class).decide(Snapshot(found, 0.0, arrays))


def test_rates_count_by_their_order_and_sources_come_last() -> None:
    schedule = decide(HighestRate(), topology(2, 2), global_rate=[100.0, 1000.0, 1.0, 10.0])
    np.testing.assert_array_equal(schedule.scalar, [1.0, 3.0, 0.0, 2.0, NAN])
    assert schedule.spacing == "linear", "over the whole range of nice"
    assert schedule.reason.endswith("results per CPU second; sources last")


def test_the_oldest_row_in_kafka_waits_for_all_rows_inside() -> None:
    schedule = decide(Fcfs(), topology(2, 2), head_age=[60.0, 1.0, 9.0, 5.0], queue=[5.0] * 4)
    np.testing.assert_array_equal(schedule.scalar, [1.0, 2.0, 0.0, 3.0, NAN])


def test_what_hardly_differs_is_equally_urgent() -> None:
    schedule = decide(HighestRate(), topology(2, 2), global_rate=[100.0, 1e5, 101.0, 10.0])
    assert schedule.scalar[:4].tolist() == [0.0, 2.0, 0.0, 1.0]


def test_a_query_of_one_stage_is_done_with_its_rows_and_no_source_for_others() -> None:
    schedule = decide(HighestRate(), topology(1, 2), global_rate=[950.0, 900.0, 1000.0])
    assert schedule.scalar[:3].argsort().tolist() == [1, 0, 2]


def test_sources_that_are_last_already_keep_their_order() -> None:
    schedule = decide(Fcfs(), topology(2, 2), head_age=[1.0, 4.0, 2.0, 3.0], queue=[5.0] * 4)
    assert schedule.scalar[:4].tolist() == [0.0, 3.0, 1.0, 2.0]


def test_a_source_of_a_higher_class_goes_before_all_of_a_lower_one() -> None:
    found = topology(2, 2, priorities=(5.0, 1.0))
    columns = {"head_age": [9.0, 1.0, 8.0, 2.0], "global_rate": [1.0, 2.0, 300.0, 100.0], "queue": [5.0] * 4}
    schedule = decide(MultiClass(), found, by_class=True, **columns)
    assert schedule.scalar[:4].argsort().tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize("rates", [[NAN, NAN], [1.0, NAN], [NAN, 2.0]])
def test_where_one_kind_is_unknown_nothing_is_moved(rates: list[float]) -> None:
    schedule = decide(HighestRate(), topology(2), global_rate=rates)
    np.testing.assert_array_equal(schedule.scalar, [*rates, NAN])
    assert schedule.spacing == "log"


def test_queries_in_micro_batches_are_all_alike() -> None:
    schedule = decide(HighestRate(), topology(1, 1), global_rate=[5.0, 1.0])
    assert schedule.scalar[:2].tolist() == [5.0, 1.0]


def test_helpers_stay_on_the_scale_of_their_mains() -> None:
    columns = {"queue": [9.0, 1.0], "external_queue": [9.0, NAN], "output_queue": [1.0, 2.0]}
    assert decide(CongestionAware(), topology(2), by_class=False, **columns).scalar[:2].tolist() == [9.0, 1.0]


RATES = st.lists(st.floats(0.0, 1e9), min_size=6, max_size=6)


@given(RATES)
def test_the_order_among_sources_and_among_others_is_the_policys(rates: list[float]) -> None:
    found = topology(2, 2, 2)
    values = decide(HighestRate(), found, global_rate=rates).scalar[:6]
    sources, others = [0, 2, 4], [1, 3, 5]
    for rows in (sources, others):
        for one in rows:
            for other in rows:
                assert (values[one] > values[other]) <= (rates[one] > rates[other])
    assert max(values[sources]) < min(values[others])


@pytest.mark.parametrize(
    ("policy", "enforce", "applies"),
    [
        ("highest-rate", "nice", True),
        ("fcfs", "rt", True),
        ("multi-class", "nice", True),
        ("fcfs", "slice", False),
        ("fcfs", "cgroup", False),
        ("fcfs", "cgroup+nice", False),
        ("queue-size", "nice", False),
        ("min-latency", "nice", False),
    ],
)
def test_it_is_for_threads_and_for_policies_by_rates_or_ages(policy: str, enforce: str, applies: bool) -> None:
    found = topology(2, 2)
    columns = {"head_age": [60.0, 1.0, 9.0, 3.0, NAN], "global_rate": [9.0, 1.0, 8.0, 2.0, NAN], "queue": [5.0] * 5}
    seen = Snapshot(found, 0.0, {name: np.array(values) for name, values in columns.items()})
    made = plan.make(policy, enforce, 0.05, {}, {}, ("*",))
    reasons = [binding.policy.decide(seen).reason for binding in made.bindings(1)[0]]
    assert any("sources last" in reason for reason in reasons) is applies
