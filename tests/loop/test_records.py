"""Every change is a record that says what, from, to, and why."""

from __future__ import annotations

import logging

import pytest

from loop.worlds import FOUND, World
from treadle.loop import Binding
from treadle.model import ThreadRef


class TestRecords:
    def test_a_decision_says_what_from_to_why_and_on_which_metrics(self, world: World) -> None:
        (batch,) = world.loop().round()
        decision = list(batch)[1]
        assert (decision.target, decision.instance) == (ThreadRef(2), "mem:q.o1[0]")
        assert (decision.knob, decision.before, decision.after) == ("nice", FOUND, 0.0)
        assert (decision.policy, decision.engine, decision.time) == ("queue-size", "mem", 100.0)
        assert (decision.priority, decision.metrics) == (50.0, {"queue": 50.0})
        assert decision.reason.startswith("longest queue first")
        assert str(decision).startswith("nice of thread 2 of mem:q.o1[0]: 3.0 -> 0.0, queue-size: longest queue first")
        assert str(decision).endswith("priority 50 (queue 50)")

    def test_a_groups_decision_names_its_most_urgent_member(self, world: World) -> None:
        world.engine.columns["queue"][:] = 50.0, 100.0, 0.0
        world.engine.shares.values["q"] = 10.0
        *_, batch = world.loop(Binding(world.policy, "shares", 1.0, grouping="query")).round()
        (decision,) = batch
        assert (decision.target, decision.instance, decision.metrics) == ("q", "mem:q.o1[0]", {"queue": 100.0})
        assert str(decision).startswith("shares of q: 10.0 -> 1024.0, queue-size: ")

    def test_one_line_is_logged_for_a_round_with_changes(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "treadle.loop")
        loop = world.loop()
        loop.run(3.0)
        (record,) = caplog.records
        assert record.getMessage().startswith("changed 3 values: 3 nice of mem by queue-size (longest queue first")
        assert (record.__dict__["changes"], record.__dict__["failures"]) == (3, 0)

    def test_every_decision_is_a_line_at_debug(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "treadle.loop")
        world.loop().round()
        assert [r.__dict__["decision"].instance for r in caplog.records if r.levelno == logging.DEBUG] == list(
            world.engine.topology().ids
        )

    def test_only_the_latest_are_remembered(self, world: World) -> None:
        loop = world.loop(log_size=6)
        for second in range(5):
            world.engine.columns["queue"] = world.engine.columns["queue"][::-1].copy()
            world.clock.time = 100.0 + second
            loop.round()
        assert len(loop.decisions) <= 6
        assert [d.time for d in loop.decisions][-1] == 104.0
        assert len(list(loop.decisions)) == len(loop.decisions)

    def test_the_last_round_is_remembered_whole(self, world: World) -> None:
        loop = world.loop(log_size=1)
        loop.round()
        assert len(loop.decisions) == 3
