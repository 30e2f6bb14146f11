"""Result files of benchmarks, and the page made of them: what was claimed, measured, when, where and by what command.

A benchmark writes its file (`--save`), and `docs/results.md` is generated from all files, never edited by hand.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

import treadle
from treadle.bench.claims import DIED
from treadle.errors import ConfigError

INTRODUCTION = """# Results
What the benchmarks found. A claim is named before it is measured and is about a default; one that does not hold is
said to fail. Ratios are of one run, in which all variants take turns; figures of different runs can't be compared.

This page is generated: `treadle bench results > docs/results.md`, from the files in `benchmarks/results`, which
`treadle bench … --save FILE` writes. They have all figures, also those that nothing is claimed of.
"""


class Result(BaseModel):
    """One run of one benchmark."""

    model_config = ConfigDict(extra="forbid")

    command: str
    date: str
    version: str
    commit: str
    """Commit of the checkout that ran; empty if there was none."""
    machine: str
    found: dict[str, Any]


def save(path: Path, command: str, found: Mapping[str, Any]) -> None:
    """Write the figures of a command, with its version, commit, date and machine."""
    result = Result(
        command=command,
        date=datetime.now(UTC).date().isoformat(),
        version=treadle.__version__,
        commit=_commit(),
        machine=machine(),
        found=dict(found),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result.model_dump(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"can't write it: {error.strerror}", where=str(path), remedy="name another file") from None


def read(folder: Path) -> dict[str, Result]:
    """Read all results of a folder, by the names of their files."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = Result.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(
                f"is not a result file: {text}", where=str(path), remedy="measure it again with --save"
            ) from None
    if not found:
        raise ConfigError("has no result files", where=str(folder), remedy="run a benchmark with --save")
    return found


def page(results: Mapping[str, Result]) -> str:
    """Return the results as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(name, each) for name, each in results.items())])


def machine() -> str:
    """Return this machine's usable cores, memory, kernel and version of Python as a text."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {memory:.0f} GB, Linux {platform.release()}, Python {platform.python_version()}"


def _section(name: str, result: Result) -> str:
    claims = result.found.get("claims", [])
    held = sum(each["holds"] for each in claims)
    commit = f", commit {result.commit}" if result.commit else ""
    lines = [
        f"## {name}",
        f"`{result.command}` on {result.date}, version {result.version}{commit}",
        f"({result.machine}): {held} of {len(claims)} claims hold.",
        "",
        *_table(claims),
    ]
    for variant, why in result.found.get(DIED, {}).items():
        lines.append(f"\n`{variant}` died: {why}")
    return "\n".join(lines) + "\n"


def _table(claims: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = ["| claim | aim | measured | |", "|---|---|---|---|"]
    for each in claims:
        measured = "not measured" if each["measured"] is None else f"{each['measured']:.4g}"
        claim = each["claim"].replace("|", "\\|")
        rows.append(f"| {claim} | {each['aim']} | {measured} | {'holds' if each['holds'] else '**fails**'} |")
    return rows


def _commit() -> str:
    """Return the commit of the imported Treadle's checkout, with a note on uncommitted changes; '' without one."""
    here = Path(treadle.__file__).parent
    asked = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        head, changes = (
            subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head} with changes" if changes else head
