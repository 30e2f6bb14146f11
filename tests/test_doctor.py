"""The doctor finds what is here, and names a remedy for what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from support import treadle
from treadle import doctor
from treadle.broker import Broker
from treadle.enforce import kernel


def check(report: doctor.Report, name: str) -> doctor.Check:
    return next(check for check in report.checks if check.name == name)


def test_here_is_all_that_a_run_needs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle(monkeypatch, "doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"]
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert states["Python"] == states["Java compiler"] == states["pyspark"] == states["Treadle's Java classes"] == "ok"
    assert all(setting["why"] for setting in found["settings"])
    assert "spark.sql.streaming.checkpointFileManagerClass" in {setting["key"] for setting in found["settings"]}
    assert treadle(monkeypatch, "doctor") == 0
    printed = capsys.readouterr().out
    assert "usable cores" in printed
    assert "running pipelines:" in printed


def test_what_the_kernel_allows_is_tried_and_told(broker: Broker) -> None:
    report = doctor.examine()
    told = {each.name: each for each in report.checks if each.name.startswith("attach: ")}
    assert told.keys() >= {f"attach: {fact.what}" for fact in kernel.facts()}
    assert all(each.state == "ok" or each.remedy for each in told.values())
    assert not any(each.needed for each in told.values()), "`treadle run` needs none of it"
    assert broker.alive()
    assert told["attach: JVM"].state == "ok", "there is the broker's, at least"
    assert check(report, "jars jolokia").name


def test_without_java_it_says_what_to_install_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "cache"))
    assert treadle(monkeypatch, "doctor") == 2
    said = capsys.readouterr()
    assert "no java found" in said.err
    assert "install a JDK 17" in said.err
    assert said.err.count("\n") == 1
    assert "missing" in said.out


def test_a_runtime_without_a_compiler_is_not_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "cache"))
    report = doctor.examine()
    assert {missing.name for missing in report.missing} == {"Java compiler", "Treadle's Java classes"}
    assert "openjdk-17-jdk" in check(report, "Java compiler").remedy
    assert report.settings == ()


def test_what_is_not_fetched_is_a_note_and_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path))
    report = doctor.examine()
    assert check(report, "jars kafka").state == "note"
    assert "treadle jars kafka" in check(report, "jars kafka").remedy
    assert check(report, "Treadle's Java classes").state == "ok"
    assert report.missing == ()


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [("pandas", "3.0.1", "missing"), ("pyspark", "4.4.0", "note"), ("pyarrow", None, "missing")],
)
def test_a_wrong_version_is_seen(
    monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, state: str
) -> None:
    real = metadata.version

    def version_of(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", version_of)
    found = check(doctor.examine(), package)
    assert found.state == state
    assert "pip install" in found.remedy


def test_without_pyspark_it_still_tells_what_is_missing(tmp_path: Path) -> None:
    """A Python that has Treadle and what it needs, but no Spark."""
    code = (
        "import sys; from importlib import metadata; real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'pyspark': raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version; sys.modules['pyspark'] = None\n"
        "from treadle.cli import main; sys.argv = ['treadle', 'doctor']; main()"
    )
    env = {**os.environ, "TREADLE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert "pyspark and 1 more missing: not installed (pip install 'treadle[spark]')" in done.stderr
    assert "Traceback" not in done.stderr
