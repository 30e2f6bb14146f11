"""Promises of running queries: what is read from Spark's progress, and that rows are dropped of whom they may."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from applications import SparkProcess, feeding
from support import named, until
from treadle import attach
from treadle.attachment.quality import live
from treadle.attachment.quality.keeper import SAMPLES, PromiseKeeper
from treadle.attachment.quality.query import CYCLE
from treadle.broker import Broker
from treadle.decide.quality import Promise
from treadle.engines.spark.agent.shedder import Report
from treadle.engines.spark.application import Process
from treadle.engines.spark.queries.progress import Progress
from treadle.errors import ConfigError
from treadle.linux.cores import Used
from treadle.loop.quality_rule import QualityRule

PROMISES = {
    "dear": {"priority": 1, "min_accuracy": 0.02},
    "cheap": {"priority": 5, "min_accuracy": 0.1},
}
RATE = 400
"""Rows a second, each of which costs the dear query some milliseconds: more than there is anywhere."""


class Model:
    """A driver with its agent, the machine's one core and its clocks: a query that is in one batch after the other.

    To read a row costs little, to work on one that is kept ten times that.
    """

    READ, WORK, ROWS = 0.0005, 0.005, 100
    count = 1

    def __init__(self) -> None:
        self.now, self.ahead = 1000.0, 1.7e9
        self.source = "FileStreamSource[/in]"
        self.suspended = 0.0
        self.part = 1.0
        self.parts: list[float] = []
        self._began = self.now
        self.quality = PromiseKeeper({"q": Promise(1.0, 0.05)}, lambda: {"shop": [Process(1, 1, True)]}, lambda: None)
        self.quality.in_process = True
        self._rule = QualityRule(self.quality, 60.0)

    def cycles(self, count: int) -> None:
        for _ in range(count * SAMPLES):
            self._rule.round(self.now)
            self.now += CYCLE / SAMPLES
            for query in self.quality._queries.values():
                query.use(self.now, CYCLE / SAMPLES)

    @property
    def query(self) -> dict[str, Any]:
        found: dict[str, Any] = self.quality.status()["queries"][0]
        return found

    @property
    def cores(self) -> float:
        """That the query is held to use."""
        [query] = self.quality._queries.values()
        return query.done().cpu

    # As the module `time`

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now + self.ahead

    # As the agent

    def look(self) -> list[Report]:
        batches = []
        while self._began + (took := self.ROWS * (self.READ + self.part * self.WORK)) <= self.now:
            ends, latest = {self.source: 0}, {self.source: 0}
            batches.append(Progress("run", 0, self._began + self.ahead, took, self.ROWS, ends, latest, 0.0))
            self._began += took
        return [Report("run", "q", False, 0, 0, tuple(batches))]

    def keep(self, parts: dict[str, float]) -> None:
        self.part = parts["run"]
        self.parts.append(self.part)

    def close(self) -> None:
        self.part = 1.0

    # As `Cores`

    def read(self) -> Used:
        return Used(self.now, 0.0)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model()
    for where in ("attachment.quality.keeper", "attachment.quality.query", "loop.trouble"):
        monkeypatch.setattr(f"treadle.{where}.time", made)
    monkeypatch.setattr("treadle.attachment.quality.keeper.Shedder", lambda *_: made)
    monkeypatch.setattr(made.quality, "_ahead", made.ahead)
    monkeypatch.setattr(made.quality._cores, "read", made.read)
    monkeypatch.setattr(made.quality._cores, "count", made.count)
    return made


class TestQuality:
    def test_nothing_is_dropped_of_files_however_fast_they_are_read(
        self, model: Model, caplog: pytest.LogCaptureFixture
    ) -> None:
        model.cycles(40)
        assert model.parts == []
        assert (model.query["promised"], model.query["keeps_all"]) == (1.0, "its source reports no lag")
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert said == ["query 'q' keeps all rows: its source reports no lag"]

    def test_rows_are_dropped_where_the_lag_is_known(self, model: Model) -> None:
        model.source = "KafkaV2[Subscribe[in]]"
        model.cycles(10)
        assert model.part < 1.0
        model.source = "FileStreamSource[/in]"
        model.cycles(2)
        assert model.part == 1.0  # once it is not known any more, all are kept again

    @pytest.mark.parametrize("seconds", [60.0, -60.0, 3600.0, -0.5])
    def test_what_a_query_uses_is_known_however_the_clock_is_set(self, model: Model, seconds: float) -> None:
        model.cycles(10)
        assert model.cores == pytest.approx(1.0, rel=0.1)
        model.ahead += seconds
        model.cycles(1)
        assert model.cores in (0.0, pytest.approx(1.0, rel=0.2))  # not known yet, or right
        model.cycles(4)
        assert model.cores == pytest.approx(1.0, rel=0.1)

    def test_other_promises_count_from_the_next_cycle_on(self, model: Model) -> None:
        setting = live.setting(model.quality)
        model.source = "KafkaV2[Subscribe[in]]"
        model.cycles(10)
        assert model.part < 0.95
        setting.prepare({"q": 0.95})()
        model.cycles(2)
        assert model.part >= 0.95 or model.quality.status()["short"]
        assert setting.read() == {"q": {"priority": 1.0, "min_accuracy": 0.95}}
        assert model.query["min_accuracy"] == 0.95
        setting.prepare({"other": {"priority": 2, "min_accuracy": 0.1}})()
        model.cycles(2)
        assert (model.part, model.query["min_accuracy"]) == (1.0, 1.0)  # no pattern matches it
        setting.prepare({"*": 0.05})()
        model.cycles(10)
        assert model.part < 0.95
        setting.prepare(False)()
        model.cycles(1)
        assert (model.part, setting.read()) == (1.0, False)
        model.cycles(5)
        assert model.part == 1.0
        setting.prepare(True)()
        model.cycles(10)
        assert model.part < 0.95
        assert setting.read() == {"*": {"priority": 0.0, "min_accuracy": 0.05}}

    @pytest.mark.parametrize(
        "wrong", ["off", 1, None, {"q": 2}, {"q": "all"}, {"q": {"min_accuracy": 0.1}}, {"q": None}, ["q"]]
    )
    def test_wrong_promises_are_refused_and_the_old_ones_hold(self, model: Model, wrong: Any) -> None:
        setting = live.setting(model.quality)
        before = setting.read()
        with pytest.raises(ConfigError):
            setting.prepare(wrong)
        assert setting.read() == before

    def test_that_an_agent_has_heard_nothing_is_said(self, model: Model, caplog: pytest.LogCaptureFixture) -> None:
        model.cycles(1)
        model.suspended = 17.0
        model.cycles(1)
        model.suspended = 0.0
        model.cycles(1)
        assert model.quality.status()["suspended"] == {"shop": 1}
        assert "it received nothing from Treadle for 17 s" in caplog.text

    def test_a_cycle_that_fails_drops_nothing_and_ends_nothing(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        model.source = "KafkaV2[Subscribe[in]]"
        model.cycles(10)
        assert model.part < 1.0
        with monkeypatch.context() as broken:
            broken.setattr(model.quality, "_measured", lambda _: 1 / 0)
            model.cycles(4)
            assert model.part == 1.0
        assert caplog.text.count("ZeroDivisionError") == 1
        model.cycles(10)
        assert model.part < 1.0

    def test_an_application_that_fails_is_left_alone_and_the_others_are_not(
        self, model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        odd = SimpleNamespace(look=lambda: 1 / 0, close=lambda: None)
        both = {"odd": [Process(2, 2, True)], "shop": [Process(1, 1, True)]}
        monkeypatch.setattr("treadle.attachment.quality.keeper.Shedder", lambda pid, _: model if pid == 1 else odd)
        monkeypatch.setattr(model.quality, "_applications", lambda: both)
        model.source = "KafkaV2[Subscribe[in]]"
        model.cycles(10)
        assert model.part < 1.0
        assert caplog.text.count("the agent in 'odd' fails, no rows of its queries are dropped: division by zero") == 1

    def test_of_ended_applications_nothing_is_kept(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        model.cycles(2)
        monkeypatch.setattr(model.quality, "_applications", dict)
        model.cycles(1)
        kept = ("_shedders", "_queries", "_troubles", "_suspended")
        assert [getattr(model.quality, each) for each in kept] == [{}] * 4


def test_without_agents_nothing_can_be_promised() -> None:
    with pytest.raises(ConfigError, match="only an agent can drop rows"):
        attach("nobody", qod=PROMISES, agent=False)


def test_rows_are_dropped_of_whom_they_may_and_kept_again_afterwards(
    tmp_path: Path, broker: Broker, own_journals: Path
) -> None:
    topic = named("rows")
    with feeding(broker, topic, RATE), SparkProcess(tmp_path, broker, topic) as application:
        for name in ("dear", "cheap", "other"):
            application.start(name, "dear" if name == "dear" else "micro", 0)
        with attach(application.pid, qod=PROMISES) as attachment:

            def found(name: str) -> dict[str, Any]:
                queries = attachment.status()["quality"]["queries"]
                return next((each for each in queries if each["query"] == name), {"promised": 1.0, "accuracy": None})

            until(lambda: found("dear")["promised"] < 0.9 and (found("dear")["accuracy"] or 1.0) < 0.95)
            assert found("dear")["promised"] >= 0.02
            assert found("cheap")["promised"] == found("other")["promised"] == 1.0
            assert found("other")["min_accuracy"] == 1.0  # nobody has said that it may do with less
            assert found("dear")["rate"] == pytest.approx(RATE, rel=0.5)
            attachment.set(quality={"dear": 0.5, "cheap": {"priority": 5, "min_accuracy": 0.1}})
            until(lambda: found("dear")["min_accuracy"] == 0.5)
            attachment.set(paused=True)
            assert {found(name)["promised"] for name in ("dear", "cheap", "other")} == {1.0}
            attachment.set(quality=False, paused=False)
            assert attachment.settings.read()["quality"] is False
        assert attachment.status()["quality"]["queries"]  # also when it is over
