"""Groupings that can not be, and how many groups k-means makes."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.decide.grouping import KINDS, clusters, group
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Schedule

TOPOLOGY = Topology.of(Query(f"q{number}", (Operator("op"),)) for number in range(8))
SCHEDULE = Schedule(np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]), spacing="log")


def test_by_similar_priority_there_are_five_groups_unless_another_number_is_given() -> None:
    assert len(group(TOPOLOGY, SCHEDULE, "kmeans").names) == 5
    assert len(group(TOPOLOGY, SCHEDULE, "kmeans", k=8).names) == 8
    assert len(group(TOPOLOGY, SCHEDULE, "kmeans", k=1).names) == 1


def test_of_the_cuts_at_quantiles_and_at_the_widest_gaps_the_tighter_ones_are_taken() -> None:
    """Behind the widest gap: 61 from the means in all, squared; in the middle: 69."""
    assert clusters(np.array([7.0, 14.0, 15.0, 17.0, 24.0]), 2).tolist() == [0, 1, 1, 1, 1]


def test_a_grouping_that_can_not_be_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError) as combined:
        group(TOPOLOGY, SCHEDULE, "query", combine="least")  # type: ignore[arg-type]
    assert str(combined.value) == "grouping: unknown way to combine 'least' (known: max, mean, sum)"
    with pytest.raises(ConfigError) as few:
        group(TOPOLOGY, SCHEDULE, "kmeans", k=0)
    assert str(few.value) == "grouping 'kmeans': k can't be 0 (use 1 or more)"
    with pytest.raises(ConfigError) as unknown:
        group(TOPOLOGY, SCHEDULE, "colour")
    assert str(unknown.value) == f"grouping: unknown grouping 'colour' (known: {', '.join(KINDS)})"
