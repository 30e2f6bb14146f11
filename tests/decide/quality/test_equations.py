"""Each equation against its definition in the paper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality import Flow, InputRate, Promise, equations
from treadle.errors import ConfigError
from treadle.model import Floats

PART = st.floats(0.0, 1.0)


def taxi(copies: int = 2) -> Flow:
    """Two sources, two sinks that read both."""
    return Flow.of(
        {"src1": (), "src2": (), "snk1": ("src1", "src2"), "snk2": ("src1", "src2")},
        {"snk1": Promise(1, 0.4), "snk2": Promise(5, 0.6)},
        {"snk2": copies},
    )


def by_task(flow: Flow, **values: float) -> Floats:
    return np.array([values.get(name, 0.0) for name in flow.tasks])


def test_priority_and_minimum_of_a_task_are_the_highest_of_the_sinks_it_feeds() -> None:
    flow = Flow.of(
        {"a": (), "b": ("a",), "c": ("a",), "d": ("b",), "e": ("c",), "f": ("c",)},
        {"d": Promise(3, 0.2), "e": Promise(1, 0.9), "f": Promise(2, 0.1)},
    )
    assert dict(zip(flow.tasks, flow.priority, strict=True)) == {"a": 3, "b": 3, "c": 2, "d": 3, "e": 1, "f": 2}
    assert dict(zip(flow.tasks, flow.minimum, strict=True)) == {
        "a": 0.9, "b": 0.2, "c": 0.9, "d": 0.2, "e": 0.9, "f": 0.1
    }  # fmt: skip


def test_the_current_accuracy_is_the_least_of_what_leads_there_times_its_own() -> None:
    flow = taxi()
    local = by_task(flow, src1=0.5, src2=0.8, snk1=0.9, snk2=1.0)
    assert equations.current_accuracy(flow, local).tolist() == [0.5, 0.8, pytest.approx(0.45), 0.5]


def test_the_local_accuracy_is_that_of_the_slowest_instance() -> None:
    flow = taxi()
    in_rate = np.array([60.0, 100.0, 80.0, 40.0, 70.0])
    local = equations.local_accuracy(flow, in_rate, by_task(flow, src1=60, src2=100), by_task(flow, src1=120, src2=100))
    assert local.tolist() == [0.5, 1.0, 0.5, 0.5]


def test_what_is_sent_nothing_takes_all_of_it() -> None:
    flow = taxi()
    assert equations.local_accuracy(flow, np.zeros(5), np.zeros(4), np.zeros(4)).tolist() == [1.0] * 4


def test_the_cpu_of_a_task_is_that_of_the_instance_with_least_input() -> None:
    flow = taxi()
    cpu = equations.cpu_of_tasks(flow, np.array([1.0, 1, 1, 90, 20]), np.array([0.1, 0.2, 0.3, 0.9, 0.4]))
    assert cpu.tolist() == [0.1, 0.2, 0.3, 0.4]


@given(PART, st.floats(0.01, 1), st.floats(0.01, 1))
def test_required_cpu_gives_the_accuracy_it_was_asked_for(accuracy: float, cpu: float, current: float) -> None:
    asked = np.array([accuracy])
    needed = equations.required(asked, np.array([cpu]), np.array([current]))
    assert 0.0 <= needed[0] <= 1.0
    if needed[0] < 1.0:
        assert current * needed[0] / cpu == pytest.approx(accuracy)


@pytest.mark.parametrize(("accuracy", "expected"), [(0.0, 0.0), (0.3, 1.0)])
def test_a_task_of_which_nothing_is_known_is_taken_for_a_whole_core(accuracy: float, expected: float) -> None:
    assert equations.required(np.array([accuracy]), np.zeros(1), np.zeros(1))[0] == expected


def test_what_will_be_dropped_is_dropped_at_the_source() -> None:
    flow = taxi()
    desired = flow.upstream(np.array([0.4, 0.8]))
    streams, outside = equations.keep(flow, desired)
    assert desired.tolist() == [0.8, 0.8, 0.4, 0.8]
    assert outside.tolist() == [0.8, 0.8, 1.0, 1.0]
    ends = [flow.tasks[end] for end in flow.end]
    assert dict(zip(ends, streams.tolist(), strict=True)) == {"snk1": 0.5, "snk2": 1.0}


@given(st.lists(PART, min_size=4, max_size=4))
def test_what_is_kept_on_the_way_to_a_sink_is_what_it_desires(of_sinks: list[float]) -> None:
    flow = Flow.of(
        {"s": (), "a": ("s",), "b": ("s",), "c": ("a",), "d": ("a",), "e": ("b",), "f": ("b",)},
        {},
    )
    desired = flow.upstream(np.array(of_sinks))
    streams, outside = equations.keep(flow, desired)
    reached = outside.copy()
    for start, end, kept in sorted(zip(flow.start.tolist(), flow.end.tolist(), streams.tolist(), strict=True)):
        reached[end] = reached[start] * kept
    assert reached[flow.sinks] == pytest.approx(of_sinks, abs=1e-9)


def test_the_rate_of_a_source_is_exact_while_its_lag_grows_and_shrinks() -> None:
    rate = InputRate(window=5.0)
    taken = 0.0
    found = []
    for second in range(20):
        taken += 50 if second < 10 else 150
        found.append(rate.update(float(second), taken, 1000.0 + 100.0 * second - taken))
    assert found[0] is None
    assert [each.arriving for each in found[1:] if each] == [100.0] * 19
    assert found[5] is not None
    assert found[5].taken == 50.0


def test_a_source_that_starts_anew_is_no_negative_rate() -> None:
    rate = InputRate()
    rate.update(0.0, 1000.0, 0.0)
    assert rate.update(1.0, 10.0, 5.0) is None
    assert rate.update(2.0, 20.0, 5.0) == (10.0, 10.0)


@pytest.mark.parametrize(
    ("promises", "message"),
    [({"snk1": Promise(1, 1.2)}, "accuracy"), ({"nobody": Promise()}, "no such task"),
     ({"src1": Promise()}, "not a sink: other tasks read it"), ({"snk1": Promise(float("nan"), 0.1)}, "priority")],
)  # fmt: skip
def test_a_promise_that_makes_no_sense_is_refused(promises: dict[str, Promise], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Flow.of({"src1": (), "snk1": ("src1",)}, promises)


def test_promises_on_a_cycle_are_refused() -> None:
    with pytest.raises(ConfigError, match="feeds itself"):
        Flow.of({"a": ("b",), "b": ("a",), "c": ("b",)}, {})
