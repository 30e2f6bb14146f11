"""`treadle bench attach`: an unchanged application in Spark's Real-Time Mode under the OS alone and under Treadle.

Contention is one urgent query against four that ask for more than there is; the chain is one query of five uneven
stages, at rising rates. The application has one core for itself, broker, load and Treadle have the others. All variants
take turns on one running application, and each begins with empty queues.
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
from treadle.bench.apart import medians
from treadle.bench.claims import SET_UP, Claims, Deaths, at_least, in_turns
from treadle.broker import Broker, free_port
from treadle.errors import EngineError
from treadle.linux.thread_times import ThreadTimes
from treadle.model import Floats, Ints
from treadle.workloads.producer import Producer
from treadle.workloads.realtime import Application, Chain, Started

Progress = Callable[[str, float], None]
BATCH = "10 seconds"
URGENT = {"high": 10.0}
CONTENTION: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    "random": {"policy": "random", "enforce": "nice"},
    "treadle": {"priorities": URGENT},
    "nice, strict": {"priorities": URGENT, "enforce": "nice", "strict": True},
    "nice, strict, whole range": {"priorities": URGENT, "enforce": "nice:low=-20,high=19", "strict": True},
    "nice without helpers": {"priorities": URGENT, "enforce": "nice:helpers=no"},
    "cgroup": {"priorities": URGENT, "enforce": "cgroup"},
    "cgroup, strict": {"priorities": URGENT, "enforce": "cgroup", "strict": True},
    "realtime": {"priorities": URGENT, "enforce": "rt:low=0"},
    "realtime for all": {"priorities": URGENT, "enforce": "rt"},
}
"""What is given to `attach`; None: nobody attaches. Claims are about `treadle`: `treadle attach` with priorities and
nothing else, so with the enforcer that it has by default."""
CHAIN: Mapping[str, dict[str, Any] | None] = {
    "os": None,
    "treadle": {},
    "queue-size, nice": {"policy": "queue-size", "enforce": "nice"},
    "congestion-aware, nice": {"policy": "congestion-aware", "enforce": "nice"},
    "congestion-aware without helpers, nice": {"policy": "congestion-aware", "enforce": "nice:helpers=no"},
    "downstream-first, nice+slice": {
        "policy": "downstream-first",
        "enforce": "nice:low=-10,high=0+slice:low=0.01,high=0.01",
    },
    "downstream-first, realtime": {"policy": "downstream-first", "enforce": "rt"},
    "slice": {"policy": "downstream-first", "enforce": "slice:low=0.02,high=0.02"},
    "highest-rate, nice": {"policy": "highest-rate", "enforce": "nice"},
    "fcfs, nice": {"policy": "fcfs", "enforce": "nice"},
}
COSTS = (20, 60, 30, 100, 40)
STEP, STEPS = 1.05, 16
"""Rates rise by this factor, so often until one is found that the OS alone does not keep up with."""
BELOW, RATES = 0.95, 8
"""From this part of it on all variants are measured, at so many rates at most."""
COMPARED, COMPARISONS = ("os", "treadle"), 3
"""What is claimed is of these two, so at each rate they are measured so often."""
KNOWN = 10.0
"""Seconds in which an attachment comes to know the queries, at most."""
SETTLE = 2.0
WARM, TWICE, WARM_UPS = 1.03, 2, 14
"""An application is warm when it was not faster by this factor so often in a row; how often it is tried, at most."""
FIRST_FLOOD, FLOOD, ENOUGH = 2000.0, 1.4, 0.9
"""Rows a second of each query at first, then so many times what was done. It was a flood if less was done than so."""
PATIENCE = 120.0
"""Seconds for which what waits is worked off after each measurement."""
MOMENTS = 200
"""At which it is counted what waits."""
AS_MUCH = 0.9
"""The part of the rows of the OS alone that must be done still."""
BEHIND = 0.5
"""Seconds of input that may wait at the end where a rate is said to be sustained."""


def run(
    parts: Sequence[str] = ("contention", "chain"),
    *,
    repetitions: int = 1,
    seconds: float = 11.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The figures of each part, by variant."""
    tell = progress or (lambda *_: None)
    from treadle.bench.attach import policies  # which is built on this

    goals = {"policies": policies.run, "uneven": policies.run_uneven, "batches": policies.run_batches}
    measures = {"contention": contention, "chain": chain, **goals}
    found: dict[str, Any] = {}
    deaths = Deaths()
    for number, part in enumerate(parts):

        def told(what: str, done: float, number: int = number) -> None:
            tell(what, (number + done) / len(parts))

        died = Deaths()
        with died.noted(SET_UP):
            found[part] = measures[part](repetitions, seconds, told, died)
        deaths |= {f"{part}: {name}": why for name, why in died.items()}
    made = claims(found, parts)
    for part in goals:
        if part in parts:
            made += policies.claims(found.get(part, {}), part)
    return {**found, **deaths.figures(), "claims": made}


