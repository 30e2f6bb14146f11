"""Pipelines from the command line: they run, show themselves, take commands and end as one would expect."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from support import LONG, treadle, until
from treadle.cli.run import table
from treadle.control import control_socket
from treadle.errors import TreadleError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
from treadle import Pipeline

p = Pipeline("numbers")

@p.source
def ticks(spark):
    return spark.readStream.format("rate").option("rowsPerSecond", 50).load()

@p.operator
def even(ticks):
    return ticks.where("value % 2 = 0")

@p.sink(priority=5)
def out(even, batch_id):
    even.write.format("noop").mode("append").save()
"""
BAD_SINK = PIPELINE.replace('even.write.format("noop").mode("append").save()', 'raise ValueError("no good")')
BAD_OPERATOR = PIPELINE.replace("value % 2", "valu % 2")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, own_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with pipeline files."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("good.py", PIPELINE), ("bad_sink.py", BAD_SINK), ("bad_operator.py", BAD_OPERATOR)):
        (tmp_path / name).write_text(text)
    return tmp_path


def status() -> dict[str, Any]:
    """Of the pipeline that runs; with no hops while there is none."""
    try:
        found: dict[str, Any] = control_socket.ask(control_socket.pick("numbers"), "status")
        return found
    except TreadleError:
        return {"hops": {}}


def busy() -> bool:
    return bool(status()["hops"].get("out", {}).get("rows_in", 0))


