from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from treadle.errors import ConfigError, EngineError
from treadle.model import Floats, Operator, Query, Topology
from treadle.observe import METRICS, Formula, Inputs, Metric, Provider, Way
from treadle.values import Sample

LEAVES = ("cpu_time", "tuples_in", "tuples_out")
COST, SELECTIVITY = (0.5, 1.0, 2.0), (0.25, 0.5, 0.8)


def chain(*names: str, version: int = 0) -> Topology:
    """One query of one operator each, so that rows can come, go and move."""
    return Topology.of([Query(name, (Operator("op"),)) for name in names], version=version)


@pytest.fixture
def amos() -> Topology:
    return Topology.of([Query("plan", (Operator("1"), Operator("2", ("1",)), Operator("3", ("2",))))])


def leaves(taken: float) -> dict[str, Floats]:
    """The counters of the AMoS plan after each operator took in so many tuples."""
    return {
        "tuples_in": np.full(3, taken),
        "tuples_out": taken * np.array(SELECTIVITY),
        "cpu_time": taken * np.array(COST),
    }


def test_two_engines_with_different_offers_give_equal_values(amos: Topology) -> None:
    """Lachesis Fig. 4, on the numbers of AMoS section 2.2."""
    a = Provider(["selectivity", "global_cost"], ["global_rate"])
    b = Provider(LEAVES, ["global_rate"])
    assert a.base == {"selectivity", "global_cost"}
    assert b.base == set(LEAVES)
    from_a = a.update(amos, Sample(0.0, {"selectivity": np.array(SELECTIVITY), "global_cost": np.array([1.0, 2, 2])}))
    b.update(amos, Sample(0.0, leaves(0)))
    from_b = b.update(amos, Sample(1.0, leaves(8)))
    assert from_a["global_rate"] == pytest.approx([0.1, 0.2, 0.4])
    assert from_b["global_rate"] == pytest.approx(from_a["global_rate"])
    assert from_b["global_cost"].tolist() == [1.0, 2.0, 2.0]


def test_each_metric_is_computed_once_a_round(amos: Topology) -> None:
    calls: Counter[str] = Counter()

    def counted(name: str, formula: Formula) -> Formula:
        def count(inputs: Inputs) -> Floats:
            calls[name] += 1
            return formula(inputs)

        return count

    metrics = {
        name: replace(metric, ways=tuple(Way(way.needs, counted(name, way.formula)) for way in metric.ways))
        for name, metric in METRICS.items()
    }
    wanted = ["global_rate", "selectivity", "global_cost", "queue", "global_rate"]
    provider = Provider(LEAVES, wanted, metrics=metrics)
    for second in range(3):
        provider.update(amos, Sample(float(second), leaves(second)))
    derived = {"global_rate", "selectivity", "global_cost", "queue", "global_selectivity", "cost"}
    assert calls == dict.fromkeys(derived, 3)


def test_only_what_the_plan_needs_is_sampled() -> None:
    assert Provider(METRICS, ["queue"]).base == {"queue"}
    assert Provider([*LEAVES, "run_wait", "head_age"], ["rate"]).base == {"tuples_in"}


def test_what_can_not_be_had_is_refused_before_the_first_round() -> None:
    with pytest.raises(EngineError, match="fcfs needs head_age, which engine flink does not offer"):
        Provider(LEAVES, ["head_age"], engine="flink", policy="fcfs")


@pytest.mark.parametrize(("tau", "forget"), [(-1.0, 60.0), (np.nan, 60.0), (2.0, 0.0)])
def test_impossible_times_are_refused(tau: float, forget: float) -> None:
    with pytest.raises(ConfigError, match="tau"):
        Provider(LEAVES, ["cost"], tau=tau, forget=forget)


def test_a_metric_that_the_sample_lacks_is_unknown_and_costs_only_its_own(amos: Topology) -> None:
    provider = Provider(LEAVES, ["cost", "selectivity"])
    provider.update(amos, Sample(0.0, leaves(0)))
    columns = leaves(4)
    del columns["cpu_time"]
    snapshot = provider.update(amos, Sample(1.0, columns))
    assert np.isnan(snapshot["cpu_time"]).all()
    assert np.isnan(snapshot["cost"]).all()
    assert snapshot["selectivity"].tolist() == list(SELECTIVITY)


@pytest.mark.parametrize("column", [np.zeros(2), np.zeros((3, 1)), np.float64(1.0)])
def test_a_column_of_the_wrong_length_is_an_engine_error(amos: Topology, column: Floats) -> None:
    provider = Provider(["queue"], ["queue"], engine="flink")
    with pytest.raises(EngineError, match=r"flink: metric 'queue' has shape .*, but there are 3 instances"):
        provider.update(amos, Sample(0.0, {"queue": column}))


