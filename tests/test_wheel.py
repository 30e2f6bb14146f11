"""What is installed from a wheel is all that runs need: a file that is missing there shows nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel in a folder of their own."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "checkout"  # setuptools writes beside the sources
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(copy)], check=True)
    (wheel,) = folder.glob("treadle-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_of_the_package_is_in_the_wheel(installed: Path) -> None:
    source = ROOT / "src" / "treadle"
    ours = {
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        path.relative_to(installed / "treadle") for path in (installed / "treadle").rglob("*") if path.is_file()
    } == ours


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.argv = ['treadle', 'policies']; from treadle.cli import main; main()", "highest-rate"),
        ("from treadle.engines.simulator import scenario; print(*scenario.shipped())", "amos-example"),
        ("from treadle.pipelines.spark import jvm; print(jvm.jar().name)", "treadle-"),
        (
            "from treadle.engines.spark.agent import agents, shedder; print(agents.jar(), shedder.jar())",
            "treadle-agent",
        ),
    ],
)
def test_it_runs_from_there(installed: Path, tmp_path: Path, code: str, said: str) -> None:
    check = f"import treadle; assert treadle.__file__.startswith({str(installed)!r}), treadle.__file__; {code}"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", check], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert said in found.stdout