def contention(repetitions: int, seconds: float, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """One urgent query that needs two thirds of the core, and four that each ask for a third."""
    queries = [Chain(name, (60, 60, 60)) for name in ("high", *(f"low{number}" for number in range(4)))]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENTION}
    with Rig(queries) as rig:
        tell("contention: warming up", 0.0)
        capacity = rig.capacity(seconds)
        rates = {query.name: capacity * (0.65 if query.name == "high" else 0.3) for query in queries}

        def measure(name: str, number: int) -> None:
            tell(f"contention: {name}", number / (repetitions * len(CONTENTION)))
            with attached(rig, CONTENTION[name]):
                outcome = rig.measure(rates, seconds)
            ages = outcome.ages["high"]
            runs[name].append(
                {
                    "high_mean_ms": float(ages.mean()) * 1e3,
                    "high_p99_ms": float(np.percentile(ages, 99)) * 1e3,
                    "high_rows_per_s": outcome.rows["high"] / seconds,
                    "rows_per_s": sum(outcome.rows.values()) / seconds,
                    "switches_per_s": outcome.switches,
                }
            )

        in_turns(list(CONTENTION), repetitions, measure, deaths, stop=True)
    return {name: medians(each) for name, each in runs.items() if each}


def chain(repetitions: int, seconds: float, tell: Progress, deaths: Deaths) -> dict[str, Any]:
    """One query at rising rates; latencies are those at the first rate that the OS alone does not keep up with."""
    query = Chain("chain", COSTS)
    served = dict(CHAIN)
    refused: dict[str, str] = {}
    by_rate: dict[tuple[str, float], dict[str, float]] = {}
    rates: list[float] = []
    unfinished: dict[str, Any] = {}
    with Rig([query]) as rig:
        tell("chain: warming up", 0.0)
        start = BELOW * _saturation(rig, query.name, rig.capacity(seconds), seconds)
        while len(rates) < RATES and worth_more(by_rate, rates):
            rate = round(start * STEP ** len(rates), -1)
            runs: dict[str, list[dict[str, float]]] = {}
            order = turns(list(served)) * repetitions
            for number, name in enumerate(order):
                if name in refused:
                    continue
                tell(f"chain: {name} at {rate:.0f} rows/s", (len(rates) + number / len(order)) / RATES)
                with deaths.noted(f"{name} at {rate:.0f} rows/s"):
                    try:
                        runs.setdefault(name, []).append(_tried(rig, query.name, served[name], rate, seconds))
                    except EngineError as error:  # a policy whose metrics can't be had here
                        if name in COMPARED or isinstance(error, StalledError):
                            raise
                        refused[name] = str(error)
                if deaths:
                    break  # the application may be stalled, and what came after would be measured on that
            found = {name: medians(each) for name, each in runs.items() if each}
            if deaths:
                unfinished = {"unfinished": {f"{rate:.0f}": found}}
                break
            by_rate.update({(name, rate): figures for name, figures in found.items()})
            served = {name: options for name, options in served.items() if name not in refused}
            rates.append(rate)
    return {"refused": refused, **(at_saturation(by_rate, rates, list(served)) if rates else {}), **unfinished}


def turns(names: Sequence[str]) -> list[str]:
    """Each in turn, and those that are compared again and again in between: near saturation one run tells little."""
    others = [name for name in names if name not in COMPARED]
    return [name for part in range(COMPARISONS) for name in (*COMPARED, *others[part::COMPARISONS])]


