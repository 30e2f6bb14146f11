"""Computes along the edges of a topology: sums from upstream, and path metrics from the sinks to the sources.

It knows rows, edges and levels, and nothing of where numbers come from. Values of branches are added up, which is right
also for a selectivity above 1 and for a stream with several readers. The path metrics are those of Lachesis Fig. 4.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats, Ints, Topology

TRACE = 1e-9
"""An engine adds this share of a sink's input to the sink's output, if it counts the output.

So a sink that has put out nothing reports a little more than 0, and a sink whose output is not counted exactly 0."""


def global_selectivity(topology: Topology, selectivity: Floats) -> Floats:
    """S_i = s_i * sum_j share_ij * S_j: the results that leave the sinks for each tuple that enters i.

    A tuple that reaches a sink is a result, so a sink without a counted output has S = 1. A sink that counts its output
    and has dropped all tuples so far reports a selectivity of `TRACE` and has S = 0.
    """
    sinks = topology.levels[0].rows
    at_sink = selectivity[sinks]
    at_sink[~(at_sink > 0.0)] = 1.0
    at_sink[at_sink < 2.0 * TRACE] = 0.0
    own = np.zeros(len(topology))
    own[sinks] = at_sink
    return _fold(topology, own, selectivity)


def global_cost(topology: Topology, cost: Floats, selectivity: Floats) -> Floats:
    """C_i = c_i + s_i * sum_j share_ij * C_j: the mean cost of a tuple from i to the ends (AMoS section 2.2)."""
    return _fold(topology, cost.copy(), selectivity)


def received(topology: Topology, sent: Floats) -> Floats:
    """Return how much each row got of what its upstreams sent; NaN for sources, which are fed from outside."""
    start, end, share = topology.edges
    total = _sums(end, share * sent[start], len(topology))
    total[topology.is_source] = np.nan
    return total


def _fold(topology: Topology, result: Floats, factor: Floats) -> Floats:
    """X_i = own_i + factor_i * sum_j share_ij * X_j, one pass over the levels, sinks first. `result` starts as `own`.

    Where nothing is passed on (a factor of 0), unknown values downstream do not matter.
    """
    some_dry = len(factor) and not factor[factor.argmin()] > 0.0  # also if one is NaN, which argmin finds first
    for level in topology.levels[1:]:
        rows = level.rows
        below = level.share * result[level.edge_to]
        if len(below) > len(rows):  # otherwise each row has one edge, as in a chain, and nothing is added up
            below = _sums(level.edge_from, below, len(rows))
        below *= factor[rows]
        if some_dry:
            below[factor[rows] == 0.0] = 0.0
        result[rows] += below
    return result


def _sums(group: Ints, value: Floats, count: int) -> Floats:
    """Return the sum of the values of each group, as floats: without values numpy returns integers."""
    return np.bincount(group, value, count).astype(np.float64, copy=False)