def test_a_bad_sample_leaves_the_history_as_it_was(amos: Topology) -> None:
    disturbed, calm = (Provider(["queue", "cost"], ["queue", "cost"]) for _ in range(2))
    good = [Sample(time, {"queue": np.zeros(3), "cost": np.full(3, time)}) for time in (0.0, 2.0)]
    disturbed.update(amos, good[0])
    calm.update(amos, good[0])
    for name in ("queue", "cost"):
        with pytest.raises(EngineError):
            disturbed.update(amos, Sample(1.0, {"queue": np.zeros(3), "cost": np.ones(3), name: np.zeros(9)}))
    np.testing.assert_array_equal(disturbed.update(amos, good[1])["cost"], calm.update(amos, good[1])["cost"])


def test_a_column_that_is_not_made_of_numbers_is_an_engine_error(amos: Topology) -> None:
    with pytest.raises(EngineError, match="not made of numbers"):
        Provider(["queue"], ["queue"]).update(amos, Sample(0.0, {"queue": np.array(["a", "b", "c"])}))


def test_integers_are_taken_as_floats(amos: Topology) -> None:
    queue = Provider(["queue"], ["queue"]).update(amos, Sample(0.0, {"queue": np.array([1, 2, 3])}))["queue"]
    assert queue.dtype == np.float64


def test_an_engine_may_reuse_its_buffers(amos: Topology) -> None:
    provider = Provider(LEAVES, ["rate"])
    buffers = leaves(0)
    first = provider.update(amos, Sample(0.0, buffers))
    buffers["tuples_in"] += 5
    assert provider.update(amos, Sample(1.0, buffers))["rate"].tolist() == [5, 5, 5]
    assert first["tuples_in"].tolist() == [0, 0, 0]


def test_nobody_can_change_a_snapshot_that_the_next_round_builds_on(amos: Topology) -> None:
    snapshot = Provider(LEAVES, ["rate"]).update(amos, Sample(0.0, leaves(0)))
    with pytest.raises(ValueError, match="read-only"):
        snapshot["tuples_in"][0] = 1


def test_noisy_metrics_are_averaged_over_time(amos: Topology) -> None:
    provider = Provider(["cost", "queue"], ["cost", "queue"], tau=2.0)
    provider.update(amos, Sample(0.0, {"cost": np.zeros(3), "queue": np.zeros(3)}))
    snapshot = provider.update(amos, Sample(2.0, {"cost": np.ones(3), "queue": np.ones(3)}))
    assert snapshot["cost"] == pytest.approx(np.full(3, 1 - np.exp(-1)))
    assert snapshot["queue"].tolist() == [1, 1, 1]


def test_what_is_measured_no_more_is_forgotten(amos: Topology) -> None:
    provider = Provider(LEAVES, ["cost"], forget=60.0)
    costs = [
        provider.update(amos, Sample(time, leaves(taken)))["cost"].tolist()
        for time, taken in [(0.0, 0), (1.0, 2), (60.0, 2), (62.0, 2)]
    ]
    assert costs[1] == costs[2] == list(COST)
    assert np.isnan(costs[3]).all()


@pytest.mark.parametrize("time", [1.0, 0.5, np.nan, np.inf])
def test_a_clock_that_does_not_move_on_makes_rates_unknown_not_wrong(amos: Topology, time: float) -> None:
    provider = Provider(LEAVES, ["rate", "selectivity"])
    provider.update(amos, Sample(1.0, leaves(0)))
    snapshot = provider.update(amos, Sample(time, leaves(4)))
    assert np.isnan(snapshot["rate"]).all()
    assert snapshot["selectivity"].tolist() == list(SELECTIVITY)


def test_history_follows_its_instances_to_a_new_topology() -> None:
    provider = Provider(["tuples_in", "cost"], ["rate", "cost"], tau=2.0)
    first = {"tuples_in": np.array([10.0, 20.0, 30.0]), "cost": np.array([1.0, 2.0, 3.0])}
    provider.update(chain("a", "b", "c"), Sample(0.0, first))
    second = {"tuples_in": np.array([33.0, 99.0, 11.0]), "cost": np.full(3, np.nan)}
    moved = provider.update(chain("c", "new", "a", version=1), Sample(1.0, second))
    np.testing.assert_array_equal(moved["rate"], [3, np.nan, 1])
    np.testing.assert_array_equal(moved["cost"], [3, np.nan, 1])


