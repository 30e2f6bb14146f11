"""Snapshots of several engines become one; priority vectors become one number with the same order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from treadle.errors import EngineError
from treadle.model import Floats, Operator, Query, Topology
from treadle.values import Schedule, Snapshot, dense_rank


def snapshot(engine: str, rows: int, time: float = 0.0, **columns: list[float]) -> Snapshot:
    queries = [Query(f"{engine}{i}", (Operator("o"),)) for i in range(rows)]
    arrays = {name: np.array(values, dtype=np.float64) for name, values in columns.items()}
    return Snapshot(Topology.of(queries, engine=engine), time, arrays, {"output": float(rows)})


class TestSnapshot:
    def test_a_metric_that_is_not_there_is_named(self) -> None:
        with pytest.raises(EngineError, match="metric 'cost' is not in this snapshot"):
            _ = snapshot("a", 1, queue=[1.0])["cost"]

    def test_concat_puts_rows_in_the_order_of_merge_and_adds_totals(self) -> None:
        one, two = snapshot("a", 2, 5.0, queue=[1, 2]), snapshot("b", 1, 7.0, queue=[3])
        both = Snapshot.concat([one, two])
        assert both["queue"].tolist() == [1.0, 2.0, 3.0]
        assert both.topology.ids == one.topology.ids + two.topology.ids
        assert both.time == 7.0
        assert both.totals == {"output": 3.0}

    def test_a_mean_latency_over_engines_counts_by_their_results_and_an_unknown_one_not_at_all(self) -> None:
        fast, slow, silent = (snapshot(name, 1, 1.0, queue=[1]) for name in "abc")
        parts = [
            replace(fast, totals={"latency": 1.0, "output_rate": 30.0}),
            replace(slow, totals={"latency": 5.0, "output_rate": 10.0}),
            replace(silent, totals={"latency": math.nan, "output_rate": 0.0}),
        ]
        assert Snapshot.concat(parts).totals == {"latency": 2.0, "output_rate": 40.0}

    def test_what_one_engine_lacks_is_unknown_there(self) -> None:
        both = Snapshot.concat([snapshot("a", 1, queue=[1]), snapshot("b", 2, cost=[4, 5])])
        assert np.array_equal(both["queue"], [1.0, np.nan, np.nan], equal_nan=True)
        assert np.array_equal(both["cost"], [np.nan, 4.0, 5.0], equal_nan=True)
        assert "queue" in both
        assert "rate" not in both

    def test_what_one_engine_estimates_the_other_has_measured(self) -> None:
        one, two = snapshot("a", 2, queue=[1, 2]), snapshot("b", 1, queue=[3])
        both = Snapshot.concat([replace(one, estimated={"queue": np.array([False, True])}), two])
        assert both.estimated["queue"].tolist() == [False, True, False]

    def test_one_part_is_itself(self) -> None:
        part = snapshot("a", 1, queue=[1])
        assert Snapshot.concat([part]) is part

    def test_a_topology_merged_before_is_used_again(self) -> None:
        parts = [snapshot("a", 1, queue=[1]), snapshot("b", 1, queue=[2])]
        merged = Topology.merge([part.topology for part in parts])
        assert Snapshot.concat(parts, merged).topology is merged


class TestDenseRank:
    def test_vectors_compare_by_their_first_column_first(self) -> None:
        vectors = np.array([[1.0, 0.0], [0.0, 9.0], [1.0, -1.0], [0.0, 9.0]])
        assert dense_rank(vectors).tolist() == [2.0, 0.0, 1.0, 0.0]

    def test_a_row_with_an_unknown_has_no_rank_and_does_not_disturb_the_others(self) -> None:
        vectors = np.array([[1.0, 0.0], [np.nan, 5.0], [2.0, 0.0]])
        assert np.array_equal(dense_rank(vectors), [0.0, np.nan, 1.0], equal_nan=True)

    def test_nothing_known_and_nothing_there_have_no_ranks(self) -> None:
        assert np.isnan(dense_rank(np.full((3, 2), np.nan))).all()
        assert len(dense_rank(np.empty((0, 2)))) == 0

    @given(
        hnp.arrays(
            np.float64,
            hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
            elements=st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 2.0, np.inf, np.nan]),
        )
    )
    def test_ranks_have_the_order_of_the_tuples_and_no_gaps(self, vectors: Floats) -> None:
        rank = dense_rank(vectors)
        known = [i for i in range(len(vectors)) if not np.isnan(vectors[i]).any()]
        ordered = sorted({tuple(vectors[i].tolist()) for i in known})
        for i in range(len(vectors)):
            if i in known:
                assert rank[i] == ordered.index(tuple(vectors[i].tolist()))
            else:
                assert np.isnan(rank[i])


class TestSchedule:
    def test_a_flat_priority_becomes_one_column_and_comes_back_as_it_was(self) -> None:
        schedule = Schedule(np.array([3.0, np.nan, -1.0]))
        assert schedule.priority.shape == (3, 1)
        assert np.array_equal(schedule.scalar, [3.0, np.nan, -1.0], equal_nan=True)

    def test_a_vector_becomes_its_rank(self) -> None:
        assert Schedule(np.array([[1.0, 5.0], [2.0, 0.0], [1.0, 6.0]])).scalar.tolist() == [0.0, 2.0, 1.0]
