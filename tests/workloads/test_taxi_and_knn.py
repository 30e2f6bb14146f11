"""The applications of Stream-Economics: rows by their numbers, graphs as in the paper, right answers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.pipelines.quality.flow import flow_of
from treadle.workloads import knn, taxi

NUMBER = st.integers(0, 10**9)


@given(NUMBER)
def test_a_ride_is_known_by_its_number_and_lies_in_the_city(number: int) -> None:
    ride, fare = taxi.ride(number), taxi.fare(number)
    assert ride == taxi.ride(number)
    assert taxi.WEST <= ride["lon"] <= taxi.EAST
    assert taxi.SOUTH <= ride["lat"] <= taxi.NORTH
    assert fare["amount"] >= 3.0 + ride["amount"]
    assert (fare["ride"], fare["driver"], fare["at"]) == (number, ride["driver"], ride["at"])


def test_the_taxi_graph_has_two_sources_and_two_sinks_that_read_both() -> None:
    p = taxi.pipeline((10, 10), priority=(1, 5), source="feed")
    flow = flow_of({node.name: node for node in p.nodes}, "hops")
    assert {flow.tasks[task] for task in flow.sinks} == {"cells", "drivers"}
    minimum = dict(zip(flow.tasks, flow.minimum, strict=True))
    assert (minimum["cells"], minimum["drivers"], minimum["rides_read"], minimum["fares"]) == (0.4, 0.6, 0.6, 0.6)
    assert dict(zip(flow.tasks, flow.priority, strict=True))["events"] == 5.0


def test_a_fused_graph_is_a_task_for_each_sink() -> None:
    p = taxi.pipeline((10, 10), source="feed")
    flow = flow_of({node.name: node for node in p.nodes}, "fused")
    assert sorted(flow.tasks) == ["cells", "drivers", "fares", "rides"]
    assert sorted(flow.copies.tolist()) == [0, 0, 1, 1]


def test_a_point_gets_the_label_of_most_of_its_nearest() -> None:
    known, labels = knn.reference(400)
    points = np.array([[knn.point(number)[name] for name in knn.COORDINATES] for number in range(60)])
    found = knn.classify(points, known, labels)
    spread, middle = known.std(axis=0), known.mean(axis=0)
    for row, label in zip(points, found, strict=True):
        apart = np.linalg.norm((row - middle) / spread - (known - middle) / spread, axis=1)
        nearest = labels[np.argsort(apart)[:5]]
        counts = np.bincount(nearest, minlength=knn.CENTRES)
        assert counts[label] == counts.max()
    right = np.mean(found == np.arange(60) % knn.CENTRES)
    assert right > 0.9
