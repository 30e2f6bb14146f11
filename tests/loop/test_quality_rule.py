"""The quality step of the loop: how often it runs, what happens while it fails, and that it delays no round."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from loop.worlds import World
from support import until
from treadle.loop import Binding
from treadle.loop.quality_rule import QualityRule


class Told:
    """A stand-in for a system with promises. It records all calls; `measure` raises `error` if that is set."""

    period = 2.0
    in_process = True

    def __init__(self) -> None:
        self.said: list[str] = []
        self.error: Exception | None = None
        self.seen: str | None = "seen"
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.controller: Any = SimpleNamespace(cycle=lambda seen: f"decision on what was {seen}")

    def measure(self, now: float) -> Any:
        self.said.append(f"measure at {now:g}")
        self.goes_on.wait(60.0)
        if self.error is not None:
            raise self.error
        return self.seen

    def carry_out(self, decision: Any, now: float) -> None:
        self.said.append(f"{decision} at {now:g}")

    def keep_all(self) -> None:
        self.said.append("keep all")


@pytest.fixture
def told() -> Told:
    return Told()


def test_each_period_what_is_measured_is_decided_on_and_carried_out(told: Told) -> None:
    rule = QualityRule(told, 60.0)
    for now in (10.0, 10.5, 11.9, 12.0, 13.0, 17.0, 17.5, 18.0):
        rule.round(now)
    measured = [each for each in told.said if each.startswith("measure")]
    assert measured == ["measure at 10", "measure at 12", "measure at 17", "measure at 18"]  # none is made up for
    assert told.said[1] == "decision on what was seen at 10"


@pytest.mark.parametrize("missing", ["seen", "controller"])
def test_nothing_is_carried_out_where_there_is_nothing_to_decide(told: Told, missing: str) -> None:
    setattr(told, missing, None)
    QualityRule(told, 60.0).round(10.0)
    assert told.said == ["measure at 10"]


def test_while_it_fails_all_rows_are_kept_and_it_is_tried_less_and_less_often(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    rule = QualityRule(told, 60.0)
    told.error = ValueError("no figures")
    for now in range(10, 26):
        rule.round(float(now))
    assert told.said == [what for at in (10, 12, 16, 24) for what in (f"measure at {at}", "keep all")]
    assert rule.next_due == pytest.approx(40.0)
    assert [record.getMessage() for record in caplog.records] == [
        "keeping promises fails, all rows are kept until it works again: no figures"
    ]
    assert rule.trouble.total == 4
    told.error = None
    rule.round(40.0)
    assert told.said[-1] == "decision on what was seen at 40"
    assert rule.trouble.streak == 0


def test_a_decision_that_can_not_be_carried_out_is_a_failure_too(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(told, "carry_out", refuse)
    rule = QualityRule(told, 60.0)
    rule.round(10.0)
    assert told.said == ["measure at 10", "keep all"]
    assert rule.trouble.error == "gone"


def test_a_slow_measurement_delays_no_round_and_is_never_made_twice_at_once(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told, "in_process", False)
    told.goes_on.clear()
    rule = QualityRule(told, 60.0)
    for now in (10.0, 12.0, 14.0):
        rule.round(now)  # these return although the first still measures
        assert rule.next_due == now + 2.0  # so nobody waits for it in vain
    until(lambda: told.said)
    assert told.said == ["measure at 10"]
    told.goes_on.set()
    until(lambda: len(told.said) == 2)

    def goes_on() -> bool:
        rule.round(16.0)
        return len(told.said) == 4

    until(goes_on)
    assert rule.next_due == 18.0
    assert told.said[2:] == ["measure at 16", "decision on what was seen at 16"]
    rule.rest()
    assert not [thread for thread in threading.enumerate() if thread.name == "treadle-quality"]


def test_a_loop_wakes_for_promises_although_its_policy_is_due_later(world: World, told: Told) -> None:
    loop = world.loop(Binding(world.policy, "nice", 10.0), quality=told)
    told.period = 0.5
    loop.run(2.0)
    assert len([each for each in told.said if each.startswith("measure")]) == 4
    assert world.engine.asked == 1
