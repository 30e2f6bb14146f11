"""The commands as a user gives them, in processes of their own, which are ended in all ways there are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from applications import SparkProcess, Standing, differences, groups_left, standings
from support import treadle, until
from treadle.attachment import attach
from treadle.broker import Broker
from treadle.cli.attach_tables import unknown
from treadle.enforce import kernel

TREADLE = [sys.executable, "-c", "from treadle.cli import main; main()"]
ENFORCERS = ("nice", "cgroup", "rt", "slice", "cgroup+nice")
FACTS = {"nice": "nice", "cgroup": "cgroup", "rt": "real-time", "slice": "time slice"}
WORKS = {fact.what for fact in kernel.facts() if fact.works}
POSSIBLE = [each for each in ENFORCERS if all(FACTS[part] in WORKS for part in each.split("+"))]


class Command:
    """`treadle attach` to this application, once it has changed something."""

    def __init__(self, application: SparkProcess, enforce: str) -> None:
        words = ["attach", "--pid", str(application.pid), "--enforce", enforce, "--priority", "high=10", "--json"]
        self.process = subprocess.Popen([*TREADLE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.first = json.loads(line)

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        self.process.communicate()
        return self.process.returncode


@pytest.fixture(autouse=True)
def no_traces(application: SparkProcess, own_journals: Path) -> Iterator[dict[int, Standing]]:
    """Whatever a test does, afterwards everything is as it was."""
    before = standings(application.pid)
    yield before
    until(lambda: differences(before, application.pid) == {})
    until(lambda: groups_left() == [])
    until(lambda: not list(own_journals.glob("*.journal")))


@pytest.mark.skipif(not POSSIBLE, reason="this user may not schedule anything")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_everything_is_as_it_was(
    application: SparkProcess, no_traces: dict[int, Standing], number: int
) -> None:
    command = Command(application, POSSIBLE[0])
    assert command.first["to"] is not None
    assert command.end(number) == 0
    assert differences(no_traces, application.pid) == {}


def test_a_dry_run_prints_a_table_and_changes_nothing(
    application: SparkProcess,
    no_traces: dict[int, Standing],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with attach(application.pid, dry_run=True) as looking:  # a dry run waits for 10 s, and Spark may start slowly
        until(lambda: {"high", "low"} <= {row["query"] for row in looking.status()["rows"]})
    pid = str(application.pid)
    assert treadle(monkeypatch, "attach", "--pid", pid, "--dry-run", "--priority", "low=9") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "user-priority by nice every 50ms, would change" in printed
    assert "a real run may change more" in printed
    assert "-10" in printed
    assert differences(no_traces, application.pid) == {}


def test_a_dry_run_says_what_it_can_not_know() -> None:
    status: dict[str, Any] = {"seen": ["a"], "unseen": [], "unplanned": [], "changes": 3, "partial": False}
    assert unknown(status) == ""
    assert unknown({**status, "changes": 0}).startswith("nothing to change")
    for key, names, why in (
        ("seen", [], "no query was seen"),
        ("unseen", ["b"], "no activity seen of b"),
        ("unplanned", ["a"], "has not shown the plan of a"),
    ):
        said = unknown({**status, key: names, "changes": 0, "partial": True})
        assert why in said
        assert "nothing to change" not in said
        assert "a real run may change more" in said
        assert "--agent" in said


def test_top_shows_queries_operators_and_threads(
    application: SparkProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle(monkeypatch, "top", "--name", application.topic, "--once") == 0
    printed = capsys.readouterr().out
    assert application.topic in printed
    assert "plan high" in printed
    assert treadle(monkeypatch, "top", "--ui", application.told["ui"], "--once", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["applications"][0]["pids"] == [application.pid]
    assert {"high", "driver"} <= {row["query"] for row in status["rows"]}


@pytest.mark.skipif("nice" not in POSSIBLE, reason="needs the right to set nice")
def test_top_shows_what_an_attachment_elsewhere_does(
    application: SparkProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown() -> dict[str, Any]:
        assert treadle(monkeypatch, "top", "--pid", str(application.pid), "--once", "--json") == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    with attach(application.pid, priorities={"high": 9}):
        until(lambda: any(row["query"] == "high" and "nice" in row["change"] for row in shown()["rows"]))
        assert shown()["policy"] == "user-priority"
        assert treadle(monkeypatch, "top", "--pid", str(application.pid), "--once") == 0
        assert "user-priority by nice" in capsys.readouterr().out
    assert shown()["policy"] == "none"


@pytest.mark.skipif("nice" not in POSSIBLE, reason="needs the right to set nice")
def test_once_leaves_it_so_and_restore_puts_it_back(
    application: SparkProcess,
    no_traces: dict[int, Standing],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pid = str(application.pid)
    once = subprocess.run([*TREADLE, "attach", "--pid", pid, "--once", "--priority", "high=9"], check=True, text=True,
                          capture_output=True)  # fmt: skip
    assert "user-priority" in once.stdout
    assert differences(no_traces, application.pid) != {}
    assert treadle(monkeypatch, "doctor", "--json") == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert "treadle restore" in {check["remedy"] for check in checks}
    assert treadle(monkeypatch, "restore") == 0
    assert capsys.readouterr().out.startswith("put back ")
    assert differences(no_traces, application.pid) == {}
    assert treadle(monkeypatch, "restore") == 0
    assert capsys.readouterr().out == "there is nothing to put back\n"
    assert treadle(monkeypatch, "attach", "--pid", pid, "--once", "--enforce", "rt") == 2
    assert "real-time priorities need a running watchdog" in capsys.readouterr().err


def test_every_refusal_is_one_line_and_exit_code_2(
    application: SparkProcess,
    broker: Broker,
    no_traces: dict[int, Standing],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pid = str(application.pid)
    for words, why in (
        (["--pid", str(broker.pid)], "runs no Spark application"),
        (["--pid", "4194303"], "no such process"),
        (["--name", "nobody"], "no Spark application is called"),
        ([], "no application is named"),
        (["--pid", pid, "--policy", "best"], "there is no policy 'best'"),
        (["--pid", pid, "--enforce", "magic"], "there is no enforcer 'magic'"),
        (["--pid", pid, "--priority", "high"], "is not a pattern with a number"),
        (["--pid", pid, "--priority", "high=-1"], "of at least 0"),
        (["--pid", pid, "--period", "fast"], "is not a duration"),
        (["--pid", pid, "--rule", "high"], "'high' is not a rule (write it as 'alerts-*: policy=fcfs"),
        (["--pid", pid, "--rule", "high: policy=best"], "rule 1 ('high'): there is no policy 'best'"),
        (["--pid", pid, "--rule", "a: policy=rr", "--quota", "a=1"], "rule 1 ('a'): a quota needs a CPU group for"),
        (["--pid", pid, "--rule", "a: policy=fcfs", "--no-agent"], "head_age, which only an agent can count"),
        (["--pid", pid, "--latency-goal", "high"], "is not a pattern with a time"),
        (["--pid", pid, "--latency-goal", "high=soon"], "is not a duration"),
        (["--pid", pid, "--policy", "multi-class", "--dry-run"], "only an agent can count (add --agent"),
        (["--pid", pid, "--policy", "fcfs", "--no-agent"], "head_age, which only an agent can count"),
        (["--pid", pid, "--user", "nobody-at-all"], "there is no user 'nobody-at-all'"),
    ):
        assert treadle(monkeypatch, "attach", *words) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1
        assert differences(no_traces, application.pid) == {}


def test_without_the_right_to_schedule_it_says_which(application: SparkProcess, tmp_path: Path) -> None:
    """Root without the capability, as in many containers."""
    if os.geteuid() != 0 or not Path("/usr/bin/setpriv").exists():
        pytest.skip("needs root and setpriv to give up a right")
    words = ["attach", "--pid", str(application.pid)]
    without = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    done = subprocess.run([*without, *TREADLE, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "CAP_SYS_NICE" in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_user_may_not_look_into_it(application: SparkProcess) -> None:
    """A process of a user who has nothing to say here; everything is imported before it gives up its rights."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    code = (
        "import os, sys; import treadle.attachment, treadle.cli\n"
        "os.setgid(65534); os.setuid(65534); os.environ['HOME'] = '/'\n"
        f"sys.argv = ['treadle', 'attach', '--pid', '{application.pid}']; treadle.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"process {application.pid}" in done.stderr
    assert "root" in done.stderr
    assert done.stderr.count("\n") == 1
