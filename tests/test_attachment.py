"""Attaching to real Spark applications, with real priorities on real threads, read back from the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from applications import SparkProcess, Standing, differences, feed, groups_left, standings
from support import treadle, until
from treadle import config, jvm
from treadle.attachment import Attachment, attach, checks, plan, watch
from treadle.attachment.policies.around import AdaptiveUnderAttach, Caps, Grouped, Nested, WithinQuery
from treadle.attachment.policies.threads import BatchStartThreadsFirst, HelpersFirst, JvmServiceThreadsFirst
from treadle.attachment.shown import report
from treadle.broker import Broker
from treadle.decide import registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.policies import DownstreamFirst, QueueSize, UserPriority
from treadle.decide.policy import Policy
from treadle.enforce import kernel
from treadle.enforce.kernel import Mount, cgroup, find_mount, realtime
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import ConfigError, EngineError
from treadle.model import Instance, Operator, Query, Topology
from treadle.values import Schedule, Snapshot

pytestmark = pytest.mark.usefixtures("own_journals")
FACTS = {fact.what: fact for fact in kernel.facts()}


def needs(*parts: str) -> None:
    """Skip, and say why, where this kernel or this user can't do it."""
    for part in parts:
        fact = FACTS[checks.FACTS[part]]
        if not fact.works:
            pytest.skip(f"{part}: {fact.why} ({fact.remedy})")


def main_thread(attachment: Attachment, query: str) -> int | None:
    """The thread of a stage of this query."""
    rows = [row for row in attachment.status()["rows"] if row["query"] == query]
    mains = [thread["tid"] for row in rows for thread in row["threads"] if thread["role"] == "main"]
    return mains[0] if mains else None


def standing(attachment: Attachment, query: str, pid: int) -> Standing | None:
    tid = main_thread(attachment, query)
    return None if tid is None else standings(pid).get(tid)


IDLE = ("block-manager", "shuffle-", "rpc-", "netty", "map-output", "spark-listener", "SparkUI", "state-store", "GC ")
"""How threads are called for which no batch of an application in local mode waits."""


def names(pid: int, tids: Container[int]) -> list[str]:
    """Of these threads of a JVM."""
    return [thread.name for thread in jvm.dump(pid, frames=0) if thread.tid in tids]


