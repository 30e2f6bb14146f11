"""Names that other users chose reach the terminal as text, never as orders to it."""

from __future__ import annotations

import io
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from support import treadle
from treadle import cli
from treadle.cli.attach import _tell
from treadle.cli.attach_tables import changes
from treadle.cli.attach_tables import table as attachment_table
from treadle.cli.run import table as pipeline_table
from treadle.errors import EngineError
from treadle.loop import Decision
from treadle.model import ThreadRef

HOSTILE = "a\x1b]0;owned\x07\r\x9b2J\u202eb\n[red]c[/red]\\[bold]d"
SHOWN = "a\\x1b]0;owned\\x07\\r\\x9b2J\\u202eb\\n[red]c[/red]\\[bold]d"

ROW = {
    "application": HOSTILE,
    "query": HOSTILE,
    "operator": HOSTILE,
    "index": 1,
    "threads": [{"tid": 2, "role": "main", "has": HOSTILE}],
    **dict.fromkeys(("queue", "queue_is_estimate", "latency", "cost", "cpu", "wait", "priority")),
    "change": HOSTILE,
    "why": HOSTILE,
}
CHANGE = Decision(
    time=0.0,
    engine=HOSTILE,
    policy="p",
    knob="nice",
    target=ThreadRef(1, 1, 1, name=HOSTILE),
    instance=HOSTILE,
    before=0.0,
    after=-5.0,
    reason=HOSTILE,
    priority=1.0,
    metrics={},
)
STATUS: dict[str, Any] = {
    "applications": [{"name": HOSTILE, "ended": True}],
    "policy": "p",
    "enforce": "nice",
    "period": 0.05,
    "dry_run": False,
    "changes": 3,
    "released": {"x": HOSTILE},
    "seen": [HOSTILE],
    "unseen": [HOSTILE],
    "unplanned": [HOSTILE],
    "partial": True,
    "rows": [ROW],
    "quality": {
        "queries": [{"query": HOSTILE, "min_accuracy": 0.5, "promised": 0.7, "accuracy": None}],
        "suspended": {HOSTILE: 1},
        "short": [HOSTILE],
    },
}
STATUS["quality"]["queries"][0] |= {"real_time": False, "measured": True, "keeps_all": None}


def drawn(table: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=2000, force_terminal=False).print(table)
    return out.getvalue()


def obeyed(text: str) -> set[str]:
    """The signs in it that a terminal obeys, but for line breaks, which are the table's own."""
    return {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf") and sign != "\n"}


def test_the_table_of_an_attachment_shows_control_characters_and_markup() -> None:
    grid = attachment_table(STATUS)
    for column in grid.columns:
        column.max_width = None
    said = drawn(grid)
    assert obeyed(said) == set()
    assert [line.count(SHOWN) for line in said.splitlines() if SHOWN in line] == [2, 5, 1, 1, 1]
    several = STATUS | {"applications": [STATUS["applications"][0]] * 2}
    assert obeyed(drawn(attachment_table(several))) == set()


def test_the_table_of_changes_and_the_line_of_a_change_do_so() -> None:
    loop = SimpleNamespace(stats=SimpleNamespace(changes=1), decisions=[CHANGE])
    attachment: Any = SimpleNamespace(status=lambda: STATUS, loop=loop)
    said = drawn(changes(attachment))
    assert obeyed(said) == set()
    assert SHOWN in said


def test_changes_are_printed_visibly(capsys: pytest.CaptureFixture[str]) -> None:
    _tell([[CHANGE]])  # type: ignore[list-item]
    said = capsys.readouterr().out
    assert obeyed(said) == set()
    assert said.count("\n") == 1


def test_an_error_is_one_visible_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise EngineError(f"no Spark application is called '{HOSTILE}'", where=HOSTILE, remedy=HOSTILE)

    monkeypatch.setattr("treadle.attachment.checks.settle_leftovers", fail)
    assert treadle(monkeypatch, "restore") == 2
    said = capsys.readouterr().err
    assert obeyed(said) == set()
    assert said.count("\n") == 1
    assert "\\x1b]0;owned\\x07" in said
    assert "[red]c[/red]" in said


def test_an_error_that_python_prints_is_visible_too() -> None:
    error = EngineError(f"it says\n{HOSTILE}")
    assert obeyed(str(error)) == set()
    assert obeyed(error.message) == set()


def test_other_tables_do_so(capsys: pytest.CaptureFixture[str]) -> None:
    cli._show(["what"], [(HOSTILE,)])
    assert obeyed(capsys.readouterr().out) == set()
    hop = {"state": "s", "queue": 1, "rank": 1, "rows_in": 1, "batches": 1}
    status = {"pipeline": HOSTILE, "policy": "p", "slots": 1, "waiting": 0, "running": 0, "hops": {HOSTILE: hop}}
    assert obeyed(drawn(pipeline_table(status))) == set()
