"""What goes wrong with one part of a pipeline keeps the control thread from nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from treadle.loop.trouble import Attempts
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.channels.log import Writer
from treadle.pipelines.nodes.node import Kind
from treadle.pipelines.run.control_thread import ControlThread

SCHEMA = pa.schema([("a", pa.int64())])
log = logging.getLogger("treadle.pipelines")


def channel(folder: Path) -> Embedded:
    """With a segment that its reader has read, and one that it has not."""
    made = Embedded(folder, SCHEMA, limit_rows=100)
    made.register("reader")
    with Writer(folder, SCHEMA) as writer:
        for number in range(2):
            writer.append(pa.table({"a": [number]}))
    (folder / "positions" / "reader").write_text("1")
    return made


def test_a_corrupt_channel_stops_the_tending_of_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    channels = {name: channel(tmp_path / name) for name in ("corrupt", "sound")}
    (tmp_path / "corrupt" / "positions" / "reader").write_text("no number")
    considered: list[bool] = []
    parts: Any = SimpleNamespace(
        channel_set=SimpleNamespace(sources=channels),
        nodes={name: SimpleNamespace(kind=Kind.FEED) for name in channels},
        hops={},
        steering=SimpleNamespace(step=lambda: None),
        attempt=Attempts(0.0, 0.0, log),
    )
    starter: Any = SimpleNamespace(
        parked_hops=SimpleNamespace(consider_all=lambda thorough: considered.append(thorough))
    )
    tending = ControlThread(parts, starter)
    for _ in range(30):
        tending._maintain()
    assert [len(list(each.folder.glob("*.arrow"))) for each in channels.values()] == [2, 1]
    assert considered
    said = [record for record in caplog.records if "corrupt" in record.getMessage()]
    assert [record.exc_info is not None for record in said] == [True, False]  # a traceback once, then a count
    assert "has failed 10 times in a row" in said[1].getMessage()
    for each in channels.values():
        each.close()
