"""Measures the arrival rates of the sources of a running pipeline, and the backlog in user-defined sources.

Feeds and topics are channels, which count their own rows. User-defined sources (`@p.source`) are measured from the
progress reports of the queries that read them. `promises` decides how many rows are dropped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.decide.quality import InputRate
from treadle.enforce.shed import Count
from treadle.engines.spark.queries.progress import Progress
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.quality.own_sources import OwnSource

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("treadle.pipelines")

TRIES, AT_ONCE = 3, 0.01
"""The offsets of all channels are read up to `TRIES` times, until all are read within `AT_ONCE` seconds: slower reads
have no single point in time."""


class SourceRates:
    """Arrival rates of the sources `names`.

    `readers` maps each user-defined source to the hops that read it, each with the name of the stream on which its rows
    are counted and dropped. In layout `hops` the reader is the source's own hop, which writes to a channel and has no
    such stream (None). `period` is the length of a cycle in seconds.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        readers: Mapping[str, Mapping[str, str | None]],
        channels: Mapping[str, Source],
        hops: Mapping[str, Hop],
        period: float,
    ) -> None:
        self.rates: dict[str, float] = {}
        """By source: rows a second; 0 while unknown."""
        self._readers = readers
        self._channels = channels
        self._hops = hops
        # Two readings are enough: rows of a channel are counted, not estimated.
        self._inputs = {name: InputRate(period / 2) for name in names if name not in readers}
        self._own = {name: {reader: OwnSource() for reader in read_by} for name, read_by in readers.items()}
        self._reported: set[str] = set()

    def look_at_channels(self) -> float:
        """Measure the arrival rates of feeds and topics; return the time of the measurement (monotonic)."""
        there = {name: self._channels[name] for name in self._inputs if name in self._channels}
        brokers = {channel.cluster: channel for channel in there.values()}  # one refresh covers all topics of a cluster
        for _ in range(TRIES):
            began = time.monotonic()
            for channel in (*brokers.values(), *(each for each in there.values() if each.cluster is None)):
                channel.refresh()
            now = time.monotonic()
            if now - began < AT_ONCE:
                break
        now = (began + now) / 2
        for name, channel in there.items():
            waiting = channel.rows
            found = self._inputs[name].update(now, channel.total - waiting, waiting)
            self.rates[name] = 0.0 if found is None else found.arriving
        return now

    def look_at_queries(self, now: float, counts: Mapping[str, Count]) -> None:
        """Measure the arrival rates of user-defined sources; `counts` has by stream the rows before and after drops."""
        for name, readers in self._own.items():
            for reader, source in readers.items():
                hop = self._hops.get(reader)
                if hop is not None:
                    stream = self._readers[name][reader]
                    rows = hop.tuples_out if stream is None else counts.get(stream, Count(0, 0)).seen
                    source.update(now, rows, None if hop.query is None else _last_report(hop.query))
            known = [source.rate for source in readers.values() if not math.isnan(source.rate)]
            self.rates[name] = max(known, default=0.0)
        no_lag = {name for name, readers in self._own.items() if any(s.lag_known is False for s in readers.values())}
        for name in sorted(no_lag - self._reported):
            self._reported.add(name)
            log.warning(
                "no rows of source '%s' are dropped: it does not report its latest offset, so a backlog can't be "
                "distinguished from a higher rate (use p.topic or p.feed)",
                name,
                extra={"source": name},
            )

    @property
    def unknown(self) -> set[str]:
        """The user-defined sources that do not report their lag, or have not yet: they may have a backlog."""
        return {name for name, readers in self._own.items() if not all(each.lag_known for each in readers.values())}

    def waiting(self, hop: Hop, now: float) -> float:
        """Estimate how many rows of user-defined sources a hop has not read yet, at the time `now` (monotonic)."""
        reading_for = 0.0 if hop.planned is None else max(0.0, now - hop.planned)
        return max((own[hop.name].waiting(reading_for) for own in self._own.values() if hop.name in own), default=0.0)


def _last_report(query: StreamingQuery) -> Progress | None:
    report = query._jsq.lastProgress()  # PySpark's own conversion takes a hundred calls to the JVM
    return None if report is None else Progress.parse(report.json())
