from __future__ import annotations

import numpy as np
import pytest

from treadle.model import Operator, Query, Topology
from treadle.observe import Kind, dependents, features, intrinsic


@pytest.fixture
def chain() -> Topology:
    return Topology.of([Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c", ("b",))))])


def bitmap(topology: Topology, *names: str) -> list[list[int]]:
    return [[int(bit) for bit in row] for row in dependents(topology, names).dense()]


def test_only_metrics_measured_while_running_ask_for_neglected_operators() -> None:
    assert intrinsic(["queue", "head_age", "rate"]) == frozenset()
    assert intrinsic(["queue", "cost", "global_rate"]) == {"cost", "global_rate"}


def test_a_metric_that_only_its_engine_knows_may_change_in_any_way() -> None:
    kind = features(["glamour"])["glamour"]
    assert all(flag in kind for flag in (Kind.DYNAMIC, Kind.ON_UPSTREAM, Kind.ON_DOWNSTREAM, Kind.INTRINSIC))


def test_independent_metrics_change_only_with_their_own_operator(chain: Topology) -> None:
    assert bitmap(chain, "cost", "selectivity") == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_a_queue_changes_when_the_upstream_runs(chain: Topology) -> None:
    assert bitmap(chain, "queue") == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]


def test_an_output_queue_changes_when_the_downstream_runs(chain: Topology) -> None:
    assert bitmap(chain, "output_queue") == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_head_age_changes_with_both_neighbours(chain: Topology) -> None:
    assert bitmap(chain, "head_age") == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]


def test_a_path_metric_changes_with_every_operator_on_the_path(chain: Topology) -> None:
    assert bitmap(chain, "global_rate") == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_several_metrics_together_depend_on_all_that_any_depends_on(chain: Topology) -> None:
    assert bitmap(chain, "global_cost", "queue") == [[1, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_what_is_touched_is_what_any_operator_that_ran_touches(chain: Topology) -> None:
    found = dependents(chain, ["queue"])
    assert found.of(0).tolist() == [0, 1]
    assert found.touched(np.array([True, False, False])).tolist() == [True, True, False]
    assert found.touched(np.array([True, False, True])).tolist() == [True, True, True]
    assert not found.touched(np.zeros(3, dtype=np.bool_)).any()


def test_queries_never_depend_on_each_other() -> None:
    topology = Topology.of([Query(name, (Operator("a"), Operator("b", ("a",)))) for name in ("p", "q")])
    assert not dependents(topology, ["global_rate", "head_age"]).dense()[:2, 2:].any()


def test_an_empty_topology_has_no_dependents() -> None:
    assert dependents(Topology((), ()), ["global_rate", "queue"]).dense().shape == (0, 0)