def comm(pid: int, tid: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{tid}/comm").read_text()
    except OSError:  # it has ended
        return ""


# ------------------------------------------------------------ on a real application


def test_the_more_important_query_gets_the_lower_nice_and_stopping_puts_all_back(application: SparkProcess) -> None:
    needs("nice")
    before = standings(application.pid)
    with attach(application.pid, priorities={"high": 10}) as attachment:
        until(lambda: (s := standing(attachment, "high", application.pid)) and s.nice == -10)
        until(lambda: (s := standing(attachment, "low", application.pid)) and s.nice == 0)
        status = attachment.status()
        assert status["policy"] == "user-priority"
        assert {row["query"] for row in status["rows"]} == {"high", "low", "driver"}
        row = next(row for row in status["rows"] if row["query"] == "high")
        assert "nice" in row["change"]
        assert "by the priority of the query, as shares" in row["why"]
        with pytest.raises(EngineError, match="another treadle process is attached"):
            attach(application.pid)
        changed = names(application.pid, differences(before, application.pid))
        assert any(name.startswith("dag-scheduler-event-loop") for name in changed)
        assert [name for name in changed if name.startswith(IDLE)] == []
        busy = sum(len(row["threads"]) for row in attachment.status()["rows"] if row["query"] == "high")
        assert len(changed) < busy + 40, changed
    assert differences(before, application.pid) == {}
    assert not attachment.running
    with attach(application.pid, priorities={"high": 2}, strict=True) as attachment:
        until(lambda: (s := standing(attachment, "high", application.pid)) and s.nice == -20)
        until(lambda: (s := standing(attachment, "low", application.pid)) and s.nice == 0)
    assert differences(before, application.pid) == {}


def test_without_priorities_what_plans_goes_first_and_compilers_are_held_back(application: SparkProcess) -> None:
    needs("nice")
    before = standings(application.pid)

    def nices(name: str) -> set[int]:
        """Of the threads that the kernel knows by it."""
        named = [tid for tid in standings(application.pid) if comm(application.pid, tid).startswith(name)]
        return {each.nice for tid, each in standings(application.pid).items() if tid in named}

    with attach(application.pid):
        until(lambda: nices("stream executio") == {-20})
        until(lambda: nices("C2 Compiler") == {9})
        assert nices("Signal Dispatch") == {0}
    assert differences(before, application.pid) == {}


def test_settings_are_changed_while_it_runs_and_the_kernel_shows_it(
    application: SparkProcess,
    own_sockets: Path,  # commands without a name must find nothing else
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs("nice")
    before = standings(application.pid)

    def nice(query: str, wanted: int) -> None:
        until(lambda: (s := standing(attachment, query, application.pid)) and s.nice == wanted)

    def ctl(*words: str) -> tuple[int, str]:
        code = treadle(monkeypatch, "ctl", *words)
        told = capsys.readouterr()
        return code, told.out + told.err

    with attach(application.pid, priorities={"high": 10}) as attachment:
        nice("high", -10)
        assert attachment.set(priorities={"low": 10})[0].before == {"high": 10, "*": 1.0}
        nice("low", -10)
        nice("high", 0)
        assert ctl("set", 'priorities={"high": 10}', "period=100ms")[0] == 0
        nice("high", -10)
        nice("low", 0)
        assert attachment.plan.period == attachment.loop.period() == 0.1
        for wrong in (
            'priorities={"high": -1}',
            "priorities=high",
            "period=1ms",
            "policy=fastest",
            "paused=1",
            "slots=0",
        ):
            code, told = ctl("set", "paused=true", wrong)
            assert (code, told.count("error:")) == (2, 1)
        assert not attachment.loop.paused
        assert ctl("pause") == (0, "")
        assert differences(before, application.pid) == {}
        rounds = attachment.loop.stats.rounds
        assert ctl("resume") == (0, "")
        nice("high", -10)
        assert attachment.loop.stats.rounds > rounds
        assert ctl("set", 'queries=["low"]')[0] == 0
        nice("high", 0)
        assert ctl("set", 'queries=["*"]')[0] == 0
        nice("high", -10)
        assert ctl("priority", "low=10", "--dry-run")[1].startswith("would change priorities from {")
        assert ctl("priority", "low=10") == (0, '{"low": 10.0, "*": 1.0}\n')
        nice("low", -10)
        attachment.set(priorities={"low": 10}, policy="downstream-first")
        until(lambda: any(row["why"].startswith("downstream-first: ") for row in attachment.status()["rows"]))
        assert attachment.status()["policy"] == "downstream-first"
        attachment.set(priorities={"high": 10}, period="50ms", policy="user-priority")
        nice("high", -10)
        assert attachment.plan.period == 0.05
        assert "policy from downstream-first to user-priority  (this process)" in ctl("history")[1]
    assert differences(before, application.pid) == {}


def test_rounds_are_left_out_while_nothing_happens(application: SparkProcess) -> None:
    needs("nice")
    with attach(application.pid, priorities={"high": 10}) as attachment:
        until(lambda: (s := standing(attachment, "high", application.pid)) and s.nice == -10)
        stats, period = attachment.loop.stats, attachment.plan.period

        def few() -> bool:
            """In some second; batches that begin and end make others restless."""
            began, rounds = time.monotonic(), stats.rounds
            until(lambda: time.monotonic() - began > 1.0)
            return (stats.rounds - rounds) * period < 0.6 * (time.monotonic() - began)

        until(few)


def test_candidates_of_a_learner_take_turns_over_the_threads_of_a_running_application(
    application: SparkProcess,
) -> None:
    needs("nice")
    before = standings(application.pid)
    chosen = "adaptive:learner=ucb,delay=0.5,candidates=downstream-first+random"
    with attach(application.pid, policy=chosen, enforce="nice") as attachment:
        judged = attachment.plan.policy
        assert isinstance(judged, AdaptiveUnderAttach)
        learner = judged.inner
        assert isinstance(learner, Adaptive)
        until(lambda: any("bound" in choice.reason for choice in learner.history))
        until(lambda: any("in charge (ucb" in row["why"] for row in attachment.status()["rows"]))
        until(lambda: {"output_rate", "total_queue"} <= set(learner.state()["memory"]["history"]))
        assert not attachment.status()["failures"]
        assert {choice.chosen for choice in learner.history} == {"downstream-first", "random"}
        attachment.set(objectives="min queue_variance+min total_queue", candidates="queue-size+random")
        until(lambda: attachment.status()["adaptive"]["candidates"]["queue-size"]["measured"] > 0)
        for setting, wrong in (("objectives", "min latency"), ("candidates", "fastest"), ("candidates", "")):
            with pytest.raises(ConfigError):
                attachment.settings.set({"period": "100ms", setting: wrong})
        shown = attachment.status()["adaptive"]
        assert shown["objectives"] == ["min queue_variance 0.5", "min total_queue 0.5"]
        assert set(shown["candidates"]) == {"queue-size", "random"}
        until(lambda: any("in charge (ucb" in row["why"] for row in attachment.status()["rows"]))
        assert [c.chosen for c in learner.history if c.reason.startswith("warm-up")] == [
            *("downstream-first", "random", "queue-size")
        ]
        assert not attachment.status()["failures"]
    assert differences(before, application.pid) == {}


def test_rows_are_counted_from_when_they_come_until_they_have_left(application: SparkProcess, broker: Broker) -> None:
    """Both queries read the same topic, and write about 15 of 16 of its rows into Kafka."""
    with SparkEngine(Application.find(pid=application.pid), knobs={}, beans_period=0.1, needs_beans=True) as engine:

        def waiting() -> float:
            engine.topology()
            return engine.sample(frozenset({"external_queue"})).totals["total_queue"]

        def sent() -> float:
            return sum(engine._poller.flow._sent.values())

        feed(broker, application.topic, 100)
        until(lambda: waiting() == 0.0 and 0.9 < engine._poller.selectivity < 1.0)  # once a batch of each is over
        before = sent()
        feed(broker, application.topic, 500)
        until(lambda: sent() > before + 900.0)
        until(lambda: waiting() == 0.0)


def changed_to(attachment: Attachment) -> set[tuple[str, str, str]]:
    """Which operators' threads have another nice than the usual, or would have, and which one.

    Empty while not all of it is known: plans, and the threads of the three stages of both queries.
    """
    status = attachment.status()
    stages = sum(row["query"] in ("high", "low") for row in status["rows"])
    unnamed = any(row["operator"].startswith("stage ") for row in status["rows"])
    if status["unplanned"] or unnamed or stages < 6 or not attachment.loop.settled:
        return set()
    ends = {(row["query"], row["operator"], row["change"].rpartition(" -> ")[2]) for row in status["rows"]}
    return {end for end in ends if end[2] not in ("", "0")}


def all_changed_to(pid: int, least: set[tuple[str, str, str]], **options: Any) -> set[tuple[str, str, str]]:
    """All that `changed_to` has had during an attachment, which ends when `least` is among it."""
    found: set[tuple[str, str, str]] = set()
    with attach(pid, **options) as attachment:

        def complete() -> bool:
            found.update(changed_to(attachment))
            return bool(found) and found >= least

        until(complete)
    return found


@pytest.mark.parametrize("given", [{}, {"priorities": {"low": 5}}])
def test_a_dry_run_shows_the_changes_of_the_real_one(application: SparkProcess, given: dict[str, Any]) -> None:
    """And no others; but some threads, as those that write checkpoints, have work only between two batches."""
    needs("nice")
    real = all_changed_to(application.pid, set(), **given)
    dry = all_changed_to(application.pid, real, dry_run=True, **given)
    all_changed_to(application.pid, dry, **given)


def test_a_dry_run_changes_nothing_and_says_what_it_would(application: SparkProcess) -> None:
    before = standings(application.pid)
    with attach(application.pid, priorities={"low": 5}, dry_run=True) as attachment:
        until(lambda: {d.after for d in attachment.loop.decisions if d.knob == "nice"} == {-7.0})
        assert differences(before, application.pid) == {}
        assert {decision.after for decision in report.net(attachment.loop.decisions)} == {-7.0}


@pytest.mark.parametrize(
    ("enforce", "shown"),
    [
        ("cgroup", lambda high, low: high.group.endswith("/high") and low.group.endswith("/low")),
        ("cgroup:by=operator", lambda high, low: "/high%2E" in high.group and "/low%2E" in low.group),
        ("cgroup:by=query/operator", lambda high, low: "/high/" in high.group and "/low/" in low.group),
        ("cgroup+nice", lambda high, low: high.group.endswith("/high") and low.group.endswith("/low")),
        ("slice", lambda high, low: high.slice == 100_000 and low.slice == 100_000_000 and high.policy == 3),
        ("rt", lambda high, low: high.policy == low.policy == os.SCHED_RR and high.priority > low.priority),
        ("quota", lambda high, low: low.group.endswith("/low") and "treadle" not in high.group),
    ],
)
def test_each_enforcer_does_what_it_says_and_puts_it_back(application: SparkProcess, enforce: str, shown: Any) -> None:
    needs(*(part.partition(":")[0] for part in enforce.split("+")))
    before = standings(application.pid)
    quotas = {"low": 0.5} if enforce == "quota" else None
    with attach(application.pid, enforce=enforce, priorities={"high": 10}, quotas=quotas) as attachment:
        until(
            lambda: (
                (high := standing(attachment, "high", application.pid))
                and (low := standing(attachment, "low", application.pid))
                and shown(high, low)
            )
        )
        attachment.set(paused=True)
        assert differences(before, application.pid) == {}
        attachment.set(paused=False)
        until(
            lambda: (
                (high := standing(attachment, "high", application.pid))
                and (low := standing(attachment, "low", application.pid))
                and shown(high, low)
            )
        )
        if enforce in ("cgroup", "cgroup:by=query/operator"):
            assert shares("high") / shares("low") == pytest.approx(10, rel=0.01)
        if enforce == "quota":
            assert quota("low") == 50_000
            attachment.set(quotas={"high": 0.25})
            until(lambda: (high := standing(attachment, "high", application.pid)) and high.group.endswith("/high"))
            until(lambda: (low := standing(attachment, "low", application.pid)) and "treadle" not in low.group)
            assert quota("high") == 25_000
    until(lambda: differences(before, application.pid) == {})
    assert groups_left() == []


class UpstreamFirst(DownstreamFirst):
    """The sources first, the sinks last."""

    name = "upstream-first"

    def decide(self, snapshot: Snapshot) -> Schedule:
        return replace(schedule := super().decide(snapshot), priority=-schedule.priority)


FIRST, SECOND = "downstream-first", UpstreamFirst.name


def ruled(high: float = 10, low: float = 1) -> list[dict[str, Any]]:
    """Two sets with opposite policies."""
    rules: list[dict[str, Any]] = [{"queries": "h*", "policy": FIRST, "priority": high}]
    return [*rules, {"queries": "low", "policy": UpstreamFirst(), "priority": low, "period": "100ms"}]


def stages(attachment: Attachment, query: str, pid: int) -> list[Standing]:
    """What the kernel says of the main threads of a query, from its source to its sink."""
    now = standings(pid)
    rows = [row for row in attachment.status()["rows"] if row["query"] == query]
    mains = [thread["tid"] for row in rows for thread in row["threads"] if thread["role"] == "main"]
    return [now[tid] for tid in mains if tid in now]


def test_each_set_has_a_cpu_group_by_its_priority_and_its_own_policy_inside_also_after_changes(
    application: SparkProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("nice", "cgroup")
    before = standings(application.pid)

    def become(query: str, group: str, *nices: int) -> None:
        def are() -> bool:
            seen = stages(attachment, query, application.pid)
            return [s.nice for s in seen] == list(nices) and all(s.group.endswith(f"/{group}") for s in seen)

        until(are)

    with attach(application.pid, rules=ruled()) as attachment:
        become("high", "rule-1", 19, 0, -20)
        become("low", "rule-2", -20, 0, 19)
        assert shares("rule-1") / shares("rule-2") == pytest.approx(10, rel=0.01)
        ruled_by = {("high", "h*"), ("low", "low"), ("driver", None)}
        until(lambda: {(row["query"], row["rule"]) for row in attachment.status()["rows"]} == ruled_by)
        until(lambda: group_there("driver") and shares("driver") == shares("rule-1"))
        status = attachment.status()
        assert status["enforce"] == "cgroup+nice"
        assert [rule["policy"] for rule in status["rules"]] == [FIRST, SECOND]
        assert (attachment.loop.period(), attachment.plan.rounds) == (0.05, 0.05)
        attachment.set(rules=list(reversed(ruled(high=1, low=2))), period="200ms")
        become("low", "rule-1", -20, 0, 19)
        become("high", "rule-2", 19, 0, -20)
        until(lambda: shares("rule-1") / shares("rule-2") == pytest.approx(2, rel=0.01))
        assert (attachment.loop.period(), attachment.plan.period) == (0.1, 0.2)
        held, here = attachment.settings.read()["rules"], ("--pipeline", application.topic)
        for wrong, why in (
            ('[{"queries": "high"}]', "rule 1 ('high'): has no policy"),
            ('[{"queries": "high", "policy": "fastest"}]', "rule 1 ('high'): there is no policy 'fastest'"),
            ('[{"queries": "high", "policy": "fcfs", "period": "1ms"}]', "its period is too short"),
            ("high", "rules can't be 'high'"),
        ):
            code = treadle(monkeypatch, "ctl", "set", *here, "period=50ms", f"rules={wrong}")
            told = " ".join(capsys.readouterr().err.split())
            assert (code, why in told, told.count("error:")) == (2, True, 1), told
            assert (attachment.settings.read()["rules"], attachment.plan.period) == (held, 0.2)
        one = '[{"queries": "low", "policy": "downstream-first", "priority": 4}]'
        assert treadle(monkeypatch, "ctl", "set", *here, f"rules={one}") == 0
        become("low", "rule-1", 19, 0, -20)
        until(lambda: all(s.group.endswith("/others") for s in stages(attachment, "high", application.pid)))
        assert attachment.history[-1].before == held
        attachment.set(rules=[])
        become("low", "low", 19, 0, -20)  # as without rules: a group for each query
    until(lambda: differences(before, application.pid) == {})
    assert groups_left() == []


@pytest.mark.parametrize(
    ("enforce", "shown"),
    [
        ("nice", lambda high, low: [s.nice for s in (*high, *low)] == [9, -6, -20, -10, 4, 19]),
        ("cgroup", lambda high, low: high[0].group.endswith("/rule-1/high") and low[0].group.endswith("/rule-2/low")),
        ("rt", lambda high, low: min(s.priority for s in high) > max(s.priority for s in low) > 0),
    ],
)
def test_other_enforcers_have_the_sets_in_the_order_of_their_priorities(
    application: SparkProcess, enforce: str, shown: Any
) -> None:
    needs(enforce)
    before = standings(application.pid)
    with attach(application.pid, enforce=enforce, rules=ruled()) as attachment:
        until(
            lambda: (
                len(high := stages(attachment, "high", application.pid)) == 3
                and len(low := stages(attachment, "low", application.pid)) == 3
                and shown(high, low)
            )
        )
        if enforce == "cgroup":
            assert shares("rule-1") / shares("rule-2") == pytest.approx(10, rel=0.01)
    until(lambda: differences(before, application.pid) == {})
    assert groups_left() == []


def shares(name: str) -> int:
    return int(group_file(name, "cpu.shares"))


def quota(name: str) -> int:
    return int(group_file(name, "cpu.cfs_quota_us"))


def group_there(name: str) -> bool:
    mount = find_mount()
    return mount is not None and any(Path(mount.point).glob(f"**/treadle-{os.getpid()}-*/{name}"))


def group_file(name: str, file: str) -> str:
    if (mount := find_mount()) is None or mount.version != 1:
        pytest.skip("the files of cgroup v1 are read here")
    (found,) = Path(mount.point).glob(f"**/treadle-{os.getpid()}-*/{name}")
    return (found / file).read_text()


def test_an_application_that_comes_later_is_met_and_when_it_dies_only_its_own_rows_end(
    application: SparkProcess, broker: Broker, tmp_path: Path
) -> None:
    needs("nice")
    before = standings(application.pid)
    with attach(f"{application.topic}*", priorities={"high": 10}) as attachment:
        until(lambda: (s := standing(attachment, "high", application.pid)) and s.nice == -10)
        other = SparkProcess(tmp_path, broker, "unused", f"spark.app.name={application.topic}-later")
        try:
            until(lambda: len({row["application"] for row in attachment.status()["rows"]}) == 2)
            names = {row["query"] for row in attachment.status()["rows"] if "driver" in row["query"]}
            assert len(names) == 2, "the two drivers are told apart"
            until(lambda: any(seen.nice for seen in standings(other.pid).values()))
            with pytest.raises(EngineError, match="another treadle process is attached"):
                attach(other.told["ui"])
        finally:
            other.kill()
        changes = attachment.status()["changes"]
        until(lambda: [app["ended"] for app in attachment.status()["applications"]] == [False])
        until(lambda: len({row["application"] for row in attachment.status()["rows"]}) == 1)
        assert attachment.running
        assert attachment.status()["changes"] >= changes > 0
        members = attachment._members
        kept = (members.engines, members._on_end, members._claims._held, members._published._open)
        assert [len(each) for each in kept] == [1] * 4, "nothing is kept of one that has ended"
    assert differences(before, application.pid) == {}


OWN_SESSION = """
import sys
import treadle
from pyspark.sql import SparkSession
from treadle.errors import EngineError
builder = SparkSession.builder.master("local[1]").config("spark.ui.port", "0").config("spark.driver.host", "127.0.0.1")
spark = builder.appName("own").getOrCreate()
with treadle.attach(spark, dry_run=True, agent=False) as attachment:
    (application,) = attachment.status()["applications"]
    print(application["name"] == "own" and application["ui"] in spark.sparkContext.uiWebUrl, flush=True)
spark.stop()
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
with treadle.attach(spark) as attachment:
    (application,) = attachment.status()["applications"]
    print(application["name"] == "own" and not application["ui"], flush=True)
try:
    treadle.attach(spark, agent=False)
except EngineError as error:
    print(error, flush=True)
spark.stop()
"""


def test_an_application_can_attach_to_itself() -> None:
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", OWN_SESSION], capture_output=True, text=True, env=env, check=True)
    attached, without_ui, refused = done.stdout.splitlines()
    assert attached == without_ui == "True"
    assert "start it with spark.ui.enabled=true" in refused


def test_the_section_of_the_page_is_a_valid_configuration(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "attach.md").read_text(encoding="utf-8")
    (tmp_path / "shown.toml").write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    section = config.load(str(tmp_path / "shown.toml"))[0].attach
    assert section.priorities == {"alerts-*": 10.0, "reports": 0.5}
    (tmp_path / "again.toml").write_text(config.as_toml(config.Config(attach=section)), encoding="utf-8")
    assert config.load(str(tmp_path / "again.toml"))[0].attach == section
    (tmp_path / "wrong.toml").write_text("[attach]\npriorities = { a = -1 }\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"attach.priorities.a"):
        config.load(str(tmp_path / "wrong.toml"))


def test_watching_changes_nothing(application: SparkProcess) -> None:
    before = standings(application.pid)
    with watch(application.pid) as attachment:
        attachment.start()
        until(lambda: {row["query"] for row in attachment.status()["rows"]} == {"high", "low", "driver"})
        assert all(row["change"] == "" for row in attachment.status()["rows"])
        assert differences(before, application.pid) == {}


# ------------------------------------------------------------ refusals


def test_what_is_no_spark_application_is_refused_by_one_clear_line(broker: Broker) -> None:
    with pytest.raises(EngineError, match="is a JVM, but runs no Spark application"):
        attach(broker.pid)
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            with pytest.raises(EngineError, match=f"process {other.pid}"):
                attach(other.pid)
        finally:
            other.kill()
    with pytest.raises(EngineError, match="no such process"):
        attach(2**22 - 1)
    with pytest.raises(EngineError, match="no Spark application is called 'nobody'"):
        attach("nobody")
    with pytest.raises(EngineError, match="no Spark application has a name that fits 'nobody-\\*'"):
        attach("nobody-*")
    with pytest.raises(EngineError, match="does not answer"):
        attach("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="no application is named"):
        attach([])


def test_without_a_real_time_budget_rt_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's view of a real group that has none: what is mounted there is that group."""
    mount = find_mount()
    if mount is None or mount.version != 1 or os.geteuid() != 0:
        pytest.skip("needs a writable cgroup v1 with real-time budgets")
    name = f"/treadle-test-{os.getpid()}"
    group = Path(mount.directory(name))
    group.mkdir()
    try:
        inside = Mount(1, str(group), name)
        for module in (cgroup, realtime):
            monkeypatch.setattr(module, "find_mount", lambda: inside)
        with pytest.raises(EngineError, match=r"enforce 'rt'.*has no budget left for real-time threads.*use 'nice'"):
            checks.check(plan.make("none", "rt", 0.1, {}, {}, ("*",)), [])
    finally:
        for each in sorted(group.glob("**/"), reverse=True):
            each.rmdir()


@pytest.fixture
def two_sessions() -> Iterator[list[int]]:
    """Two processes of different sessions, both in the topmost group."""
    sleepers = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    if (mount := find_mount()) is not None and mount.version == 1:
        for sleeper in sleepers:
            Path(mount.directory("/"), "tasks").write_text(str(sleeper.pid))
    yield [sleeper.pid for sleeper in sleepers]
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


def test_nice_across_sessions_is_refused_and_cgroup_offered(two_sessions: list[int]) -> None:
    needs("nice", "cgroup")
    if not kernel.autogroup_enabled():
        pytest.skip("autogroup is off: nice compares across sessions")
    apps = [Application(f"app-{pid}", f"app-{pid}", "", (Process(pid, 0, True),)) for pid in two_sessions]
    with pytest.raises(EngineError, match=r"with autogroup, nice has no effect.*use enforce='cgroup'"):
        checks.check(plan.make("none", "nice", 0.1, {}, {}, ("*",)), apps)
    checks.check(plan.make("none", "cgroup", 0.1, {}, {}, ("*",)), apps)
    checks.check(plan.make("none", "nice", 0.1, {}, {}, ("*",)), apps[:1])


@pytest.mark.parametrize(
    ("enforce", "quotas", "why"),
    [
        ("nicer", {}, "did you mean nice"),
        ("nice+nice", {}, "is given twice"),
        ("nice:by=query", {}, "there is no option 'by'"),
        ("nice:low=x", {}, "give a number"),
        ("cgroup:by=colour", {}, "use one of query, operator"),
        ("rt:fifo=perhaps", {}, "give yes or no"),
        ("rt+nice", {}, "use 'rt' alone"),
        ("quota", {}, "no query has a quota"),
        ("cgroup:by=operator+quota", {"a": 1.0}, "a quota needs a group for each query"),
        ("nice:low=5,high=-5", {}, "limits can't be"),
    ],
)
def test_what_can_not_be_enforced_is_said(enforce: str, quotas: dict[str, float], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan.make(None, enforce, 0.05, {}, quotas, ("*",)).bindings(1)


def test_a_cap_that_the_kernel_does_not_take_is_refused_before_anything_is_looked_for() -> None:
    with pytest.raises(ConfigError, match=r"use a number of at least 0.01"):
        attach(1, enforce="quota", quotas={"a": 0.0})


@pytest.mark.parametrize(("numbers", "usual"), [({}, plan.SINGLE), ({"a": 1}, plan.SINGLE), ({"a": 2}, plan.SEVERAL)])
def test_without_a_policy_it_depends_on_whether_queries_differ(
    numbers: dict[str, float], usual: tuple[str, str]
) -> None:
    made = plan.make(None, None, 0.05, numbers, {}, ("*",))
    assert made.policy.name == registry.create(usual[0]).name
    assert made.enforce == "+".join(part.partition(":")[0] for part in usual[1].split("+"))
    assert plan.make("random", None, 0.05, numbers, {}, ("*",)).enforce == "nice"


# ------------------------------------------------------------ policies around policies


def snapshot(queue: list[float], priorities: tuple[float, float] = (1.0, 5.0)) -> Snapshot:
    """Two queries, `a/1` and `b`, of two operators each."""
    names = ("a/1", "b")
    queries = tuple(
        Query(name, (Operator("in"), Operator("out", ("in",))), priority)
        for name, priority in zip(names, priorities, strict=True)
    )
    instances = tuple(Instance(name, (operator,), 0, "spark") for name in names for operator in ("in", "out"))
    return Snapshot(Topology(queries, instances, 1), 0.0, {"queue": np.array(queue)})


def test_helpers_stand_just_above_their_main_and_below_the_next() -> None:
    schedule = HelpersFirst(QueueSize()).decide(snapshot([5.0, 1.0, 5.0, 9.0]))
    assert schedule.helper is not None
    assert schedule.scalar.tolist() == [2.0, 0.0, 2.0, 4.0]
    assert schedule.helper.tolist() == [3.0, 1.0, 3.0, 5.0]


def test_under_real_time_helpers_go_first_also_where_the_policy_leaves_them_alone() -> None:
    schedule = HelpersFirst(DownstreamFirst()).decide(snapshot([0.0] * 4))
    assert schedule.helper is not None
    assert schedule.scalar.tolist() == [0.0, 2.0, 0.0, 2.0]
    assert schedule.helper.tolist() == [1.0, 3.0, 1.0, 3.0]


def test_within_a_query_helpers_keep_what_was_decided_for_them() -> None:
    schedule = WithinQuery(DownstreamFirst()).decide(snapshot([0.0] * 4))
    assert schedule.helper is not None
    assert np.isnan(schedule.helper).all()
    assert schedule.scalar.tolist() == [0.0, 1.0, 0.0, 1.0]


def test_inside_groups_by_priority_threads_are_told_apart_by_another_policy() -> None:
    assert plan.make(None, "cgroup+nice", 0.05, {"a": 5.0}, {}, ("*",)).policy.name == plan.SINGLE[0]
    assert plan.make(None, "cgroup", 0.05, {"a": 5.0}, {}, ("*",)).policy.name == plan.SEVERAL[0]


def test_where_the_least_urgent_stay_ordinary_their_helpers_do_too() -> None:
    schedule = HelpersFirst(QueueSize(), spare_least=True).decide(snapshot([5.0, 1.0, 5.0, 9.0]))
    assert schedule.helper is not None
    assert schedule.helper.tolist() == [3.0, 0.0, 3.0, 5.0]
    (binding,), _ = plan.make("queue-size", "rt:low=0", 0.05, {}, {}, ("*",)).bindings(1)
    assert binding.to_scale.apply(np.array([0.0, 0.0, 3.0, 5.0])).tolist() == [0.0, 0.0, 59.0, 99.0]


def test_without_helpers_only_the_mains_are_turned() -> None:
    (binding,), _ = plan.make("queue-size", "nice:helpers=no", 0.05, {}, {}, ("*",)).bindings(1)
    schedule = binding.policy.decide(snapshot([5.0, 1.0, 5.0, 9.0]))
    assert schedule.helper is not None
    assert np.isnan(schedule.helper).all()
    assert schedule.scalar.tolist() == [6.0, 2.0, 6.0, 10.0]  # queues as weights count one row more


def test_the_threads_by_which_a_jvm_answers_are_as_urgent_as_the_most_urgent() -> None:
    seen = snapshot([5.0, 1.0, 5.0, 9.0])
    engine = Query("driver", (Operator("jvm"), Operator("scheduler")))
    instances = [*seen.topology.instances, *(Instance("driver", (name,), 0, "spark") for name in ("jvm", "scheduler"))]
    topology = Topology((*seen.topology.queries, engine), tuple(instances), 2)
    queue = np.array([5.0, 1.0, 5.0, 9.0, np.nan, np.nan])
    schedule = JvmServiceThreadsFirst(QueueSize()).decide(Snapshot(topology, 0.0, {"queue": queue}))
    np.testing.assert_array_equal(schedule.scalar, [5.0, 1.0, 5.0, 9.0, 9.0, np.nan])


def test_the_threads_by_which_a_jvm_answers_are_never_real_time() -> None:
    """One that waited for a lock of an ordinary stage, by yielding, took the whole core and kept that stage from it."""
    engine = Query("driver", (Operator("jvm"), Operator("scheduler")), 10.0)
    instances = [Instance("driver", (name,), 0, "spark") for name in ("jvm", "scheduler")]
    seen = Snapshot(Topology((engine,), tuple(instances), 1), 0.0, {})
    (binding,), _ = plan.make(None, "rt:low=0", 0.05, {"high": 10.0}, {}, ("*",)).bindings(1)
    schedule = binding.policy.decide(seen)
    assert np.isnan(schedule.scalar).tolist() == [True, False]
    assert schedule.helper is not None
    assert np.isnan(schedule.helper).tolist() == [True, False]


class TestWhatABatchNeedsToBegin:
    ENGINE = ("plan b", "scheduler", "checkpoint", "compilers", "network")

    def snapshot(self) -> Snapshot:
        seen = snapshot([5.0, 1.0, 5.0, 9.0])
        engine = Query("driver", tuple(map(Operator, self.ENGINE)), 7.0)
        instances = [*seen.topology.instances, *(Instance("driver", (name,), 0, "spark") for name in self.ENGINE)]
        topology = Topology((*seen.topology.queries, engine), tuple(instances), 2)
        return Snapshot(topology, 0.0, {"queue": np.array([5.0, 1.0, 5.0, 9.0, *[np.nan] * len(self.ENGINE)])})

    def test_is_as_urgent_as_the_most_urgent_and_compilers_are_held_back(self) -> None:
        schedule = BatchStartThreadsFirst(QueueSize()).decide(self.snapshot())
        np.testing.assert_array_equal(schedule.scalar, [5.0, 1.0, 5.0, 9.0, 9.0, 9.0, 9.0, 3.0, np.nan])

    def test_is_as_the_policy_says_where_it_says_anything(self) -> None:
        schedule = BatchStartThreadsFirst(UserPriority()).decide(self.snapshot())
        np.testing.assert_array_equal(schedule.scalar[-len(self.ENGINE) :], [7.0, 7.0, 7.0, np.nan, 7.0])

    @pytest.mark.parametrize("policy", ["rr", "random", "weighted:user-priority=1,queue-size=1"])
    def test_compilers_are_left_alone_where_the_policy_has_ranked_the_driver(self, policy: str) -> None:
        schedule = BatchStartThreadsFirst(registry.create(policy)).decide(self.snapshot())
        assert np.isnan(schedule.scalar[4 + self.ENGINE.index("compilers")])
        assert not np.isnan(schedule.scalar[4 + self.ENGINE.index("plan b")])

    def test_is_left_alone_where_nothing_is_known(self) -> None:
        seen = self.snapshot()
        unknown = Snapshot(seen.topology, 0.0, {"queue": np.full(len(seen.topology), np.nan)})
        assert np.isnan(BatchStartThreadsFirst(QueueSize()).decide(unknown).scalar).all()

    @pytest.mark.parametrize(
        ("policy", "enforce", "held"),
        [
            (None, None, True),
            ("queue-size", "nice", True),
            ("downstream-first", "nice+slice", False),
            ("downstream-first", "nice:low=-10,high=0", False),
            ("downstream-first", "nice:low=-5,high=10", True),
            ("user-priority", "nice", False),
            ("downstream-first", "cgroup+nice", False),
            ("downstream-first", "rt", False),
            ("downstream-first", "slice", False),
        ],
    )
    def test_compilers_are_held_back_by_nice_where_users_have_said_nothing(
        self, policy: str | None, enforce: str | None, held: bool
    ) -> None:
        made = plan.make(policy, enforce, 0.05, {}, {}, ("*",))
        assert made.holds_compilers is held
        bindings = {binding.knob: binding for binding in made.bindings(1)[0]}
        if held:
            schedule = bindings["nice"].policy.decide(self.snapshot())
            row = schedule.scalar[4 + self.ENGINE.index("compilers")]
            assert np.nanmin(schedule.scalar) < row < np.nanmax(schedule.scalar)


def test_within_a_query_each_has_the_whole_scale() -> None:
    schedule = WithinQuery(QueueSize()).decide(snapshot([1.0, 2.0, 100.0, np.nan]))
    assert schedule.scalar[:3].tolist() == [0.0, 1.0, 0.5]
    assert np.isnan(schedule.scalar[3])


def test_a_slash_in_a_name_makes_no_nested_group() -> None:
    groups = Grouped(UserPriority(), "query").decide(snapshot([0.0] * 4)).groups
    assert groups is not None
    assert groups.names == ("a%2F1", "b")
    assert groups.priority.tolist() == [1.0, 5.0]


def test_a_cap_is_for_the_queries_that_a_pattern_names() -> None:
    schedule: Schedule = Caps({"b": 0.5}).decide(snapshot([0.0] * 4))
    assert np.isnan(schedule.scalar[:2]).all()
    assert schedule.scalar[2:].tolist() == [0.5, 0.5]


def test_a_cap_is_also_for_queries_that_two_applications_call_the_same() -> None:
    one = snapshot([0.0] * 4).topology
    other = replace(one, instances=tuple(replace(each, engine="other") for each in one.instances))
    merged = Topology.merge([one, other])
    schedule = Caps({"b": 0.5}).decide(Snapshot(merged, 0.0, {}))
    assert schedule.scalar[[2, 3, 6, 7]].tolist() == [0.5] * 4


def test_operators_have_groups_in_those_of_their_queries() -> None:
    groups = Nested(QueueSize(), 100.0, strict=False).decide(snapshot([1.0, 2.0, 3.0, 4.0])).groups
    assert groups is not None
    assert groups.outer is not None
    assert groups.names == ("a%2F1/in", "a%2F1/out", "b/in", "b/out")
    assert groups.priority.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert groups.outer.names == ("a%2F1", "b")
    assert groups.outer.priority.tolist() == pytest.approx([1.0, 5.0])


def test_a_wrapped_policy_keeps_its_name_and_state() -> None:
    inner: Policy = registry.create("round-robin")
    around = HelpersFirst(inner)
    assert (around.name, around.needs, around.state()) == (inner.name, inner.needs, inner.state())
