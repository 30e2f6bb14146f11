from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from treadle.model import Operator, Query, Topology
from treadle.observe import METRICS, Kind, Provider
from treadle.values import Sample, Snapshot

CHAIN = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))])
Columns = Mapping[str, tuple[float, float]]


def rounds(wanted: str, *columns: Columns) -> list[Snapshot]:
    """What a provider makes of one sample a second, without averaging."""
    provider = Provider(columns[0], [wanted], tau=0.0)
    return [
        provider.update(CHAIN, Sample(float(second), {name: np.array(value) for name, value in sample.items()}))
        for second, sample in enumerate(columns)
    ]


def last(wanted: str, *columns: Columns) -> list[float]:
    return [float(value) for value in rounds(wanted, *columns)[-1][wanted]]


def test_every_metric_says_what_it_is() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.unit
        assert metric.help


def test_every_way_needs_only_metrics_of_the_catalogue() -> None:
    for metric in METRICS.values():
        for way in metric.ways:
            assert set(way.needs) <= set(METRICS)


def test_what_is_derived_from_intrinsic_metrics_is_intrinsic() -> None:
    for metric in METRICS.values():
        for way in metric.ways:
            if any(Kind.INTRINSIC in METRICS[need].kind for need in way.needs):
                assert Kind.INTRINSIC in metric.kind


def test_cost_and_selectivity_have_the_kinds_of_haren_table_1() -> None:
    assert METRICS["cost"].kind == METRICS["selectivity"].kind == Kind.DYNAMIC | Kind.INTRINSIC
    assert METRICS["head_age"].kind == Kind.DYNAMIC | Kind.ON_UPSTREAM | Kind.ON_DOWNSTREAM


def test_cost_is_cpu_time_for_each_tuple_taken_in() -> None:
    start, end = {"cpu_time": (1.0, 1.0), "tuples_in": (10, 0)}, {"cpu_time": (3.0, 1.5), "tuples_in": (14, 5)}
    assert last("cost", start, end) == [0.5, 0.1]


def test_cost_comes_from_busy_time_where_there_is_no_cpu_time() -> None:
    start, end = {"busy_time": (1.0, 1.0), "tuples_in": (10, 0)}, {"busy_time": (3.0, 1.5), "tuples_in": (14, 5)}
    assert last("cost", start, end) == [0.5, 0.1]


def test_without_input_in_a_round_selectivity_keeps_its_last_value() -> None:
    samples = [{"tuples_in": (i, i), "tuples_out": (o, o)} for i, o in [(0, 0), (2, 5), (2, 9)]]
    assert last("selectivity", *samples) == [2.5, 2.5]
    assert np.isnan(last("selectivity", samples[1], samples[2])).all()


def test_what_comes_out_before_the_next_message_is_counted_belongs_to_it() -> None:
    """Rows are taken in by messages of 100, of which 25 come out, some at a time: mostly none are taken in."""
    samples = [{"tuples_in": (i // 4 * 100, 0), "tuples_out": (i // 4 * 25 + i % 4 * 6, i)} for i in range(9)]
    assert last("selectivity", *samples)[0] == pytest.approx(0.25)
    cpu = [{"tuples_in": (i // 4 * 100, 0), "cpu_time": (i / 4, i)} for i in range(9)]
    assert last("cost", *cpu)[0] == pytest.approx(0.01)


def test_what_an_idle_operator_uses_is_the_cost_of_no_tuple() -> None:
    samples = [{"tuples_in": (0, 0), "cpu_time": (0, 0)}]
    samples += [{"tuples_in": (0, 0), "cpu_time": (i, i)} for i in range(1, 30)]
    samples += [{"tuples_in": (10, 10), "cpu_time": (30, 31)}]
    assert last("cost", *samples) == [0.1, 0.2]


def test_a_counter_that_goes_down_makes_its_row_unknown_for_that_round_only() -> None:
    samples = [{"tuples_in": (10, 10)}, {"tuples_in": (3, 12)}, {"tuples_in": (8, 14)}]
    second = rounds("rate", *samples[:2])[-1]["rate"]
    np.testing.assert_array_equal(second, [np.nan, 2])
    assert last("rate", *samples) == [5, 2]


def test_the_queue_is_what_was_sent_but_not_yet_taken_in() -> None:
    queue = last("queue", {"tuples_in": (100, 30), "tuples_out": (50, 30)})
    np.testing.assert_array_equal(queue, [np.nan, 20])


def test_the_queue_is_never_negative() -> None:
    assert last("queue", {"tuples_in": (0, 60), "tuples_out": (50, 0)})[1] == 0


@pytest.mark.parametrize("restarted", [{"tuples_in": (9, 1), "tuples_out": (9, 9)}, {"tuples_out": (1, 9)}])
def test_the_queue_is_unknown_in_the_round_in_which_either_end_restarts(restarted: Columns) -> None:
    before = {"tuples_in": (9.0, 5.0), "tuples_out": (9.0, 5.0)}
    assert np.isnan(last("queue", before, {**before, **restarted})[1])


def test_queue_growth_may_be_negative() -> None:
    assert last("queue_growth", {"queue": (4, 9)}, {"queue": (6, 2)}) == [2, -7]


def test_fractions_of_a_second_come_from_cumulative_times() -> None:
    assert last("cpu", {"cpu_time": (1, 2)}, {"cpu_time": (1.5, 2)}) == [0.5, 0]
    assert last("busy", {"busy_time": (1, 2)}, {"busy_time": (1.75, 2)}) == [0.75, 0]
    assert last("wait", {"run_wait": (1, 2)}, {"run_wait": (1.25, 2)}) == [0.25, 0]


def test_a_path_without_cost_has_a_finite_rate_in_the_order_of_its_selectivity() -> None:
    rate = last("global_rate", {"global_selectivity": (0.5, 1), "global_cost": (0, 0)})
    assert np.isfinite(rate).all()
    assert rate[0] < rate[1]
    assert last("global_rate", {"global_selectivity": (0, 1), "global_cost": (0, 2)}) == [0, 0.5]
