"""One running application on a core of its own, with its broker, its load and the readers of its results.

Variants take turns on it, and each begins with empty queues. Broker, load and Treadle have the other cores.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from treadle import jars
from treadle.attachment import attach
from treadle.broker import Broker, free_port
from treadle.errors import EngineError
from treadle.linux.thread_times import ThreadTimes
from treadle.model import Floats, Ints
from treadle.workloads.producer import Producer
from treadle.workloads.realtime import Application, Chain, Started

Progress = Callable[[str, float], None]
BATCH = "10 seconds"
KNOWN = 10.0
"""Maximum seconds to wait until an attachment has found the queries."""
SETTLE = 2.0
WARM, TWICE, WARM_UPS = 1.03, 2, 14
"""An application is warm if its speed has not risen by the factor `WARM` for `TWICE` floods in a row. `WARM_UPS` is the
maximum number of floods."""
FIRST_FLOOD, FLOOD, ENOUGH = 2000.0, 1.4, 0.9
"""`FIRST_FLOOD` is the first rate, in rows per second and query; the next rates are `FLOOD` times the throughput. A
rate is a flood if less than the share `ENOUGH` of its rows is finished in time."""
PATIENCE = 120.0
"""Maximum seconds for working off waiting rows after each measurement."""
MOMENTS = 200
"""Number of moments at which waiting rows are counted."""


@contextmanager
def attached(rig: Rig, options: dict[str, Any] | None) -> Iterator[None]:
    """Attach with these options during the block, which begins `SETTLE` seconds after the queries are known.

    If `options` is None, don't attach.
    """
    if options is None:
        yield
        return
    with attach(rig.application.pid, **options) as attachment:
        # The first request to its UI costs an application a second of its core, which `first_priority_s` of `bench
        # loop` measures. Here the time after that is compared.
        limit = time.monotonic() + KNOWN
        while not attachment.status()["rows"] and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(SETTLE)
        yield


@dataclass(frozen=True)
class Outcome:
    """The results of one measurement, by query."""

    ages: Mapping[str, Floats]
    """The latencies in seconds of all rows that came in during the measurement."""
    rows: Mapping[str, int]
    """Number of rows that came out during the measurement."""
    left: Mapping[str, int]
    """Number of rows inside the query at the end."""
    queued: Mapping[str, Ints]
    """Number of rows inside the query at each of `MOMENTS` evenly spaced moments."""
    switches: float
    """Context switches per second of all threads of the application."""


class StalledError(EngineError):
    """The application did not finish its backlog in time."""


class _Mark(NamedTuple):
    """The counters at `time` (in nanoseconds): rows sent and seen by sink, context switches by thread."""

    time: int
    sent: Mapping[str, int]
    seen: Mapping[str, int]
    switches: Mapping[int, float]


class Rig:
    """The application on the last core, everything else on the others."""

    def __init__(
        self,
        queries: Sequence[Chain],
        *,
        batch: str = BATCH,
        application: Callable[[str, int | None], Started] | None = None,
    ) -> None:
        """Prepare the queries. `application` starts the application; it gets the broker's address and its core."""
        self._start = application or (lambda servers, core: Application(queries, servers, batch=batch, core=core))
        self.queries = {query.sink: query for query in queries}
        self._seen = dict.fromkeys(self.queries, 0)
        self._sent = dict.fromkeys(self.queries, 0)
        self._came: dict[str, list[tuple[int, int]]] = {}
        self._times = ThreadTimes()
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as closing:
            cores = sorted(os.sched_getaffinity(0))
            own = cores[-1] if len(cores) > 1 else None
            if own is not None:
                os.sched_setaffinity(0, cores[:-1])  # children inherit it
                closing.callback(os.sched_setaffinity, 0, cores)
            folder = Path(tempfile.mkdtemp(prefix="treadle-"))
            closing.callback(shutil.rmtree, folder, ignore_errors=True)
            jars.fetch("jolokia")  # without Jolokia `attach` does not know the lag of its queries
            broker = Broker.start(folder, free_port())
            closing.callback(broker.stop)
            _make_topics(broker.bootstrap, [*self.queries, *(query.source for query in self.queries.values())])
            self._producer = closing.enter_context(Producer(broker.bootstrap))
            self.application = closing.enter_context(self._start(broker.bootstrap, own))
            self._consumer = _consumer(broker.bootstrap, list(self.queries))
            closing.callback(self._consumer.close)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def capacity(self, seconds: float) -> float:
        """Return the rows per second of all queries when they are flooded equally."""
        return sum(self.flooded({query.name: 1.0 for query in self.queries.values()}, seconds).values())

    def flooded(self, mix: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Return the rows per second that come out of each query under more load of this mix than can be processed.

        The flood is repeated until the application gets no faster, because the JVM has compiled the code.
        """
        best: dict[str, float] = {}
        warm = 0
        scale = FIRST_FLOOD * len(mix) / sum(mix.values())
        for _ in range(WARM_UPS):
            outcome = self.measure({name: scale * part for name, part in mix.items()}, seconds)
            done = {name: rows / seconds for name, rows in outcome.rows.items()}
            finished = min(1.0, sum(outcome.rows.values()) / max(1, sum(map(len, outcome.ages.values()))))
            scale *= FLOOD * finished
            is_same = finished < ENOUGH and sum(done.values()) < WARM * sum(best.values())
            warm = warm + 1 if is_same else 0
            best = done if sum(done.values()) > sum(best.values()) else best
            if warm == TWICE:
                break
        return best

    @contextmanager
    def flowing(self, rates: Mapping[str, float]) -> Iterator[None]:
        """Generate load at these rates during the block."""
        self.produce(rates)
        try:
            yield
        finally:
            self.produce({})
            self._work_off()

    def measure(self, rates: Mapping[str, float], seconds: float, settle: float = SETTLE) -> Outcome:
        """Generate load at these rates for `seconds`, and wait until all rows are out."""
        return self.follow([rates], seconds, settle)[0]

    def follow(self, phases: Sequence[Mapping[str, float]], seconds: float, settle: float = SETTLE) -> list[Outcome]:
        """Run each phase for `seconds`, one after the other without a pause, and wait until all rows are out.

        Rows flow for `settle` seconds before the measurement.
        """
        marks = []
        with self.flowing(phases[0]):
            self.take(settle)
            self._came = {sink: [] for sink in self.queries}
            marks.append(self._mark())
            for following in (*phases[1:], {}):
                self.take(seconds)
                self.produce(following)
                marks.append(self._mark())
        return [self._between(start, end) for start, end in pairwise(marks)]

    def _mark(self) -> _Mark:
        return _Mark(time.time_ns(), dict(self._sent), dict(self._seen), self._switches())

    def _between(self, start: _Mark, end: _Mark) -> Outcome:
        """Return the outcome between two marks; all rows must be out."""
        seconds = (end.time - start.time) / 1e9
        switched = sum(count - start.switches.get(tid, 0.0) for tid, count in end.switches.items())
        by_query = {query.name: sink for sink, query in self.queries.items()}
        return Outcome(
            ages={name: _ages(self._came[sink], start.time, end.time) for name, sink in by_query.items()},
            rows={name: end.seen[sink] - start.seen[sink] for name, sink in by_query.items()},
            left={name: end.sent[sink] - end.seen[sink] for name, sink in by_query.items()},
            queued={name: _inside(self._came[sink], start.time, end.time) for name, sink in by_query.items()},
            switches=switched / seconds,
        )

    @property
    def seen(self) -> int:
        """Output rows of all queries consumed so far."""
        return sum(self._seen.values())

    def sent(self, query: str) -> int:
        """Return the rows sent to a query until rates were last set, without those that its filter drops."""
        return next(self._sent[sink] for sink, each in self.queries.items() if each.name == query)

    def came(self, query: str) -> float:
        """Return the number of rows that are now in the topic that a query reads."""
        from confluent_kafka import TopicPartition

        source = next(each.source for each in self.queries.values() if each.name == query)
        return float(self._consumer.get_watermark_offsets(TopicPartition(source, 0), timeout=5.0)[1])

    def produce(self, rates: Mapping[str, float]) -> None:
        """Set the rows per second by query from now on; queries that are not named get none."""
        by_topic = {query.source: rates[query.name] for query in self.queries.values() if query.name in rates}
        sent = self._producer.rates(by_topic)
        for sink, query in self.queries.items():
            self._sent[sink] = query.put_out(sent.get(query.source, 0))

    def take(self, seconds: float) -> None:
        """Read the queries' output for this many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.take_some()

    def take_some(self) -> None:
        now = time.time_ns()
        for message in self._consumer.consume(5000, 0.02):
            if message.error() is None:
                sink = message.topic()
                self._seen[sink] += 1
                if sink in self._came:
                    self._came[sink].append((int(message.value()), now))

    def _work_off(self) -> None:
        end = time.monotonic() + PATIENCE
        while any(self._seen[sink] < self._sent[sink] for sink in self.queries):
            if time.monotonic() > end:
                raise StalledError(
                    f"waiting rows are not processed within {PATIENCE:g} s", remedy="end other programs on this machine"
                )
            self.take_some()

    def _switches(self) -> dict[int, float]:
        """Return the context switches by thread, without threads that have ended."""
        pid = self.application.pid
        threads = tuple((pid, int(name)) for name in os.listdir(f"/proc/{pid}/task"))
        counts = self._times.switches(threads)
        both = (counts.voluntary + counts.involuntary).tolist()
        return {tid: count for (_, tid), count in zip(threads, both, strict=True) if count == count}


def queued(rows: Ints) -> dict[str, float]:
    """Return mean and variance over time of the number of rows inside a query."""
    return {"queued_rows": float(rows.mean()), "queue_variance": float(rows.var())}


def _inside(came: list[tuple[int, int]], since: int, until: int) -> Ints:
    """Count the rows inside the application at `MOMENTS` points in time. All rows must have been written by now."""
    begun, ended = np.array(came, dtype=np.int64).reshape(-1, 2).T
    moments = np.linspace(since, until, MOMENTS, dtype=np.int64)
    return np.searchsorted(np.sort(begun), moments, "right") - np.searchsorted(np.sort(ended), moments, "right")


def _ages(came: list[tuple[int, int]], since: int, until: int) -> Floats:
    table = np.array(came, dtype=np.int64).reshape(-1, 2)
    table = table[(table[:, 0] >= since) & (table[:, 0] < until)]
    return np.asarray((table[:, 1] - table[:, 0]) / 1e9, dtype=np.float64)


def _make_topics(servers: str, names: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    client = AdminClient({"bootstrap.servers": servers})  # pending requests end with the client
    for made in client.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result()


def _consumer(servers: str, topics: list[str]) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    )
    consumer.subscribe(topics)
    return consumer
