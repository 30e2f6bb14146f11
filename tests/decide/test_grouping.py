import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.grouping import KINDS, Combine, clusters, group
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Groups, Schedule

CHAIN = (Operator("source"), Operator("map", ("source",)), Operator("sink", ("map",)))
TOPOLOGY = Topology.of(
    [Query("a", CHAIN, priority=2.0), Query("b", CHAIN, priority=0.5), Query("c", CHAIN, priority=2.0)],
    parallelism={("a", "map"): 2},
    fused=[("b", ("source", "map"))],
)
"""Rows: a.source, a.map (twice), a.sink, b.source+map, b.sink, c.source, c.map, c.sink."""

kinds = st.sampled_from(sorted(KINDS))
rows = st.lists(st.floats() | st.integers(-3, 3).map(float), min_size=len(TOPOLOGY), max_size=len(TOPOLOGY))


def of(*priority: float) -> Schedule:
    return Schedule(np.array(priority, dtype=np.float64))


def plain(groups: Groups) -> dict[str, list[int]]:
    return {name: np.flatnonzero(groups.of_row == number).tolist() for number, name in enumerate(groups.names)}


RISING = of(*range(9))


def test_one_group_holds_all_rows() -> None:
    assert plain(group(TOPOLOGY, RISING, "one")) == {"all": list(range(9))}


def test_rows_go_by_query() -> None:
    assert plain(group(TOPOLOGY, RISING, "query")) == {"a": [0, 1, 2, 3], "b": [4, 5], "c": [6, 7, 8]}


def test_the_copies_of_an_operator_are_together() -> None:
    assert plain(group(TOPOLOGY, RISING, "operator")) == {
        "a.source": [0],
        "a.map": [1, 2],
        "a.sink": [3],
        "b.source+map": [4],
        "b.sink": [5],
        "c.source": [6],
        "c.map": [7],
        "c.sink": [8],
    }


def test_each_instance_may_be_alone() -> None:
    groups = group(TOPOLOGY, RISING, "instance")
    assert groups.names == TOPOLOGY.ids
    assert np.array_equal(groups.priority, RISING.scalar)


def test_queries_of_one_user_priority_are_a_class() -> None:
    assert plain(group(TOPOLOGY, RISING, "class")) == {"class-0.5": [4, 5], "class-2": [0, 1, 2, 3, 6, 7, 8]}


def test_rows_of_similar_priority_are_together_and_the_unknown_apart() -> None:
    schedule = of(1, 1.1, 50, math.nan, 51, 0.9, 100, math.nan, 99)
    groups = group(TOPOLOGY, schedule, "kmeans", k=3)
    assert plain(groups) == {"cluster-0": [0, 1, 5], "cluster-1": [2, 4], "cluster-2": [6, 8], "unknown": [3, 7]}
    assert groups.priority[:3].tolist() == [1.1, 51, 100]
    assert np.isnan(groups.priority[3])


def test_rates_are_similar_by_their_logarithms() -> None:
    priority = np.array([1, 2, 3, 100, 200, 300, 10000, 20000, 30000], dtype=np.float64)
    groups = group(TOPOLOGY, Schedule(priority, spacing="log"), "kmeans", k=3)
    assert groups.of_row.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_priorities_that_are_all_unknown_are_one_group() -> None:
    groups = group(TOPOLOGY, of(*[math.nan] * 9), "kmeans")
    assert groups.names == ("unknown",)
    assert np.isnan(groups.priority).all()


def test_infinite_priorities_have_a_place_in_kmeans() -> None:
    groups = group(TOPOLOGY, of(math.inf, -math.inf, 1, 1, 1, 1, 1, 1, 1), "kmeans", k=3)
    assert groups.of_row.tolist() == [2, 0, 1, 1, 1, 1, 1, 1, 1]
    assert groups.priority.tolist() == [-math.inf, 1, math.inf]


