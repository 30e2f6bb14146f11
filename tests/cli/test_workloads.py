"""The papers' applications from the command line: they are listed, and run with load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import treadle
from treadle.workloads.catalogue import WORKLOADS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def place(tmp_path: Path, own_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_are_listed_with_what_they_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle(monkeypatch, "workloads") == 0
    said = capsys.readouterr().out
    for each in WORKLOADS.values():
        assert each.name in said
        assert each.what.split()[0] in said


def test_one_runs_with_load_and_works_off_all_of_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when it is started again in the same folder."""
    words = ("--layout", "fused", "--rate", "100", "--for", "3s", "--drain", "--json")
    for _ in range(2):
        assert treadle(monkeypatch, "run", "workload:etl", *words) == 0
        said = capsys.readouterr()
        hops = json.loads(said.out)["hops"]
        sent = int(said.err.split("load: ")[1].split()[0])
        assert sent > 100
        assert {hop["rows_in"] for hop in hops.values()} == {sent}
        assert all(hop["rows_out"] > 0 for hop in hops.values())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("workload:linear-rode",), "there is no workload 'linear-rode' (did you mean linear-road?)"),
        (("fraud.py", "--rate", "100"), "fraud.py: --rate is for workloads (leave it out, or run workload:NAME)"),
    ],
)
def test_what_can_not_be_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert treadle(monkeypatch, "run", *words) == 2
    assert why in " ".join(capsys.readouterr().err.split())
