"""`treadle bench …` fails where its claims do, and shows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treadle.bench import adaptive, core
from treadle.bench.attach import comparisons, loop
from treadle.bench.claims import at_least
from treadle.bench.pipelines import channels, hops, schedulers
from treadle.bench.quality import scenario_run
from treadle.bench.truth import stages
from treadle.cli import cli
from treadle.errors import ConfigError

BENCHES = {
    "adaptive": adaptive,
    "attach": comparisons,
    "channels": channels,
    "core": core,
    "hops": hops,
    "loop": loop,
    "pipelines": schedulers,
    "quality": scenario_run,
    "truth": stages,
}
HELD, BROKEN = at_least("b : a", 2.0, 1.0), at_least("a : b", 0.5, 1.0)


def test_every_benchmark_is_tried_here() -> None:
    bench: Any = cli.commands["bench"]
    assert set(bench.commands) == {*BENCHES, "results"}


@pytest.mark.parametrize("name", BENCHES)
@pytest.mark.parametrize(
    ("found", "options", "code"),
    [
        ({"claims": [HELD]}, [], 0),
        ({"claims": [HELD, BROKEN]}, [], 1),
        ({"claims": [HELD, BROKEN]}, ["--report-only"], 0),
        ({"claims": [HELD], "died": {"b": "EngineError: stalled"}}, [], 1),
    ],
)
def test_a_claim_that_does_not_hold_is_exit_code_1(
    name: str, found: dict[str, Any], options: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BENCHES[name], "run", lambda *_, **__: {"rows_per_s": 12.5, **found})
    shown = CliRunner().invoke(cli, ["bench", name, *options])
    assert shown.exit_code == code, shown.output
    assert "12.5" in shown.output
    for claim in found["claims"]:
        [line] = [line for line in shown.output.splitlines() if claim["claim"] in line]
        assert ("held" if claim["holds"] else "FAILED") in line
        assert claim["aim"] in line
        assert f"{claim['measured']:g}" in line
    assert ("died: b: EngineError: stalled" in shown.output) is ("died" in found)
    as_json = CliRunner().invoke(cli, ["bench", name, "--json", *options])
    assert as_json.exit_code == code
    assert json.loads(as_json.stdout)["claims"] == found["claims"]


def test_what_is_saved_becomes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "run", lambda *_, **__: {"claims": [HELD, BROKEN], "died": {"b": "stalled"}})
    file = tmp_path / "results" / "loop.json"
    words = ["bench", "loop", "--json", "--save", str(file), "--report-only"]
    monkeypatch.setattr("sys.argv", ["treadle", *words])
    assert CliRunner().invoke(cli, words).exit_code == 0
    page = CliRunner().invoke(cli, ["bench", "results", str(file.parent)])
    assert page.exit_code == 0, page.output
    assert "## loop\n`treadle bench loop` on 20" in page.output
    assert "1 of 2 claims hold" in page.output
    assert "| b : a | at least 1 | 2 | holds |" in page.output
    assert "| a : b | at least 1 | 0.5 | **fails** |" in page.output
    assert "`b` died: stalled" in page.output


@pytest.mark.parametrize("text", ["", "{}", '{"command": 1}', "no JSON"])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.json").write_text(text)
    shown = CliRunner().invoke(cli, ["bench", "results", str(tmp_path)])
    assert isinstance(shown.exception, ConfigError)
    assert "odd.json: is not a result file" in str(shown.exception)


def test_the_page_of_results_is_what_the_files_say() -> None:
    root = Path(__file__).parents[2]
    page = CliRunner().invoke(cli, ["bench", "results", str(root / "benchmarks" / "results")])
    assert page.output == (root / "docs" / "results.md").read_text(encoding="utf-8")