def test_vectors_of_priorities_are_grouped_by_their_order() -> None:
    vectors = np.array([[1, 5], [0, 9], [1, 6], [0, 9], [1, 5], [0, 9], [1, 6], [1, 5], [1, 5]], dtype=np.float64)
    groups = group(TOPOLOGY, Schedule(vectors), "kmeans")
    assert groups.of_row.tolist() == [1, 0, 2, 0, 1, 0, 2, 1, 1]


@pytest.mark.parametrize(("combine", "expected"), [("max", [3, 4, 8]), ("mean", [2, 4, 7]), ("sum", [4, 4, 21])])
def test_a_group_combines_what_is_known_of_its_members(combine: Combine, expected: list[float]) -> None:
    schedule = of(math.nan, 1, math.nan, 3, 4, math.nan, 6, 7, 8)
    assert group(TOPOLOGY, schedule, "query", combine=combine).priority.tolist() == expected


@pytest.mark.parametrize("combine", ["max", "mean", "sum"])
def test_a_group_of_unknown_members_is_unknown(combine: Combine) -> None:
    priority = group(TOPOLOGY, of(1, 1, 1, 1, math.nan, math.nan, 1, 1, 1), "query", combine=combine).priority
    assert np.isnan(priority).tolist() == [False, True, False]
    nothing = group(TOPOLOGY, of(*[math.nan] * 9), "query", combine=combine).priority
    assert np.isnan(nothing).all()


def test_the_mean_of_the_largest_floats_is_no_infinity() -> None:
    assert group(TOPOLOGY, of(*[1.5e308] * 9), "one", combine="mean").priority[0] == pytest.approx(1.5e308)


@given(kinds, rows, st.integers(1, 12))
def test_every_row_is_in_a_group_and_every_group_has_a_row(kind: str, priority: list[float], k: int) -> None:
    groups = group(TOPOLOGY, of(*priority), kind, k=k)
    assert np.unique(groups.of_row).tolist() == list(range(len(groups.names)))
    assert len(set(groups.names)) == len(groups.names) == len(groups.priority)


@given(kinds, rows)
def test_the_highest_member_gives_the_priority(kind: str, priority: list[float]) -> None:
    groups = group(TOPOLOGY, of(*priority), kind)
    for number, mine in enumerate(plain(groups).values()):
        known = [priority[row] for row in mine if not math.isnan(priority[row])]
        assert groups.priority[number] == max(known) if known else math.isnan(groups.priority[number])


finite = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=10)


@given(finite, st.integers(1, 4))
def test_clusters_are_intervals_in_rising_order(values: list[float], k: int) -> None:
    points = np.array(values)
    found = clusters(points, k)
    assert np.unique(found).tolist() == list(range(found.max() + 1))
    assert found.max() < k
    assert np.all(np.diff(found[np.argsort(points, kind="stable")]) >= 0)
    assert all(len(set(found[points == value])) == 1 for value in values)


@given(finite, st.integers(1, 4))
def test_no_value_is_nearer_to_another_cluster(values: list[float], k: int) -> None:
    points = np.array(values)
    found = clusters(points, k)
    means = np.array([points[found == number].mean() for number in range(found.max() + 1)])
    nearest = np.abs(points[:, None] - means[None, :]).min(axis=1)
    assert np.allclose(np.abs(points - means[found]), nearest, atol=1e-9)


def test_small_groups_far_away_are_found() -> None:
    points = np.concatenate([np.linspace(0, 0.01, 100), [0.5, 0.505], [0.99, 1.0]])
    assert np.bincount(clusters(points, 3)).tolist() == [100, 2, 2]


def test_enough_clusters_give_each_distinct_value_its_own() -> None:
    assert clusters(np.array([3.0, 1.0, 2.0, 1.0]), 5).tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("galaxy", {}, "unknown grouping 'galaxy' (known: one, query, operator, instance, class, kmeans)"),
        ("kmeans", {"k": 0}, "k can't be 0 (use 1 or more)"),
        ("query", {"combine": "median"}, "unknown way to combine 'median' (known: max, mean, sum)"),
    ],
)
def test_wrong_groupings_are_refused_with_the_remedy(kind: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        group(TOPOLOGY, RISING, kind, **options)  # type: ignore[arg-type]
    assert says in str(caught.value)
