"""What the runner sees of an embedded channel follows what its readers have noted."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.errors import EngineError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.embedded import Embedded

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


def test_a_channel_is_no_longer_full_when_a_reader_that_tells_nobody_has_read_it(tmp_path: Path) -> None:
    channel = Embedded(tmp_path / "c", SCHEMA, limit_rows=2)
    channel.register("joined")
    with log.Writer(channel.folder, SCHEMA) as writer:
        writer.append([{"a": 1}, {"a": 2}])
    channel.refresh()
    assert channel.full
    log.set_position(channel.folder, "joined", 2)  # as a query does that also reads elsewhere, and has no more to do
    channel.collect()
    assert channel.rows == 0
    assert not channel.full
    channel.close()


def test_a_channel_that_ends_before_what_a_reader_has_read_is_refused(tmp_path: Path) -> None:
    channel = Embedded(tmp_path / "numbers", SCHEMA, limit_rows=10)
    channel.register("reader")
    with log.Writer(channel.folder, SCHEMA) as writer:
        writer.append([{"a": 1}])
        lost = writer.append([{"a": 2}, {"a": 3}])
    assert lost is not None
    log.set_position(channel.folder, "reader", 3)
    (channel.folder / lost.name).unlink()  # as a power failure may do it
    channel.close()
    again = Embedded(tmp_path / "numbers", SCHEMA, limit_rows=10)
    with pytest.raises(EngineError, match="has read up to row 3, but the channel ends at 1"):
        again.register("reader")
    again.close()
