"""What holds for every policy in the registry, on any topology and with any gaps in the metrics."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.decide.policies import Fcfs, MultiClass
from treadle.decide.policy import Policy
from treadle.decide.registry import create, describe
from treadle.model import Bools, Floats, Operator, Query, Topology
from treadle.values import Schedule, Snapshot

SPECS = {
    **{description.name: description.name for description in describe()},
    "weighted": "weighted:qs=0.5,hr=0.3,chain=0.2,congestion-aware=1",
    "adaptive": "adaptive:candidates=fifo+mtiq+chain,objective=min latency",
}
NAMES = sorted(SPECS)
MADE = {name: create(spec, np.random.default_rng(3)) for name, spec in SPECS.items()}
METRICS = ("queue", "output_queue", "external_queue", "cost", "selectivity", "head_age", "global_cost", "global_rate")
VALUES = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 1.0, np.inf]))
GAPPY = st.one_of(VALUES, st.just(np.nan))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    queries, copies = [], {}
    for number in range(draw(st.integers(1, 3))):
        operators = []
        for i in range(draw(st.integers(1, 5))):
            ups = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
            operators.append(Operator(f"o{i}", tuple(f"o{up}" for up in ups)))
            copies[f"q{number}", f"o{i}"] = draw(st.sampled_from([1, 1, 2]))
        goal = draw(st.sampled_from([None, 0.5, 2.0]))
        queries.append(Query(f"q{number}", tuple(operators), draw(st.sampled_from([0.0, 1.0, 5.0])), goal))
    return Topology.of(queries, parallelism=copies)


def columns(count: int, values: st.SearchStrategy[float]) -> st.SearchStrategy[dict[str, Floats]]:
    column = st.lists(values, min_size=count, max_size=count).map(lambda found: np.array(found, dtype=np.float64))
    return st.fixed_dictionaries(dict.fromkeys(METRICS, column))


def policy(name: str) -> Policy:
    """One that has decided nothing yet."""
    return copy.deepcopy(MADE[name])


def decided(name: str, topology: Topology, found: dict[str, Floats]) -> Schedule:
    return policy(name).decide(Snapshot(topology, 0.0, found, {"latency": 1.0}))


@given(data=st.data())
@settings(max_examples=60)
def test_a_schedule_has_a_vector_for_each_row_whatever_is_unknown(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    found = data.draw(columns(len(topology), GAPPY))
    for name in NAMES:
        schedule = decided(name, topology, found)
        assert schedule.priority.dtype == np.float64, name
        assert schedule.priority.shape[0] == len(topology), name
        assert schedule.priority.ndim == 2, name
        assert schedule.helper is None or len(schedule.helper) == len(topology), name
        assert schedule.reason, name
        unknown = np.isnan(schedule.priority)
        assert (unknown.any(axis=1) == unknown.all(axis=1)).all(), f"{name}: a row is known or not, never half"


def decides(name: str, topology: Topology) -> Bools:
    """The rows that a policy has an opinion on, if it knows all metrics."""
    if name != "downstream-first":
        return np.full(len(topology), name != "none")
    steps = {topology.query_of[row] for row in np.concatenate(topology.edges[:2]).astype(int)}
    return np.isin(topology.query_of, list(steps))


@given(data=st.data())
@settings(max_examples=60)
def test_what_is_unknown_in_one_query_does_not_spoil_another(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    whole = data.draw(columns(len(topology), st.floats(0.001, 1e6)))
    gaps = data.draw(st.lists(st.booleans(), min_size=len(topology), max_size=len(topology)))
    others = topology.query_of != 0
    gappy = {metric: np.where(~others & gaps, np.nan, values) for metric, values in whole.items()}
    for name in NAMES:
        known = ~np.isnan(decided(name, topology, whole).scalar)
        still = ~np.isnan(decided(name, topology, gappy).scalar)
        assert (known == decides(name, topology)).all(), f"{name}: with all metrics there, all is known"
        assert (still[others] == known[others]).all(), name


@given(data=st.data())
@settings(max_examples=60)
def test_what_is_unknown_of_a_row_changes_no_other_row_of_a_policy_that_looks_at_each_alone(
    data: st.DataObject,
) -> None:
    topology = data.draw(topologies())
    whole = data.draw(columns(len(topology), VALUES))
    gaps = np.array(data.draw(st.lists(st.booleans(), min_size=len(topology), max_size=len(topology))))
    gappy = {metric: np.where(gaps, np.nan, values) for metric, values in whole.items()}
    for name in sorted(set(NAMES) - {"chain", "normalized-rate", "weighted", "rr", "adaptive"}):
        before, after = decided(name, topology, whole).priority, decided(name, topology, gappy).priority
        assert np.array_equal(before[~gaps], after[~gaps], equal_nan=True), name


@pytest.mark.parametrize("name", NAMES)
def test_it_reads_no_metric_that_it_did_not_declare(name: str) -> None:
    topology = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))), latency_goal=1.0)])
    every = {metric: np.array([1.0, 2.0]) for metric in (*METRICS, "batches", "next_cost")}
    made = policy(name)
    only = {metric: every[metric] for metric in (*made.needs, *made.wants)}
    a, b, c = (
        policy(name).decide(Snapshot(topology, 0.0, found, {"latency": 1.0}))
        for found in (every, only, {metric: every[metric] for metric in made.needs})
    )
    assert np.array_equal(a.priority, b.priority, equal_nan=True)
    assert c.priority.shape[0] == 2, "what is only wanted may be missing"
    assert not set(made.needs) & set(made.wants)


@pytest.mark.parametrize("name", NAMES)
def test_no_instances_at_all_are_no_error(name: str) -> None:
    schedule = decided(name, Topology((), ()), {metric: np.empty(0) for metric in METRICS})
    assert len(schedule.priority) == 0


@pytest.mark.parametrize("name", NAMES)
def test_its_state_survives_json_and_makes_another_go_on_alike(name: str) -> None:
    topology = Topology.of([Query("q", tuple(Operator(n) for n in "abc"))])
    snapshot = Snapshot(topology, 0.0, {m: np.array([3.0, 1.0, 2.0]) for m in METRICS}, {"latency": 1.0})
    first, second = policy(name), create(SPECS[name], np.random.default_rng(99))
    first.decide(snapshot)
    second.load(json.loads(json.dumps(first.state())))
    assert np.array_equal(first.decide(snapshot).priority, second.decide(snapshot).priority, equal_nan=True)


def test_composed_policies_ask_for_no_metric_twice() -> None:
    made = MultiClass(high=Fcfs(), low=Fcfs())
    assert made.needs == ("head_age",)
    assert made.wants == ("queue", "external_queue")
