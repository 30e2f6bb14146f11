import gc
import math
import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide import logical
from treadle.decide.logical import operator_sets, to_physical
from treadle.model import Operator, Query, Topology

CHAIN = (Operator("source"), Operator("map", ("source",)), Operator("sink", ("map",)))


def two_queries() -> Topology:
    return Topology.of(
        [Query("a", CHAIN), Query("b", CHAIN)],
        parallelism={("a", "map"): 2},
        fused=[("b", ("source", "map"))],
    )


def test_an_operator_that_runs_alone_keeps_its_priority() -> None:
    topology = two_queries()
    result = to_physical(topology, {("a", "source"): 3.0, ("a", "sink"): -1.0})
    assert result[topology.row_of["a.source[0]"]] == 3.0
    assert result[topology.row_of["a.sink[0]"]] == -1.0


def test_every_copy_gets_the_priority_of_its_operator() -> None:
    topology = two_queries()
    result = to_physical(topology, {("a", "map"): 7.0})
    assert [result[topology.row_of[f"a.map[{copy}]"]] for copy in (0, 1)] == [7.0, 7.0]


def test_fused_operators_run_at_the_highest_of_their_priorities() -> None:
    topology = two_queries()
    result = to_physical(topology, {("b", "source"): 2.0, ("b", "map"): 5.0})
    assert result[topology.row_of["b.source+map[0]"]] == 5.0


def test_an_operator_without_a_priority_does_not_spoil_the_one_it_is_fused_with() -> None:
    topology = two_queries()
    row = topology.row_of["b.source+map[0]"]
    assert to_physical(topology, {("b", "map"): -4.0})[row] == -4.0
    assert to_physical(topology, {("b", "map"): -4.0, ("b", "source"): math.nan})[row] == -4.0


def test_rows_without_any_priority_are_unknown() -> None:
    assert np.isnan(to_physical(two_queries(), {})).all()


def test_operators_of_a_query_that_has_ended_are_left_out() -> None:
    topology = two_queries()
    assert np.isnan(to_physical(topology, {("ended", "map"): 1.0, ("a", "ended"): 1.0})).all()


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["source", "map", "sink"])), st.floats(width=32)
    )
)
def test_each_row_has_the_highest_known_priority_of_its_operators(given: dict[tuple[str, str], float]) -> None:
    topology = two_queries()
    for instance, priority in zip(topology.instances, to_physical(topology, given), strict=True):
        mine = [given[instance.query, name] for name in instance.operators if (instance.query, name) in given]
        known = [value for value in mine if not math.isnan(value)]
        assert priority == max(known) if known else math.isnan(priority)


def test_the_sets_of_a_topology_are_found_once_and_go_with_it() -> None:
    topology = two_queries()
    alive = weakref.ref(topology)
    assert operator_sets(topology) is operator_sets(topology)
    key = id(topology)
    assert key in logical._found
    del topology
    gc.collect()
    assert alive() is None
    assert key not in logical._found