def _tried(rig: Rig, query: str, options: dict[str, Any] | None, rate: float, seconds: float) -> dict[str, float]:
    with attached(rig, options):
        outcome = rig.measure({query: rate}, seconds)
    return {
        "p50_ms": float(np.percentile(outcome.ages[query], 50)) * 1e3,
        "p99_ms": float(np.percentile(outcome.ages[query], 99)) * 1e3,
        "rows_per_s": outcome.rows[query] / seconds,
        "behind_s": outcome.left[query] / rate,
        **_queued(outcome.queued[query]),
        "switches_per_s": outcome.switches,
    }


def _saturation(rig: Rig, query: str, capacity: float, seconds: float) -> float:
    """The first rate that the OS alone does not keep up with, from somewhat below what a flooded query gets done.

    A JVM goes on compiling for minutes, so it is where to begin, not what is reported.
    """
    rate = 0.85 * capacity
    for _ in range(STEPS):
        if rig.measure({query: rate}, seconds).left[query] / rate > BEHIND:
            break
        rate *= STEP
    return rate


def worth_more(by_rate: Mapping[tuple[str, float], Mapping[str, float]], rates: Sequence[float]) -> bool:
    """Whether a higher rate has something to tell: one of the compared has kept up with all so far."""
    return any(all(by_rate[name, rate]["behind_s"] <= BEHIND for rate in rates) for name in COMPARED)


def at_saturation(
    by_rate: Mapping[tuple[str, float], Mapping[str, float]], rates: Sequence[float], names: Sequence[str]
) -> dict[str, Any]:
    """The figures of all at the first rate that the OS alone does not keep up with."""
    saturated = next((rate for rate in rates if by_rate["os", rate]["behind_s"] > BEHIND), rates[-1])
    figures: dict[str, Any] = {"saturation_rows_per_s": saturated}
    for name in names:
        kept = [rate for rate in rates if by_rate[name, rate]["behind_s"] <= BEHIND]
        figures[name] = {
            "sustained_rows_per_s": max(kept, default=0.0),
            **by_rate[name, saturated],
            "by_rate": {f"{rate:.0f}": dict(by_rate[name, rate]) for rate in rates},
        }
    return figures


def claims(found: Mapping[str, Any], parts: Sequence[str]) -> Claims:
    """What ought to hold of `treadle`, the variant with the defaults, in the parts that were to be measured."""

    def ratio(part: str, figure: str, over: str, under: str) -> Callable[[], float]:
        return lambda: found[part][over][figure] / max(found[part][under][figure], 1.0)

    return [
        at_least(f"{part}: {figure}, {over} : {under}", ratio(part, figure, over, under), aim)
        for part, figure, over, under, aim in (
            ("contention", "high_mean_ms", "os", "treadle", 20.0),
            ("contention", "high_p99_ms", "os", "treadle", 20.0),
            ("contention", "rows_per_s", "treadle", "os", AS_MUCH),
            ("chain", "p50_ms", "os", "treadle", 3.0),
            ("chain", "p99_ms", "os", "treadle", 1.0),
            ("chain", "sustained_rows_per_s", "treadle", "os", 1.0),
        )
        if part in parts
    ]


@contextmanager
def attached(rig: Rig, options: dict[str, Any] | None) -> Iterator[None]:
    """Attach with these options for as long as the block lasts, which begins when the queries are known; or don't."""
    if options is None:
        yield
        return
    with attach(rig.application.pid, **options) as attachment:
        # To be asked by its UI for the first time costs an application a second of its core, which `first_priority_s`
        # of `bench loop` is about. What is compared here is what comes after.
        limit = time.monotonic() + KNOWN
        while not attachment.status()["rows"] and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(SETTLE)
        yield


@dataclass(frozen=True)
class Outcome:
    """One measurement, by query."""

    ages: Mapping[str, Floats]
    """In seconds: of the rows that came in while it was measured, when they came out."""
    rows: Mapping[str, int]
    """That came out while it was measured."""
    left: Mapping[str, int]
    """That had come in but not out at its end."""
    queued: Mapping[str, Ints]
    """That had come in but not out, at even moments of it."""
    switches: float
    """Context switches a second of all threads of the application."""


class StalledError(EngineError):
    """The application did not finish its backlog in time."""


