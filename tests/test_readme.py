"""The README is short, its Python defines a pipeline, and its commands are ones that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import treadle
from treadle.cli import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    """All commands of ours, without their comments."""
    lines = [line.partition("#")[0].strip() for block in blocks("") for line in block.splitlines()]
    return [text for text in (*lines, *re.findall(r"`(treadle [^`]+)`", README)) if text.startswith("treadle ")]


def test_it_fits_two_screens() -> None:
    assert max(map(len, README.splitlines())) <= 120
    assert len(README.splitlines()) <= 125
    tables = re.findall(r"(?:^\|.*\n)+", README, flags=re.MULTILINE)
    assert max(table.count("\n") - 2 for table in tables) <= 8


def test_its_pipeline_is_one() -> None:
    (code,) = [block for block in blocks("python") if "Pipeline(" in block]
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    assert isinstance(names["p"], treadle.Pipeline)
    assert [node.name for node in names["p"].nodes] == ["payments", "suspicious", "alerts", "archive"]


@pytest.mark.parametrize("text", commands())
def test_a_command_is_one_that_there_is(text: str) -> None:
    command: click.Command = cli
    words = shlex.split(text)[1:]
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context(text, words)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)\)", README))
def test_a_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("target", re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE))
def test_a_target_is_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
