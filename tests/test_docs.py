"""What the documents show, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import treadle
from treadle import config
from treadle.cli import cli
from treadle.engines.simulator import scenario
from treadle.engines.simulator.run import simulate
from treadle.pipelines.channels.log import read
from treadle.pipelines.hops.options import Options
from treadle.pipelines.quality.flow import flow_of
from treadle.pipelines.spark.session import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@pytest.fixture
def place(tmp_path: Path, own_sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages write where they are run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def moved(code: str, place: Path) -> str:
    """With its outputs there: for Spark, a relative path is one of where it was started."""
    return code.replace('"out/', f'"{place}/out/')


ELSEWHERE = "# another process\n"


def run_elsewhere(code: str) -> None:
    """In a process of its own, as the page says: without this one's Spark session, and with no way to start a JVM."""
    there = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_the_pipelines_page_shows_for_another_process_runs_in_one(place: Path) -> None:
    (shown,) = (block for block in blocks("pipelines.md", "python") if block.startswith(ELSEWHERE))
    run_elsewhere(shown)
    assert read(place / ".treadle/fraud/channels/payments").to_pylist() == [{"id": 2, "card": "c2", "amount": 20.0}]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_code_that_is_of_another_process_says_so_in_its_first_line(page: Path) -> None:
    for before, block in re.findall(r"([^\n]*)\n+```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL):
        assert "another process" not in before.lower() or block.startswith(ELSEWHERE), block


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_all_python_on_a_page_is_python(page: Path) -> None:
    for block in blocks(page.name, "python"):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target, _, heading in re.findall(r"\]\(([\w./-]+\.md)(#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        text = (DOCS / target).read_text(encoding="utf-8")
        headings = [re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in text.splitlines()]
        assert not heading or heading in headings, f"{target}#{heading}"


def test_the_pipeline_of_the_pipelines_page_delivers_its_alert(spark: SparkSession, place: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks("pipelines.md", "python"):
        if block.startswith(ELSEWHERE):
            run_elsewhere(moved(block, place))
        else:
            exec(moved(block, place), names)
    assert [row.id for row in spark.read.parquet(f"{place}/out/alerts").collect()] == [1]
    with names["p"].start(spark) as run:  # what the other process has put in is there
        run.stop(drain=True, timeout=60)
        run.check()
    assert sorted(row.id for row in spark.read.parquet(f"{place}/out/archive").collect()) == [1, 2]


def test_the_application_of_its_page_is_scheduled(spark: SparkSession, place: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(moved(blocks("existing-applications.md", "python")[0], place), names)
    query, gate = names["query"], names["gate"]
    try:
        until = time.monotonic() + 120
        while not gate.status()["hops"].get("orders", {}).get("batches", 0):
            assert query.exception() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        query.stop()
        gate.close()
    assert list((place / "out" / "orders").glob("batch=*"))


def test_the_page_of_cheap_hops_names_every_setting_with_its_value() -> None:
    page = (DOCS / "cheap-hops.md").read_text(encoding="utf-8")
    for setting in settings(fair=True):
        value = "" if "/" in setting.value else f"`{setting.value}`"
        assert f"| `{setting.key}` | {value}" in page, setting.key


def test_the_page_of_pipelines_names_every_option_with_its_default() -> None:
    page = (DOCS / "pipelines.md").read_text(encoding="utf-8")
    for name in Options.__dataclass_fields__:
        default = getattr(Options(), name)
        if isinstance(default, bool):
            default = "yes" if default else "no"
        elif isinstance(default, float):
            default = f"{default:g} s"
        elif isinstance(default, int):
            default = f"{default:,}"
        elif default == ():
            default = "none"
        assert f"| `{name}` | {default} |" in page.replace(f"`{default}`", default), name


def test_commands_and_flags_on_the_pages_exist() -> None:
    for page in ("pipelines.md", "existing-applications.md", "cheap-hops.md", "operations.md", "../examples/README.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for words, flags in re.findall(r"\btreadle ((?:run|show|doctor|ctl \w+|kafka \w+|jars))((?: [^`\n]*)?)", text):
            shown = CliRunner().invoke(cli, [*words.split(), "--help"])
            assert shown.exit_code == 0, f"{page}: treadle {words}"
            for flag in re.findall(r"--[a-z]+", flags):
                assert flag in shown.output, f"{page}: treadle {words} {flag}"


def test_the_pipeline_of_the_quality_page_keeps_fraud_whole_and_lets_revenue_shed() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(blocks("quality.md", "python")[0], names)
    flow = flow_of({node.name: node for node in names["p"].nodes}, "hops")
    assert dict(zip(flow.tasks, flow.minimum, strict=True)) == {"payments": 1.0, "fraud": 1.0, "revenue": 0.2}


def test_the_join_and_the_units_of_the_quality_page_give_corrected_sums(spark: SparkSession, tmp_path: Path) -> None:
    p = treadle.Pipeline("page")
    _, join, units, *_ = blocks("quality.md", "python")
    names: dict[str, Any] = {"__name__": "page", "treadle": treadle, "p": p}
    exec(join, names)
    exec(units.replace('parquet("revenue")', f'parquet("{tmp_path}/revenue")'), names)
    orders = spark.createDataFrame([("a", 2.0)], "item string, _weight double")
    prices = spark.createDataFrame([("a", 3.0, 5.0)], "item string, price double, _weight double")
    assert p.node("priced").function(orders, prices).collect() == [("a", 10.0, 3.0)]  # type: ignore[misc]
    payments = spark.createDataFrame(
        [(number, "x", [1.0, 2.0], 2.0) for number in range(5)],
        "id long, city string, lines array<double>, _weight double",
    )
    p.node("revenue").function(payments)  # type: ignore[misc]
    [found] = spark.read.parquet(f"{tmp_path}/revenue").collect()
    assert (found[0], found[1]["value"], found[2]["value"]) == ("x", 30.0, 20.0)
    assert found[1]["high"] > 30.0