class _Mark(NamedTuple):
    """What had been counted at a moment, in nanoseconds; rows by sink, switches by thread."""

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
        """`application` starts one, given the broker's address and a core; by default one with these queries."""
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
            jars.fetch("jolokia")  # without it `attach` does not know how far behind its queries are
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
        """Rows a second of all queries when they are flooded alike."""
        return sum(self.flooded({query.name: 1.0 for query in self.queries.values()}, seconds).values())

    def flooded(self, mix: Mapping[str, float], seconds: float) -> dict[str, float]:
        """Rows a second that come out of each query when there is more of such a mix than can be done.

        It is flooded again until the JVM has compiled what it uses: when it does not get faster any more.
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
        """Let so much come in for as long as the block lasts."""
        self.produce(rates)
        try:
            yield
        finally:
            self.produce({})
            self._work_off()

    def measure(self, rates: Mapping[str, float], seconds: float, settle: float = SETTLE) -> Outcome:
        """Let so much come in for so long, and wait until all of it is out."""
        return self.follow([rates], seconds, settle)[0]

    def follow(self, phases: Sequence[Mapping[str, float]], seconds: float, settle: float = SETTLE) -> list[Outcome]:
        """Each phase for so long, one after the other without a pause, and wait until all is out.

        Rows flow for `settle` seconds before anything is measured.
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
        """Once all is out."""
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
        """Output rows of all queries that were consumed so far."""
        return sum(self._seen.values())

    def sent(self, query: str) -> int:
        """Rows sent to a query until rates were last set, without those that its filter drops."""
        return next(self._sent[sink] for sink, each in self.queries.items() if each.name == query)

    def came(self, query: str) -> float:
        """Rows that the broker has of a query's topic at this moment."""
        from confluent_kafka import TopicPartition

        source = next(each.source for each in self.queries.values() if each.name == query)
        return float(self._consumer.get_watermark_offsets(TopicPartition(source, 0), timeout=5.0)[1])

    def produce(self, rates: Mapping[str, float]) -> None:
        """By query so many rows a second from now on; of one that is not named, nothing more."""
        by_topic = {query.source: rates[query.name] for query in self.queries.values() if query.name in rates}
        sent = self._producer.rates(by_topic)
        for sink, query in self.queries.items():
            self._sent[sink] = query.put_out(sent.get(query.source, 0))

    def take(self, seconds: float) -> None:
        """Read what the queries put out for this many seconds."""
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
                raise StalledError(f"what waits is not worked off in {PATIENCE:g} s", remedy="see what else runs here")
            self.take_some()

    def _switches(self) -> dict[int, float]:
        """By thread; of one that has ended nothing is known any more."""
        pid = self.application.pid
        threads = tuple((pid, int(name)) for name in os.listdir(f"/proc/{pid}/task"))
        counts = self._times.switches(threads)
        both = (counts.voluntary + counts.involuntary).tolist()
        return {tid: count for (_, tid), count in zip(threads, both, strict=True) if count == count}


def _queued(rows: Ints) -> dict[str, float]:
    return {"queued_rows": float(rows.mean()), "queue_variance": float(rows.var())}


def _inside(came: list[tuple[int, int]], since: int, until: int) -> Ints:
    """How many rows were under way at each moment: all that are still to come out have come in by then."""
    begun, ended = np.array(came, dtype=np.int64).reshape(-1, 2).T
    moments = np.linspace(since, until, MOMENTS, dtype=np.int64)
    return np.searchsorted(np.sort(begun), moments, "right") - np.searchsorted(np.sort(ended), moments, "right")


def _ages(came: list[tuple[int, int]], since: int, until: int) -> Floats:
    table = np.array(came, dtype=np.int64).reshape(-1, 2)
    table = table[(table[:, 0] >= since) & (table[:, 0] < until)]
    return np.asarray((table[:, 1] - table[:, 0]) / 1e9, dtype=np.float64)


def _make_topics(servers: str, names: Sequence[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    client = AdminClient({"bootstrap.servers": servers})  # what is under way ends with it
    for made in client.create_topics([NewTopic(name, 1) for name in names]).values():
        made.result()


def _consumer(servers: str, topics: list[str]) -> Any:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "bench", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5}
    )
    consumer.subscribe(topics)
    return consumer
