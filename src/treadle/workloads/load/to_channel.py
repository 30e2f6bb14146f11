"""Writes rows to an embedded channel, as its only writer: those that are due at the same time as one segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from treadle.pipelines.channels.log import Writer, schema_of
from treadle.pipelines.channels.segment import conform
from treadle.workloads.load import makers
from treadle.workloads.load.rates import SECOND, Whole
from treadle.workloads.load.targets import Channel


class ChannelSink:
    """The writer of a channel. A row counts as sent when it is visible to readers."""

    room = 2**62

    def __init__(self, target: Channel) -> None:
        folder = Path(target.folder)
        schema = schema_of(folder)
        self._id = target.first
        self.interval = round(target.interval * SECOND)
        self._rows = _replayed(target) if target.lines else _made(target)
        conform(self._table(0, np.zeros(1, np.int64)), schema, target.folder)
        if target.table:
            self._rows = _made(target)  # the row above was a trial, and its random numbers are used again
        self._writer = Writer(folder, schema)
        self.sent = 0

    def send(self, first: int, created: Whole) -> None:
        self._writer.append(self._table(first, created), born="created")
        self.sent += len(created)

    def poll(self) -> None:
        """Nothing is on its way: a row is sent when `send` returns."""

    def close(self) -> None:
        self._writer.close()

    def _table(self, first: int, created: Whole) -> pa.Table:
        ids = self._id + np.arange(first, first + len(created), dtype=np.int64)
        times = pa.array(created, pa.timestamp("us", tz="UTC"))
        table = self._rows(first, len(created))
        return table.append_column("id", pa.array(ids)).append_column("created", times)


def _replayed(target: Channel) -> Callable[[int, int], pa.Table]:
    lines = pa.array(makers.lines(target.lines, target.count, target.seed), pa.string())
    return lambda first, count: pa.table({"line": lines.take(pa.array(np.arange(first, first + count) % len(lines)))})


def _made(target: Channel) -> Callable[[int, int], pa.Table]:
    random = np.random.default_rng(target.seed)
    return lambda first, count: makers.table(target.table, first, count, random)
