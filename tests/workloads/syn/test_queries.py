"""Lachesis' synthetic queries: they ask for the load that is wanted, and HR and Chain take them in different orders."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.workloads.multi_class import Chain
from treadle.workloads.synthetic import chains

UNIT = 7e-7


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
