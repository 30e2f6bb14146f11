"""What the documents show, run as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

from treadle import config
from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import simulate

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_loop_of_the_library_page_runs_and_puts_everything_back(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(blocks("library.md", "python")[0], names)
    nice = names["changed"]
    assert nice["alert.score[0]"] < nice["alert.parse[0]"]
    assert set(names["engine"].knob.values.values()) == {0.0}
    assert "queue 40" in capsys.readouterr().out


def test_the_scenario_of_the_scenarios_page_helps_the_alert() -> None:
    text = blocks("scenarios.md", "toml")[0]
    shown = scenario.parse(text, where="scenarios.md")
    latency = {
        policy: simulate(shown, policy).summary()["classes"]["1"]["mean_latency"] for policy in ("os", "multi-class")
    }
    assert latency["multi-class"] < latency["os"]


def test_the_file_of_the_configuration_page_is_valid(tmp_path: Path) -> None:
    (tmp_path / "shown.toml").write_text(blocks("configuration.md", "toml")[0], encoding="utf-8")
    assert config.load(str(tmp_path / "shown.toml"))[0].simulate.seed == 1
