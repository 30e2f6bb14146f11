"""Queues as weights of the CPU, where nice orders threads by them."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.attachment import plan
from treadle.attachment.policies.threads import BatchStartThreadsFirst, InProportion
from treadle.decide.policies import CongestionAware, QueueSize
from treadle.decide.policy import Policy
from treadle.decide.transform import NICE_STEP, nice
from treadle.engines.spark.threads.thread_names import COMPILERS, STARTS
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Schedule, Snapshot

NAN = float("nan")


def topology(length: int, *driver: str) -> Topology:
    """A query of so many stages, and what the driver does."""
    stages = tuple(Operator(f"{at}", (f"{at - 1}",) if at else ()) for at in range(length))
    queries = [Query("a", stages)]
    if driver:
        queries.append(Query("driver", tuple(map(Operator, driver))))
    instances = [Instance(query.name, (each.name,), 0, "spark") for query in queries for each in query.operators]
    return Topology(tuple(queries), tuple(instances), 1)


def decide(policy: Policy, found: Topology, **columns: list[float]) -> Schedule:
    arrays = {name: np.array(values) for name, values in columns.items()}
    return policy.decide(Snapshot(found, 0.0, arrays))


def weights(schedule: Schedule) -> list[float]:
    """By row, the first of which is 1."""
    numbers = nice().apply(schedule.scalar, schedule.spacing)
    return [float(NICE_STEP ** (numbers[0] - number)) for number in numbers]


def test_twice_the_queue_is_twice_the_weight_and_none_is_not_nothing() -> None:
    schedule = decide(InProportion(QueueSize()), topology(4), queue=[999.0, 1999.0, 99.0, 0.0])
    assert weights(schedule) == pytest.approx([1.0, 2.0, 0.1, 0.001], rel=NICE_STEP**0.5 - 1)
    assert schedule.reason.endswith("in proportion")


def test_helpers_weigh_by_what_is_to_be_sent() -> None:
    schedule = decide(
        InProportion(CongestionAware()), topology(2), queue=[NAN, 9.0], external_queue=[99.0, NAN],
        output_queue=[49.0, NAN],
    )  # fmt: skip
    np.testing.assert_array_equal(schedule.scalar, [100.0, 10.0])
    assert schedule.helper is not None
    np.testing.assert_array_equal(schedule.helper, [50.0, 10.0])


def test_compilers_stay_hardly_above_the_shortest_queue() -> None:
    found = topology(2, STARTS[0], COMPILERS)
    schedule = decide(BatchStartThreadsFirst(InProportion(QueueSize())), found, queue=[0.0, 9999.0, NAN, NAN])
    assert schedule.scalar.tolist() == pytest.approx([1.0, 1e4, 1e4, 10.0])


@pytest.mark.parametrize(
    ("policy", "enforce", "applies"),
    [
        ("queue-size", "nice", True),
        ("congestion-aware", "nice", True),
        ("queue-size", "rt", False),
        ("queue-size", "cgroup+nice", False),
        ("highest-rate", "nice", False),
    ],
)
def test_it_is_for_nice_and_for_policies_by_queues(policy: str, enforce: str, applies: bool) -> None:
    found = topology(3)
    columns = {"queue": [5.0, 1.0, 2.0], "global_rate": [1.0, 2.0, 3.0], "output_queue": [0.0, 1.0, 2.0]}
    seen = Snapshot(found, 0.0, {name: np.array(values) for name, values in columns.items()})
    made = plan.make(policy, enforce, 0.05, {}, {}, ("*",))
    reasons = [binding.policy.decide(seen).reason for binding in made.bindings(1)[0]]
    assert any("in proportion" in reason for reason in reasons) is applies
