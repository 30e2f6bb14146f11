"""What the papers report of their policies, in the simulator: orderings and their own numbers, not absolute times."""

from typing import Any

import numpy as np
import pytest

from treadle.decide.policies import segments
from treadle.engines.simulator import scenario
from treadle.engines.simulator.engine import Simulator
from treadle.engines.simulator.run import simulate
from treadle.model import Operator, Query, Topology
from treadle.observe import Provider
from treadle.values import Sample


def test_chain_puts_operator_1_of_the_amos_plan_alone_and_operators_2_and_3_together() -> None:
    """AMoS, figure 1: costs 0.5, 1, 2; what leaves by the last operator has no size."""
    sim = Simulator(scenario.load("amos-example"))
    sample = sim.sample(frozenset({"cost", "selectivity"}))
    found = segments(sim.topology(), sample.columns["cost"], sample.columns["selectivity"])
    assert [(tuple(segment.rows), segment.slope) for segment in found] == [((0,), 1.5), ((1, 2), 0.5)]


def test_a_tuple_of_the_amos_plan_costs_one_unit_on_average() -> None:
    """AMoS, section 2.2: 1 x 0.5 + 1 x 0.25 x 1 + 1 x 0.25 x 0.5 x 2 = 1."""
    sim = Simulator(scenario.load("amos-example"))
    provider = Provider(sim.offers, ["global_cost", "global_rate"])
    snapshot = provider.update(sim.topology(), sim.sample(provider.base))
    assert snapshot["global_cost"].tolist() == [1.0, 2.0, 2.0]
    np.testing.assert_allclose(snapshot["global_rate"], [0.25 * 0.5 * 0.8 / 1.0, 0.5 * 0.8 / 2.0, 0.8 / 2.0])


def test_highest_rate_sums_over_branches() -> None:
    """Lachesis, section 5.1: a path is productive and inexpensive; a tuple that takes two paths does both's work."""
    query = Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c", ("a",))))
    columns = {"cost": np.array([1.0, 2.0, 4.0]), "selectivity": np.array([0.5, 1.0, 3.0])}
    provider = Provider(frozenset(columns), ["global_rate"])
    rate = provider.update(Topology.of([query]), Sample(0.0, columns))["global_rate"]
    assert rate.tolist() == [0.5 * (1.0 + 3.0) / (1.0 + 0.5 * (2.0 + 4.0)), 1.0 / 2.0, 3.0 / 4.0]


@pytest.fixture(scope="module")
def multi_class() -> dict[str, dict[str, dict[str, Any]]]:
    """Haren's two scenarios (Haren, section 7.4), under the OS and under the multi-class policy."""
    return {
        name: {
            policy: simulate(scenario.load(f"haren-multi-class-{name}"), policy, seconds=30).summary()["classes"]
            for policy in ("os", "multi-class")
        }
        for name in ("steady", "bursts")
    }


def test_objective_1_high_queries_always_come_before_low_ones(multi_class: dict[str, dict[str, Any]]) -> None:
    for name in ("steady", "bursts"):
        treadle = multi_class[name]["multi-class"]
        assert treadle["1"]["mean_latency"] < treadle["0"]["mean_latency"]


def test_in_the_steady_scenario_all_sources_are_kept_up_with(multi_class: dict[str, dict[str, Any]]) -> None:
    """Figure 8: both match the throughput of the data sources."""
    steady = multi_class["steady"]
    for priority in ("1", "0"):
        assert steady["multi-class"][priority]["throughput"] == pytest.approx(
            steady["os"][priority]["throughput"], rel=0.02
        )


def test_objective_2_under_overload_high_queries_keep_a_low_maximum_latency(
    multi_class: dict[str, dict[str, Any]],
) -> None:
    """Figure 9: about 0.1 s and constant, where the OS lets it grow to more than 17 s."""
    os, treadle = (multi_class["bursts"][policy]["1"]["max_latency"] for policy in ("os", "multi-class"))
    assert treadle < 0.2
    assert os / treadle > 30


def test_objective_3_low_queries_fare_better_than_high_ones_did_under_the_os(
    multi_class: dict[str, dict[str, Any]],
) -> None:
    """Figure 9: the mean latency of LOW, 2.6 s, is below that of HIGH under the OS, 3.5 s."""
    bursts = multi_class["bursts"]
    assert bursts["multi-class"]["0"]["mean_latency"] < bursts["os"]["1"]["mean_latency"]


def test_a_pool_of_threads_sleeps_with_its_operators_and_the_os_does_not() -> None:
    """Lachesis, figure 16: with blocking operators the OS level has more throughput and less latency."""
    loaded = scenario.load("syn-blocking")
    shares, pool = (simulate(loaded, f"fcfs@{knob}", seconds=12).summary() for knob in ("shares", "rank"))
    assert shares["throughput"] > pool["throughput"]
    assert shares["mean_latency"] < pool["mean_latency"]
