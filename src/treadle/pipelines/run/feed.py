"""Writes rows from Python into a feed: `Feed` in the pipeline's process, `feed` in another process.

`feed` works without Spark, on embedded channels only: these are folders. `Feed` also writes to Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels import encoded, log
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.channels.cluster import client_config
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.channels.log import Writer
from treadle.pipelines.channels.segment import Rows, arrival, arrow_schema, conform
from treadle.pipelines.channels.topic import Topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

Born = str | tuple[float, float] | None
_PATIENCE = 30.0


def feed(
    folder: str | Path,
    schema: pa.Schema | StructType | str | None = None,
    *,
    limit_rows: int | None = None,
    limit_bytes: int | None = None,
) -> Writer:
    """Write to a feed of a pipeline from another process, without Spark, before or while the pipeline runs.

    The pipeline must use embedded channels; `folder` is `.treadle/NAME/channels/FEED`. `schema` may be left out once
    the pipeline has run. With a limit, `append` waits while the slowest reader is that far behind. Only one process may
    write at a time.

    >>> with treadle.feed(".treadle/fraud/channels/payments", "id bigint, card string") as feed:  # doctest: +SKIP
    ...     feed.append([{"id": 2, "card": "c2"}])
    """
    if schema is None:
        try:
            schema = log.schema_of(Path(folder))
        except EngineError as error:
            raise ConfigError(
                error.message, where=error.where, remedy="give its schema, as 'id bigint, card string'"
            ) from error
    return Writer(folder, schema, limit_rows=limit_rows, limit_bytes=limit_bytes)


class Feed:
    """Writes rows to a feed from this process. After new rows it calls `tell`, to offer the readers to the gate."""

    def __init__(self, channel: Source, tell: Callable[[], None]) -> None:
        self._channel = channel
        self._tell = tell
        self._writer: Writer | _Producer
        if isinstance(channel, Embedded):
            self._writer = Writer(channel.folder, channel.schema, limit_rows=channel.limit_rows)
        elif isinstance(channel, Topic):
            self._writer = _Producer(channel)
        else:
            raise ConfigError("is not a feed", where=f"channel '{channel.name}'", remedy="define it with p.feed")

    def append(self, rows: Rows, *, born: Born = None, timeout: float | None = None) -> None:
        """Add rows: a pandas or Arrow table or a list of dicts. If the feed is full, wait at most `timeout` seconds.

        An embedded channel gets all of the rows or none. If the process is killed in this call, a Kafka topic may have
        got only the first rows.
        """
        self._writer.append(rows, born=born, timeout=timeout)
        if self._channel.refresh():
            self._tell()

    def close(self) -> None:
        self._writer.close()


class _Producer:
    """Writes to a topic, each row once and in order."""

    def __init__(self, topic: Topic) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._schema = arrow_schema(topic.schema)
        config = {**client_config(topic.cluster.bootstrap), "enable.idempotence": True, "linger.ms": 5}
        self._client = Producer({**config, "message.timeout.ms": int(_PATIENCE * 1000)})
        self._closed = False

    def append(self, rows: Rows, *, born: Born, timeout: float | None) -> None:
        now = time.time()
        topic = self._topic
        table = conform(rows, self._schema, f"topic '{topic.topic}'")
        oldest, mean = arrival(table, born, now) if table.num_rows else (now, now)
        self._wait(None if timeout is None else time.monotonic() + timeout, timeout)
        ends: dict[int, int] = {}
        failed: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error.str())
            else:
                ends[message.partition()] = max(ends.get(message.partition(), 0), message.offset() + 1)

        with topic.writing():
            for value in encoded.values(table):
                while True:
                    try:
                        self._client.produce(topic.topic, value, on_delivery=delivered)
                        break
                    except BufferError:
                        self._client.poll(0.05)
            self._client.flush()
            if failed:
                raise EngineError(
                    f"{len(failed)} of {table.num_rows} rows were not taken: {failed[0]}",
                    where=f"topic '{topic.topic}'",
                    remedy="see the broker: treadle kafka status",
                )
            topic.wrote(ends, int(oldest * 1e6), int(mean * 1e6))

    def close(self) -> None:
        self._closed = True
        self._client.flush(_PATIENCE)

    def _wait(self, until: float | None, timeout: float | None) -> None:
        while self._topic.full:
            if self._closed:  # its readers have stopped
                raise EngineError("the feed is closed", where=f"topic '{self._topic.topic}'", remedy="open it again")
            if until is not None and time.monotonic() > until:
                raise EngineError(
                    f"is still full after {timeout:g} s",
                    where=f"topic '{self._topic.topic}'",
                    remedy="check why its slowest reader does not read, or raise limit_rows",
                )
            time.sleep(0.01)
