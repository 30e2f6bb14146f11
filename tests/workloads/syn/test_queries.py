"""Lachesis' synthetic queries: they ask for the load that is wanted, and HR and Chain take them in different orders."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.workloads.multi_class import Chain
from treadle.workloads.syn.queries import Query, chains, draw

UNIT = 7e-7
DRAWN = (
    ((416, 0.892), (386, 0.801), (416, 0.839), 362, 0.599),
    ((5812, 0.894), (6551, 0.944), (6680, 0.962), 6217, 0.811),
    ((2998, 0.237), (3252, 0.206), (3302, 0.213), 2890, 0.01),
    ((3264, 1.066), (3401, 1.039), (3277, 0.896), 3142, 0.896),
    ((1606, 0.727), (1698, 0.736), (1747, 0.82), 1545, 0.439),
    ((3033, 0.313), (3108, 0.3), (3126, 0.349), 3382, 0.033),
    ((754, 1.016), (809, 0.861), (790, 0.893), 765, 0.769),
    ((6068, 0.212), (5994, 0.233), (6419, 0.203), 6764, 0.01),
    ((3488, 0.801), (2953, 0.74), (3247, 0.899), 3463, 0.533),
    ((804, 0.327), (800, 0.361), (871, 0.36), 871, 0.043),
    ((374, 0.291), (431, 0.295), (396, 0.282), 392, 0.024),
    ((13109, 0.251), (13836, 0.297), (13106, 0.263), 12095, 0.02),
    ((7035, 0.689), (6441, 0.749), (6014, 0.647), 6158, 0.334),
    ((6206, 0.303), (6667, 0.273), (6948, 0.272), 6441, 0.023),
    ((6974, 0.973), (6527, 0.885), (5947, 0.98), 6706, 0.844),
    ((1737, 0.576), (1514, 0.61), (1575, 0.578), 1459, 0.203),
    ((13934, 1.014), (12518, 0.963), (11831, 0.945), 12857, 0.909),
    ((1571, 0.353), (1506, 0.374), (1715, 0.327), 1584, 0.043),
    ((3306, 0.498), (3055, 0.498), (3000, 0.554), 3213, 0.137),
    ((14058, 0.634), (13302, 0.674), (12893, 0.605), 12202, 0.259),
)
"""What Lachesis' program draws with seed 0: cost and selectivity of operators, cost of the sink, rows out per row."""


def cost(query: Chain) -> float:
    """Of a row over the whole chain."""
    return UNIT * float(np.dot(query.burns, np.cumprod([1.0, *query.keeps[:-1]])))


@pytest.mark.parametrize("count", [8, 20])
def test_they_ask_for_the_load_that_is_wanted_at_one_rate(count: int) -> None:
    queries = chains(UNIT, 0.9, count, cores=2)
    assert len(queries) == count
    assert len({query.rate for query in queries}) == 1
    assert sum(query.rate * cost(query) for query in queries) == pytest.approx(1.8)


def test_what_is_cheap_is_not_what_is_productive() -> None:
    queries = chains(UNIT, 0.9, cores=2)
    by_chain = sorted(queries, key=cost)
    by_hr = sorted(queries, key=lambda query: -query.selectivity / cost(query))
    moved = [abs(by_chain.index(query) - by_hr.index(query)) for query in queries]
    assert max(moved) >= len(queries) / 4


def test_the_queries_of_seed_0_are_those_of_the_paper() -> None:
    for query, (*operators, sink, egress) in zip(draw(), DRAWN, strict=True):
        assert [(each.cost, round(each.selectivity, 3)) for each in query.operators] == operators
        assert query.sink == sink
        assert query.egress == pytest.approx(egress, abs=6e-4)


def test_in_the_variant_with_blocking_a_tenth_of_the_operators_block() -> None:
    queries: tuple[Query, ...] = draw(400, blocking=True)
    blocks = [each.blocks for query in queries for each in query.operators]
    assert 0.07 < sum(blocks) / len(blocks) < 0.13
    assert all(len({each[:2] for each in query.operators}) == 1 for query in queries)
    assert {query.sink for query in queries} == {400 * 2**number for number in range(6)}