def test_an_equal_topology_keeps_its_history() -> None:
    provider = Provider(["tuples_in"], ["rate"])
    provider.update(chain("a"), Sample(0.0, {"tuples_in": np.array([1.0])}))
    snapshot = provider.update(chain("a", version=7), Sample(1.0, {"tuples_in": np.array([4.0])}))
    assert snapshot["rate"].tolist() == [3]


def test_an_empty_topology_comes_and_goes() -> None:
    provider = Provider(LEAVES, ["global_rate", "queue"])
    empty = provider.update(Topology((), ()), Sample(0.0, {name: np.empty(0) for name in LEAVES}))
    assert len(empty["global_rate"]) == 0
    assert empty.totals["total_queue"] == 0
    full = provider.update(chain("a", version=1), Sample(1.0, {name: np.ones(1) for name in LEAVES}))
    assert np.isnan(full["global_rate"]).all()


def test_totals_of_the_queues_are_added_over_what_is_known() -> None:
    provider = Provider(["queue"], ["queue"])
    sample = Sample(0.0, {"queue": np.array([1.0, np.nan, 3.0])}, {"latency": 0.25})
    totals = provider.update(chain("a", "b", "c"), sample).totals
    assert totals == {"latency": 0.25, "total_queue": 4.0, "queue_variance": 1.0}


def test_totals_of_the_engine_come_first() -> None:
    sample = Sample(0.0, {"queue": np.array([1.0])}, {"total_queue": 17.0})
    assert Provider(["queue"], ["queue"]).update(chain("a"), sample).totals["total_queue"] == 17


def test_the_total_of_unknown_queues_is_unknown_not_zero() -> None:
    totals = Provider(["queue"], ["queue"]).update(chain("a"), Sample(0.0, {})).totals
    assert np.isnan(totals["total_queue"])


def test_without_queues_there_are_no_totals_of_queues() -> None:
    assert Provider(["cost"], ["cost"]).update(chain("a"), Sample(0.0, {})).totals == {}


def test_no_number_breaks_a_round(amos: Topology) -> None:
    offers = ["busy_time", "run_wait", "batch_cost", *LEAVES]
    provider = Provider(offers, [name for name in METRICS if METRICS[name].ways])
    wild = [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, -1e308, 5e-324]
    for second in range(40):
        columns = {
            name: np.array([wild[(second * k + row) % len(wild)] for row in range(3)])
            for k, name in enumerate(offers, start=1)
        }
        provider.update(amos, Sample(float(second), columns))


def test_what_an_engine_gives_goes_before_what_is_derived(amos: Topology) -> None:
    provider = Provider(LEAVES, ["cost", "global_cost"])
    provider.update(amos, Sample(0.0, leaves(0)))
    derived = provider.update(amos, Sample(1.0, leaves(8)))
    assert derived["cost"].tolist() == list(COST)
    given = {"cost": np.array([np.nan, 7.0, np.nan])}
    snapshot = provider.update(amos, Sample(2.0, leaves(16), given=given))
    assert snapshot["cost"].tolist() == [COST[0], 7.0, COST[2]]
    assert snapshot["global_cost"][1] == pytest.approx(7.0 + SELECTIVITY[1] * COST[2])


def test_the_fixed_part_of_a_batch_is_divided_among_what_waits_here_and_upstream(amos: Topology) -> None:
    provider = Provider(["queue", "cost", "selectivity", "batch_cost"], ["next_cost"])
    columns = {
        "queue": np.array([np.nan, 100.0, 50.0]),
        "cost": np.array([1.0, 1.0, 1.0]),
        "selectivity": np.array([1.0, 0.5, 1.0]),
        "batch_cost": np.array([10.0, 10.0, 10.0]),
    }
    found = provider.update(amos, Sample(0.0, columns))["next_cost"]
    assert found.tolist() == pytest.approx([1.0, 1.0 + 10.0 / 100, 1.0 + 10.0 / 100])
    columns["batch_cost"] = np.full(3, np.nan)
    assert provider.update(amos, Sample(1.0, columns))["next_cost"].tolist() == [1.0, 1.0, 1.0]


def test_a_metric_of_ones_own_can_be_added(amos: Topology) -> None:
    def backlog(inputs: Inputs) -> Floats:
        return inputs.now["queue"] * inputs.now["cost"]

    own = Metric("backlog", "s", "CPU time that waits in the queue", ways=(Way(("queue", "cost"), backlog),))
    provider = Provider(["queue", "cost"], ["backlog"], metrics={**METRICS, "backlog": own})
    snapshot = provider.update(amos, Sample(0.0, {"queue": np.array([2.0, 0, 1]), "cost": np.array(COST)}))
    assert snapshot["backlog"].tolist() == [1, 0, 2]