def test_it_runs_for_a_time_and_prints_its_final_status(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    words = ("--policy", "fcfs", "--slots", "1", "--period", "50ms", "--batch", "100ms", "--folder", "work")
    assert treadle(monkeypatch, "run", "good.py", "--for", "6s", "--drain", "--json", *words) == 0
    seen = json.loads(capsys.readouterr().out)
    assert (seen["policy"], seen["slots"]) == ("fcfs", 1)
    assert list(seen["hops"]) == ["ticks", "even", "out"]
    assert 0 < seen["hops"]["out"]["rows_in"] <= seen["hops"]["even"]["rows_out"]
    assert seen["hops"]["out"]["latency_seconds"]["p50"] > 0
    assert {hop["state"] for hop in seen["hops"].values()} == {"stopped"}
    assert (place / "work" / "channels" / "even").is_dir()
    assert control_socket.find() == []


def test_commands_reach_it_and_an_invalid_policy_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: dict[str, Any] = {}

    def talk() -> None:
        until(busy)
        said["before"] = capsys.readouterr()
        said["codes"] = [treadle(monkeypatch, "ctl", *words) for words in wishes]
        said["printed"] = capsys.readouterr()
        treadle(monkeypatch, "ctl", "stop", "--drain", "--pipeline", "numbers")

    wishes = [
        ("policy",),
        ("policy", "highest-rate"),
        ("policy", "highest-rte"),
        ("policy",),
        ("slots", "3"),
        ("slots", "0"),
        ("slots",),
        ("status", "--json"),
        ("status",),
        ("status", "--pipeline", "number"),
    ]
    talker = threading.Thread(target=talk)
    talker.start()
    assert treadle(monkeypatch, "run", "good.py") == 0
    talker.join()
    assert said["codes"] == [0, 0, 2, 0, 0, 2, 0, 0, 0, 2]
    policy, changed, still, slots, same, as_json, *lines = said["printed"].out.splitlines()
    assert [policy, changed, still, slots, same] == ["multi-class", "highest-rate", "highest-rate", "3", "3"]
    assert json.loads(as_json)["hops"]["even"]["batches"] > 0
    assert any("even" in line for line in lines)
    for problem in ("did you mean highest-rate", "slots can't be 0", "did you mean numbers?"):
        assert problem in said["printed"].err
    assert "stopped" in capsys.readouterr().out


def test_a_sink_that_fails_for_good_is_one_line_and_exit_code_1(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle(monkeypatch, "run", "bad_sink.py", "--retries", "0") == 1
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("error:")]
    assert errors == ["error: sink 'out' (bad_sink.py:14): ValueError: no good (fix it and start again)"]
    assert "failed" in said.out


def test_an_operator_that_spark_refuses_is_one_line_and_exit_code_2(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle(monkeypatch, "run", "bad_operator.py") == 2
    said = capsys.readouterr().err
    assert "operator 'even' (bad_operator.py:" in said
    assert "valu" in said
    assert "Traceback" not in said
    assert not spark.streams.active


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.py",), "no such file"),
        (("good.py:q",), "has no pipeline 'q'"),
        (("good.py", "--policy", "fcsf"), "did you mean fcfs"),
        (("good.py", "--layout", "rows"), "rows"),
        (("good.py", "--rule", "out"), "'out' is not a rule (write it as 'alerts-*: policy=fcfs"),
        (("good.py", "--rule", "out: policy=fcsf"), "rule 1 ('out'): there is no policy 'fcsf' (did you mean fcfs"),
        (("good.py", "--rule", "out: policy=fcfs", "--enforce", "none"), "rules need a gate or pools"),
        (("good.py", "--rule", "out: policy=fcfs", "--layout", "realtime"), "rules need a gate, which the realtime"),
        (("good.py", "--slots", "0"), "slots can't be 0"),
        (("good.py", "--slots", "some"), "slots can't be 'some'"),
        (("good.py", "--enforce", "force"), "enforce can't be 'force'"),
        (("good.py", "--for", "soon"), "--for is not a duration"),
        (("good.py", "--period", "0"), "period must be above zero"),
        (("good.py", "--period", "1us"), "period is too short: '1us' (use 1ms or longer)"),
        (("good.py", "--batch", "x"), "batch is not a duration"),
        (("good.py", "--retries", "-1"), "--retries"),
        (("good.py", "--conf", "spark.x"), "'spark.x' is not a setting"),
        (("good.py", "--master", "mesos://x"), "master 'mesos://x' is unknown"),
        (("good.py", "--folder", "good.py"), "good.py: can't be made"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert treadle(monkeypatch, "run", *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_without_a_pipeline_there_is_nobody_to_talk_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert treadle(monkeypatch, "ctl", "status") == 2
    assert "no pipeline is running" in capsys.readouterr().err


def test_in_a_terminal_it_is_shown_live_and_ctrl_c_ends_it_cleanly(place: Path) -> None:
    terminal, other = pty.openpty()
    code = "from treadle.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "good.py", "--json", "--conf", "spark.sql.session.timeZone=UTC"]
    env = {**os.environ, "COLUMNS": "120", "LINES": "40", "TERM": "xterm"}
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                shown.extend(os.read(terminal, 65536))
            except OSError:  # the other end is closed
                return

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=other, env=env, text=True) as run:
        os.close(other)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            until(lambda: busy() and b"rows/s" in shown)
            run.send_signal(signal.SIGINT)
            printed, _ = run.communicate(timeout=LONG)
        finally:
            run.kill()
    reader.join()
    os.close(terminal)
    assert run.returncode == 0
    seen = json.loads(printed)
    assert {hop["state"] for hop in seen["hops"].values()} == {"stopped"}
    assert all(hop["error"] is None for hop in seen["hops"].values())
    assert b"numbers: policy multi-class" in shown


def test_the_table_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from treadle.cli.run import table

    hop = {"state": "waiting", "queue": 123456, "rank": 12.0, "rows_in": 1234567, "batches": 4321}
    hops = {
        "payments": {**hop, "state": "restarting", "queue": None, "rank": None},
        "alerts": {**hop, "latency_seconds": {"p50": 0.0123, "p99": 12.5}},
    }
    seen = {"pipeline": "fraud", "policy": "fcfs", "slots": 2, "waiting": 1, "running": 1, "hops": hops}
    Console(width=80).print(table(seen, None, 10.0))
    printed = capsys.readouterr().out
    for word in ("alerts", "restarting", "12.3ms", "12.5s", "123457", "4321"):
        assert word in printed
    assert "…" not in printed


def test_the_table_says_which_group_each_hop_is_in_and_the_load_of_each() -> None:
    hop = {"state": "idle", "queue": 0, "rank": 1.0, "rows_in": 120, "batches": 31}
    seen: dict[str, Any] = {
        "pipeline": "fraud",
        "policy": "fcfs",
        "slots": 2,
        "waiting": 0,
        "running": 1,
        "assign": "mine",
        "assign_refused": "returned 1 numbers for 2 rows",
        "groups": [{"hops": 1, "load": 0.25, "busy_seconds": 1.5}, {"hops": 1, "load": 1.0, "busy_seconds": 0.5}],
        "hops": {"alerts": {**hop, "group": 1}, "archive": {**hop, "group": None}},
    }
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(seen))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "assign mine: load of group 0 and on: 0.25, 1.00" in lines
    assert "the last assignment was refused: returned 1 numbers for 2 rows" in lines
    assert [line for line in lines if line.startswith("alerts idle 1 0 1")]
    assert [line for line in lines if line.startswith("archive idle - 0 1")]
    plain = {key: value for key, value in seen.items() if key != "groups"}
    console.print(table(plain))
    assert "group" not in console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_says_what_is_dropped_since_when_and_what_was_promised(width: int) -> None:
    hop = {"state": "idle", "queue": 0, "rank": 1.0, "rows_in": 120_000, "batches": 31}
    sink = {"min_accuracy": 0.05, "own_accuracy": False, "kept": 0.72, "kept_in_all": 0.81, "since": 1_700_000_000.0}
    whole = {**sink, "min_accuracy": 1.0, "kept": 1.0, "kept_in_all": 1.0, "since": None}
    own = {**sink, "min_accuracy": 0.95, "own_accuracy": True, "kept": 0.031, "kept_in_all": 0.99999, "since": None}
    seen: dict[str, Any] = {
        "pipeline": "promises",
        "policy": "multi-class",
        "slots": 4,
        "waiting": 0,
        "running": 1,
        "hops": dict.fromkeys(("payments", "fraud", "archive", "revenue"), hop),
        "quality": {"sinks": {"fraud": whole, "archive": sink, "revenue": own}, "short": ["sink 'archive' is short"]},
    }
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table(seen, seen, 1.0))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    since = time.strftime("%X", time.localtime(1_700_000_000.0))
    assert f"rows kept of archive: 72% now, 81% in all (promised: 5%), dropped since {since}" in lines
    assert "rows kept of revenue: 3.1% now, 99.9% in all (promised: 95% accuracy)" in lines
    assert "sink 'archive' is short" in lines
    assert not [line for line in lines if line.startswith("rows kept of fraud")]
    [archive] = [line for line in lines if line.startswith(" archive")]
    assert "72%" in archive
