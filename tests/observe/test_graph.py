from __future__ import annotations

import numpy as np
import pytest

from treadle.model import Operator, Query, Topology
from treadle.observe.graph import TRACE, global_cost, global_selectivity, received


def column(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


@pytest.fixture
def chain() -> Topology:
    """The plan of AMoS Figure 1."""
    return Topology.of([Query("plan", (Operator("1"), Operator("2", ("1",)), Operator("3", ("2",))))])


@pytest.fixture
def diamond() -> Topology:
    """A source with two readers that meet again."""
    operators = (Operator("a"), Operator("b", ("a",)), Operator("c", ("a",)), Operator("d", ("b", "c")))
    return Topology.of([Query("q", operators)])


def test_the_mean_cost_of_the_amos_plan_is_exactly_one(chain: Topology) -> None:
    cost = global_cost(chain, column(0.5, 1, 2), column(0.25, 0.5, 0.8))
    assert cost.tolist() == [1.0, 2.0, 2.0]


def test_the_selectivity_of_the_amos_plan_is_the_product_along_it(chain: Topology) -> None:
    assert global_selectivity(chain, column(0.25, 0.5, 0.8)) == pytest.approx([0.1, 0.4, 0.8])


def test_sums_over_branches_are_sums(diamond: Topology) -> None:
    selectivity = column(2, 3, 0.5, 1)
    assert global_selectivity(diamond, selectivity).tolist() == [2 * (3 + 0.5), 3, 0.5, 1]
    assert global_cost(diamond, column(1, 1, 1, 10), selectivity).tolist() == [1 + 2 * (31 + 6), 31, 6, 10]


def test_parallel_copies_share_what_one_reader_gets() -> None:
    query = Query("q", (Operator("a"), Operator("b", ("a",))))
    topology = Topology.of([query], parallelism={("q", "b"): 2})
    assert global_cost(topology, column(1, 4, 8), column(3, 1, 1)).tolist() == [1 + 3 * 6, 4, 8]


@pytest.mark.parametrize("at_sink", [0.0, np.nan])
def test_a_tuple_that_reaches_a_silent_sink_is_a_result(chain: Topology, at_sink: float) -> None:
    assert global_selectivity(chain, column(0.5, 4, at_sink)).tolist() == [2, 4, 1]


def test_a_sink_that_counts_and_has_dropped_all_has_no_results(chain: Topology) -> None:
    assert global_selectivity(chain, column(0.5, 4, TRACE)).tolist() == [0, 0, 0]


def test_a_sink_of_unknown_selectivity_has_its_own_cost(chain: Topology) -> None:
    assert global_cost(chain, column(1, 1, 1), column(1, 1, np.nan)).tolist() == [3, 2, 1]


def test_what_lies_beyond_an_operator_that_passes_nothing_on_does_not_matter(chain: Topology) -> None:
    selectivity = column(1, 0, np.nan)
    assert global_cost(chain, column(1, 2, np.nan), selectivity)[:2].tolist() == [3, 2]
    assert global_selectivity(chain, selectivity)[:2].tolist() == [0, 0]


def test_the_unknown_spreads_to_all_that_lead_to_it_and_to_nothing_else(diamond: Topology) -> None:
    cost = global_cost(diamond, column(1, np.nan, 1, 1), column(1, 1, 1, 1))
    assert np.isnan(cost).tolist() == [True, True, False, False]


def test_a_reader_receives_the_sum_of_its_upstreams_and_a_source_nothing_known(diamond: Topology) -> None:
    got = received(diamond, column(10, 3, 4, 0))
    assert np.isnan(got[0])
    assert got[1:].tolist() == [10, 10, 7]


def test_a_graph_without_edges_or_rows_is_no_special_case() -> None:
    alone = Topology.of([Query("q", (Operator("a"),))])
    assert np.isnan(received(alone, column(5))).all()
    assert global_cost(alone, column(2), column(np.nan)).tolist() == [2]
    nothing = Topology((), ())
    assert len(received(nothing, column())) == len(global_selectivity(nothing, column())) == 0
