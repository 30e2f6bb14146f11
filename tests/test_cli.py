import json
from pathlib import Path

import pytest
from rich.console import Console

from support import treadle as run
from treadle import cli

SMALL = """
title = "Two filters"
seconds = 2
policies = ["fifo", "os"]

[[query]]
name = "q"

[[query.operator]]
name = "a"
cost = 0.001
selectivity = 0.5
source = { pattern = "poisson", rate = 400 }

[[query.operator]]
name = "b"
upstream = ["a"]
cost = 0.002
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return "small.toml"


def test_amos_example_prints_its_series_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("simulate", "amos-example", "--policy", "fifo", "--policy", "mtiq", "--policy", "chain", "--json")
    assert run(monkeypatch, *words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["fifo", "mtiq", "chain"]
    assert [2.0, 3.0, 0.0, 0.0, 3.0, 0.1] in printed["fifo"]["series"]
    assert [4.0, 1.0, 1.0, 0.125, 2.125, 0.0] in printed["mtiq"]["series"]
    for policy in printed.values():
        assert policy["series"][-1] == [7.0, 0.0, 0.0, 0.0, 0.0, 0.6]


def test_a_scenario_file_is_run_with_its_own_policies_and_drawn(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", scenario, "--plot", "small.png") == 0
    out = capsys.readouterr()
    assert "Two filters" in out.out
    assert "fifo" in out.out
    assert "os" in out.out
    assert Path("small.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_figures_and_another_seed_others(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for seed in ("3", "3", "4"):
        assert run(monkeypatch, "simulate", scenario, "-p", "fifo", "--seed", seed, "--json") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_lists_and_explanations_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        (("policies",), "highest-rate"),
        (("scenarios",), "amos-example"),
        (("metrics",), "global_rate"),
        (("metrics", "--explain", "highest-rate", "--engine", "simulator"), "global_cost"),
        (("metrics", "--explain", "highest-rate", "--engine", "pipeline"), "execution-intrinsic: global_rate"),
        (("config", "show"), 'learner = "ucb"'),
        (("--version",), "treadle"),
    ):
        assert run(monkeypatch, *words) == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", "amos-exmple"), "there is no scenario 'amos-exmple'"),
        (("simulate", "none.toml"), "none.toml: can't be read"),
        (("simulate", "small.toml", "-p", "fofo"), "fofo"),
        (("simulate", "small.toml", "-p", "fifo@nce"), "put one of rank, nice"),
        (("simulate", "small.toml", "-p", "weighted:qs=-1"), "weighted"),
        (("simulate", "small.toml", "-p", "adaptive:learner=sarsa"), "sarsa"),
        (("simulate", "small.toml", "--seconds", "0"), "--seconds"),
        (("simulate", "small.toml", "--seconds", "ten"), "--seconds"),
        (("simulate", "small.toml", "-p", "qs@shares/qwery"), "unknown grouping 'qwery'"),
        (("simulate", "small.toml", "-p", "user-priority:zz=1"), "there is no operator 'zz'"),
        (("simulate", "small.toml", "--seed", "-1"), "--seed"),
        (("simulate", "small.toml", "--plot", "no/folder/x.png"), "there is no folder 'no/folder'"),
        (("simulate", "small.toml", "--plot", "x.docx"), "use a name that ends in .png"),
        (("simulate", "small.toml", "--decisions", "no/folder/d.jsonl"), "can't write"),
        (("simulate", "small.toml", "-p", "fifo@"), "put one of rank, nice"),
        (("simulate", "small.toml", "-p", "os@nice"), "policy os sets no knob"),
        (("simulate", "small.toml", "-p", "adaptive:objective=min foo"), "objective 'foo'"),
        (("demo", "--folder", "small.toml/x"), "name another folder"),
        (("metrics", "--explain", "highest-rte"), "highest-rate"),
        (("metrics", "--explain", "hr", "--engine", "storn"), "storn"),
        (("metrics", "--explain", "no_such_module:Mine"), "no_such_module:Mine: can't be imported"),
        (("metrics", "--explain", "math:pi"), "math:pi: is not a policy"),
        (("metrics", "--explain", "weighted:qs"), "weighted"),
        (("--config", "none.toml", "config", "show"), "none.toml: can't read it"),
        (("frobnicate",), "frobnicate"),
        (("simulate",), "SCENARIO"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(
    scenario: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    assert run(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    if said.startswith("error:"):
        assert said.count("\n") == 1


def test_decisions_are_written_with_their_reasons(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "simulate", scenario, "-p", "qs@nice", "--decisions", "why.jsonl", "--json") == 0
    records = [json.loads(line) for line in Path("why.jsonl").read_text().splitlines()]
    assert {record["knob"] for record in records} == {"nice"}
    assert all(record["from"] != record["to"] and "queue" in record["why"] for record in records)


def test_the_table_fits_a_terminal_of_80_columns(
    scenario: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_out", Console(width=80))
    words = ("-p", "fifo", "-p", "adaptive:learner=ucb,delay=0.5", "-p", "adaptive:learner=thompson,delay=0.5")
    assert run(monkeypatch, "simulate", scenario, *words) == 0
    printed = capsys.readouterr().out
    for word in ("fifo", "adaptive ucb", "adaptive thompson", "results/s", "left"):
        assert word in printed
    assert "…" not in printed
