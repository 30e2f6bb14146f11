"""The benchmark of promises in its short form: a scenario runs on Kafka, and figures and claims follow from it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from support import until
from treadle.bench.quality import scenario_run
from treadle.bench.quality.figures import Course, Cycle, Look, figures
from treadle.bench.quality.plot import draw
from treadle.bench.quality.scenarios import SCENARIOS, Phase, Scenario
from treadle.pipelines.quality.placement import SHORT
from treadle.workloads.injector import Injector, Sent

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from treadle.broker import Broker

KEYS = (
    "min_accuracy_violations_s",
    "mean_abs_accuracy_error",
    "mean_abs_count_error",
    "mean_abs_rate_error",
    "lag_with",
    "lag_without",
    "queries",
)


class Told(Injector):
    """What was sent, without a process that sends it."""

    def __init__(self, sent: list[Sent]) -> None:
        self.sent = sent


def course(accuracy: list[float], rate: float, lag: list[int], low: float = 0.2) -> Course:
    """A cycle a second, the first two to warm up; 100 rows a second came in truth."""
    made = Course(0.0, {"rows": "topic"})
    made.begin(0.0, Phase(2, (0.5,)), {"rows": 100.0})
    made.begin(2.0, Phase(len(accuracy) - 2, (1.5,)), {"rows": 100.0})
    made.ended = float(len(accuracy))
    for second, (each, waiting) in enumerate(zip(accuracy, lag, strict=True)):
        made.cycles.append(Cycle(float(second), {"low": low, "high": 1.0}, {"low": each, "high": 1.0}, {"rows": rate}))
        made.looks.append(Look(float(second), {"rows": waiting}, {"rows": 50 * second}, 1.6 * second, 0.2 * second))
    made.promises = {
        "low": {"priority": 1.0, "min_accuracy": 0.2},
        "high": {"priority": 5.0, "min_accuracy": 0.5},
    }
    made.consumed = {"low": round(100 * sum(accuracy[2:])), "high": 100 * (len(accuracy) - 2)}
    made.fed_by = {"low": ["topic"], "high": ["topic"]}
    made.stall_cycles = 2
    made.sent = Told([Sent(float(second), {"topic": 100 * second}) for second in range(len(accuracy) + 1)])
    return made


SCENARIO = Scenario("a scenario", SCENARIOS["3"].make, ({"rows": "x:y"},), (Phase(2, (0.5,)), Phase(28, (1.5,))))
OUT_OF_TURN = "shed while a lower priority had more than its minimum"
GROWING = [100 * second for second in range(30)]


def found(with_: Course) -> tuple[dict[str, object], dict[str, bool]]:
    told = figures(SCENARIO, {"rows": 66.7}, course([1.0] * 30, 100.0, GROWING), with_, 1.0)
    return told, {each["claim"]: each["holds"] for each in told["claims"]}


def test_promises_that_are_kept_are_told_so() -> None:
    told, holds = found(course([0.21] * 30, 100.5, [50] * 30))
    assert all(key in told for key in KEYS)
    assert (told["min_accuracy_violations_s"], told["mean_abs_rate_error"]) == (0.0, 0.005)
    assert told["mean_abs_accuracy_error"] == pytest.approx(0.005)
    assert told["lag_growth_without"] == pytest.approx(100.0)
    assert all(holds.values()), told["claims"]


def test_a_sink_that_stays_below_its_minimum_is_noticed() -> None:
    told, holds = found(course([0.21] * 10 + [0.1] * 3 + [0.21] * 4 + [0.1] + [0.21] * 12, 100.0, [50] * 30))
    assert (told["min_accuracy_violations_s"], told["longest_violation_s"]) == (4.0, 3.0)
    assert not holds["seconds below a minimum, in a stretch"]


def test_a_consumer_that_counts_other_rows_than_were_said_and_a_late_stall_are_noticed() -> None:
    wrong = course([0.21] * 30, 100.0, [50] * 30)
    wrong.consumed = {"low": round(0.1 * 2800), "high": 2800}
    wrong.stall_cycles = 3
    told, holds = found(wrong)
    assert told["mean_abs_count_error"] == pytest.approx(0.055)
    assert not holds["mean |accuracy - what the consumer counted|"]
    assert not holds["mean |promised - what the consumer counted|"]
    assert not holds["cycles until a sink that stalls shows"]


@pytest.mark.parametrize(
    ("hop", "why", "moved"),
    [("low", SHORT, True), ("high", SHORT, False), ("low", "it can use more cores there", False)],
)
def test_it_is_noticed_who_leaves_a_worker_first_and_why(hop: str, why: str, *, moved: bool) -> None:
    with_ = course([0.21] * 30, 100.0, [50] * 30)
    move = {"time": 5.0, "hop": hop, "origin": "worker-1", "target": "worker-2", "why": why}
    with_.results = {"moves": [move], "rows_lost": 0, "rows_doubled": 0, "longest_warm_up_s": 61.0}
    told = figures(replace(SCENARIO, leaves="low"), {"rows": 66.7}, course([1.0] * 30, 100.0, GROWING), with_, 1.0)
    holds = {each["claim"]: each["holds"] for each in told["claims"]}
    assert holds["'low' moves first, since minima can't be paid for"] is moved
    assert not holds["seconds until one that moved has its minimum"]


def test_who_sheds_before_a_lower_priority_is_noticed() -> None:
    wrong = course([0.5] * 30, 100.0, GROWING, low=0.5)
    wrong.cycles = [each._replace(accuracy={"low": 0.5, "high": 0.8}) for each in wrong.cycles]
    _, holds = found(wrong)
    assert not holds[OUT_OF_TURN]
    assert not holds["growth of what waits, as a part of the input"]
    assert not holds["mean |promised - current accuracy|"]


def test_a_load_that_comes_and_goes_is_looked_at_cycle_by_cycle() -> None:
    """At times there is too little for both, at times enough for the higher: on average the lower has some."""
    changing = course([0.2, 0.6] * 15, 100.0, [50] * 30)
    for second, each in enumerate(changing.cycles):
        scarce = second % 2 == 0
        promised = {"low": 0.6, "high": 1.0} if scarce else {"low": 0.2, "high": 0.7}  # what the next cycle sees
        accuracy = {"low": 0.2, "high": 0.7} if scarce else {"low": 0.6, "high": 1.0}
        changing.cycles[second] = each._replace(promised=promised, accuracy=accuracy)
    told, holds = found(changing)
    assert told["out_of_turn"] == {"high before low": 0.0}
    assert holds[OUT_OF_TURN]


def test_an_estimate_is_judged_by_what_came_in_its_time_and_by_what_comes_now() -> None:
    late = course([0.21] * 30, 100.0, [50] * 30)
    late.phases[1] = (*late.phases[1][:2], {"rows": 200.0})
    told, _ = found(late)
    assert (told["mean_abs_rate_error"], told["mean_abs_rate_error_with_delay"]) == (0.0, 0.5)


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    draw(SCENARIO, course([1.0] * 30, 100.0, GROWING), course([0.21] * 30, 100.0, [50] * 30), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_what_an_injector_says_is_what_came(broker: Broker) -> None:
    topic = "injected"
    scenario_run.make_topics(broker.bootstrap, [topic])
    with Injector(broker.bootstrap, {topic: "treadle.workloads.knn:point"}) as fill:
        fill.heap({topic: 500})
        fill.rates({topic: 1000.0})
        until(lambda: fill.sent[-1].rows[topic] > 1000)
        sent = fill.stop()[topic]
    from confluent_kafka import Consumer, TopicPartition

    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    ends = [reader.get_watermark_offsets(TopicPartition(topic, each))[1] for each in range(scenario_run.PARTITIONS)]
    reader.close()
    assert sum(ends) == sent
    assert abs(ends[0] - ends[1]) <= 1


@pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="a whole benchmark in small: make soak")
def test_a_short_run_finds_every_suspicious_payment_and_gives_all_figures(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How good they are is for a long one on a quiet machine."""
    for name, value in (("FIRST_ROWS", 50), ("LONG_ENOUGH", 0.1), ("SETTLED", float("inf"))):
        monkeypatch.setattr(scenario_run, name, value)
    whole = SCENARIOS["4"]
    short = Scenario(whole.what, whole.make, whole.applications, (Phase(1, (0.5,)), Phase(2, (1.5,))))
    told = scenario_run.measure(scenario_run.Place(spark, broker.bootstrap, short, unit=2e-5, cycle=0.5))
    assert all(key in told for key in KEYS)
    assert told["suspicious_found"] == told["suspicious_sent"] > 0
    assert set(told["queries"]) == {"fraud", "report"}
    assert told["cycles"] >= 2 * scenario_run.LEAST
