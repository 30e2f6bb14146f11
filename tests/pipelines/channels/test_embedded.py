"""What the runner sees of an embedded channel follows what its readers have noted."""

from __future__ import annotations

from pathlib import Path

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
