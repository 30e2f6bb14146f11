"""Keeps promises to the owners of queries that run already: measures each, asks the controller, drops what it says.

It runs beside the rounds, in cycles of seconds, with an agent in each driver. What a query uses is known by its
threads, which the rounds measure. Of queries in Real-Time Mode nothing is dropped. Stream-Economics section 5.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from treadle.attachment import promises
from treadle.decide.quality import Controller, Decision, Flow, InputRate, Measured, Promise
from treadle.decide.quality.room import ceilings, room
from treadle.decide.quality.shortages import Shortages
from treadle.engines.spark.application import Process
from treadle.engines.spark.layout import of_driver
from treadle.engines.spark.progress import Progress
from treadle.engines.spark.shedder import Report, Shedder
from treadle.errors import TargetGone, TreadleError
from treadle.model import Role
from treadle.observe.cores import Cores, Used
from treadle.values import Snapshot

log = logging.getLogger("treadle.attach")

CYCLE = 2.0
SAMPLES, MOST_SAMPLES = 4, 4000
"""Looks at what each query uses, in a cycle, and how many are remembered."""
WINDOW = 3
"""Cycles over which work is averaged, if that is some batches."""
BATCHES = 2
DRAIN = 4
"""Cycles in which what waits is to be worked off."""
LONGEST_PAUSE = 32
"""Cycles after which an agent that has failed is tried again, at most."""
WORTH = 0.1
"""A change of what is kept that is worth a line."""
ALWAYS = 0.8
"""The part of its time from which on a query is in one batch after the other: what has come meanwhile has waited."""
UNMEASURED = 30.0
"""Seconds for which nobody sheds more in the place of one who comes before him but has not been measured yet."""
LAST = 1e9
"""The priority of those of whom nothing may be dropped: their minimum gives way to none."""

Key = tuple[str, str]
"""An application and the run of one of its queries."""


class Done(NamedTuple):
    """What a query did in its last batches, by second."""

    rows: float
    batches: float
    cpu: float
    held: float
    """The part of the time that it was in a batch."""


NOTHING = Done(0.0, 0.0, 0.0, 0.0)


@dataclass
class Query:
    """One run of a query of an attached application."""

    name: str
    promise: Promise
    real_time: bool
    rate: float = 0.0
    waiting: float = 0.0
    keep: float = 1.0
    desired: float = 1.0
    told: float = 1.0
    """What was last said of what it is to keep."""
    accuracy: float | None = None
    """The part of its rows that it had lately; None if that is not known."""
    rows: float = 0.0
    met: float = field(default_factory=time.time)
    _batches: deque[Progress] = field(default_factory=deque)
    _last: Progress | None = None
    _input: InputRate = field(default_factory=lambda: InputRate(WINDOW * CYCLE))
    _counted: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))
    """Rows that were read, those that came to the filter, and those that it has dropped."""
    _unseen: int = 0
    """How often in a row nothing had come to the filter, although there ought to be one."""
    _used: list[tuple[float, float]] = field(default_factory=list)
    """When, and the core seconds that it had used by then."""

    def __post_init__(self) -> None:
        self._used.append((self.met, 0.0))

    @property
    def sheds(self) -> bool:
        """Whether it may."""
        return self.promise.accuracy < 1.0 and not self.real_time

    @property
    def measured(self) -> bool:
        """Whether it has had a batch that tells what its rows cost."""
        return bool(self._batches)

    def comes_before(self, other: Query) -> bool:
        """Whether it has to shed first, and can't yet."""
        first = self.sheds and self.promise.priority < other.promise.priority
        return first and not self.measured and time.time() - self.met < UNMEASURED

    def hear(self, report: Report) -> None:
        """What is new of it."""
        for each in report.progress:
            self.rows += each.rows
            if (rate := self._input.update(each.began, self.rows, each.unread)) is not None:
                self.rate = rate.arriving
            self.waiting = each.unread + self._late(each)
            if self._last is not None and each.rows and each.began >= self.met:
                self._batches.append(each)  # not the first, which compiles what the others use
            self._last = each
        while len(self._batches) > BATCHES and _end(self._batches[-1]) - self._batches[1].began > WINDOW * CYCLE:
            self._batches.popleft()
        if report.progress:
            self._counted.append((self.rows, float(report.seen), float(report.seen - report.kept)))
            rows, seen, dropped = np.subtract(self._counted[-1], self._counted[0]).tolist()
            self._unseen = self._unseen + 1 if rows and not seen and self.keep < 1.0 else 0
            if rows:
                self.accuracy = max(0.0, 1.0 - dropped / rows) if self._unseen <= WINDOW else None

    @property
    def kept(self) -> float:
        """The part of its rows that it had, where Spark does not count that as it was told."""
        return self.accuracy if self.accuracy is not None else self.keep

    def use(self, now: float, seconds: float) -> None:
        """So many core seconds more."""
        self._used.append((now, self._used[-1][1] + seconds))
        if len(self._used) > MOST_SAMPLES or (self._batches and self._used[1][0] < self._batches[0].began - CYCLE):
            del self._used[0]

    def cores(self, begin: float, end: float) -> float:
        """That it used on average, from one time to the other."""
        when, used = np.array(self._used).T
        began, ended = np.interp([begin, end], when, used).tolist()
        return float(ended - began) / max(end - begin, 1e-3)

    def done(self) -> Done:
        """Nothing if it has had no batch yet that tells."""
        if not self._batches:
            return NOTHING
        begin, end = self._batches[0].began, max(map(_end, self._batches))
        passed = max(end - begin, 1e-3)
        rows, held = sum(each.rows for each in self._batches), sum(each.seconds for each in self._batches)
        return Done(rows / passed, len(self._batches) / passed, self.cores(begin, end), min(1.0, held / passed))

    def _late(self, batch: Progress) -> float:
        """Rows of a batch that had waited for the one before it for longer than a cycle."""
        before = self._last
        if before is None or before.seconds < ALWAYS * (batch.began - before.began):
            return 0.0
        return max(0.0, batch.rows - self.rate * CYCLE)


class Quality:
    """At work from when it is made until it is closed.

    `applications` (their processes, by name) and what was `seen` in the last round are asked for again and again.
    """

    def __init__(
        self,
        given: Mapping[str, Promise],
        applications: Callable[[], Mapping[str, Sequence[Process]]],
        seen: Callable[[], Snapshot | None],
    ) -> None:
        self._promises = given
        self._applications = applications
        self._seen = seen
        self._shedders: dict[str, Shedder] = {}
        self._failed: dict[str, tuple[int, float]] = {}
        """By application: how often the agent has failed, and when to try again."""
        self._queries: dict[Key, Query] = {}
        self._controller: Controller | None = None
        self._decision: Decision | None = None
        self._shortages = Shortages("query", log)
        self._cores = Cores(())
        self._looks: deque[tuple[float, Used]] = deque(maxlen=WINDOW * SAMPLES + 1)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-quality", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Everything is kept again."""
        self._ending.set()
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """Each query with what it was promised, is to have and has had."""
        decision, queries = self._decision, dict(self._queries)
        return {
            "queries": [
                {
                    "application": application,
                    "query": each.name,
                    "priority": each.promise.priority,
                    "min_accuracy": each.promise.accuracy,
                    "promised": round(each.desired, 4),
                    "accuracy": None if each.accuracy is None else round(each.accuracy, 4),
                    "rate": round(each.rate, 3),
                    "waiting": round(each.waiting),
                    "real_time": each.real_time,
                    "measured": each.measured,
                }
                for (application, _), each in sorted(queries.items(), key=lambda item: (item[0][0], item[1].name))
            ],
            "short": [each.told("query") for each in (decision.short if decision else ())],
        }

    # ------------------------------------------------------------ inside

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                self._step()
                for _ in range(SAMPLES):
                    self._ending.wait(CYCLE / SAMPLES)
                    self._sample()
        except Exception:
            log.exception("nothing is dropped any more")
        finally:
            for shedder in self._shedders.values():
                shedder.close()
            self._cores.close()

    def _step(self) -> None:
        """One cycle."""
        self._hear()
        batched = {key: query for key, query in self._queries.items() if not query.real_time}
        self._follow(batched)
        if self._controller is None:
            self._decision = None
            self._shortages.tell(())
            return
        if len(self._looks) < SAMPLES:
            return
        self._decision = self._controller.cycle(self._measured(list(batched.values())))
        for query, outside in zip(batched.values(), self._decision.outside.tolist(), strict=True):
            part = outside if query.sheds else 1.0
            if part > query.desired or not any(each.comes_before(query) for each in batched.values()):
                query.desired = part
        self._drop(batched)
        self._shortages.tell(self._decision.short)

    def _hear(self) -> None:
        there = self._applications()
        for name in self._shedders.keys() - there.keys():
            self._shedders.pop(name).close()
        self._cores.keep(process.pid for processes in there.values() for process in processes)
        found: dict[Key, Query] = {}
        for name, processes in there.items():
            for report in self._reports(name, processes):
                query = self._queries.get((name, report.run)) or self._met(name, report)
                query.hear(report)
                found[name, report.run] = query
        self._queries = found

    def _reports(self, name: str, processes: Sequence[Process]) -> list[Report]:
        """Of one application; nothing, and a word once, where that can't be."""
        try:
            if name not in self._shedders:
                if self._failed.get(name, (0, 0.0))[1] > time.monotonic():
                    return []
                driver = next((process.pid for process in processes if process.driver), None)
                if driver is None:
                    raise TargetGone("its driver is not on this host, and only there rows can be dropped")
                self._shedders[name] = Shedder(driver)
            return self._shedders[name].look()
        except (TreadleError, OSError, ImportError) as error:
            self._leave(name, error)
            return []

    def _leave(self, application: str, error: Exception) -> None:
        """For a while: an agent that gets no CPU may be late."""
        if application in self._shedders:
            self._shedders.pop(application).close()
        tried = self._failed.get(application, (0, 0.0))[0]
        self._failed[application] = tried + 1, time.monotonic() + CYCLE * min(2**tried, LONGEST_PAUSE)
        if not tried:
            extra = {"application": application, "error": str(error)}
            log.warning("nothing is dropped of '%s': %s", application, error, extra=extra)

    def _met(self, application: str, report: Report) -> Query:
        promise = promises.of(report.name, self._promises)
        if report.real_time and promise.accuracy < 1.0:
            log.warning(
                "nothing is dropped of '%s': it runs in Real-Time Mode, whose plan stays as it is",
                report.name,
                extra={"application": application, "query": report.name},
            )
        return Query(report.name, promise, report.real_time)

    def _sample(self) -> None:
        """What each query has used since the last time: by its threads, and of the rest by how many tasks it had."""
        now, used, snapshot = time.time(), self._cores.read(), self._seen()
        self._looks.append((now, used))
        if len(self._looks) < 2 or snapshot is None or "cpu" not in snapshot.columns:
            return
        passed, ours = now - self._looks[-2][0], used.ours - self._looks[-2][1].ours
        runs: dict[tuple[str, str], str] = {}
        for (application, run), query in sorted(self._queries.items(), key=lambda item: item[0]):
            runs.setdefault((application, query.name), run)
            runs[application, f"{query.name}-{run[:8]}"] = run  # as the second of one name is called
        cpu: dict[Key, float] = {}
        tasks: dict[Key, int] = {}
        for instance, cores in zip(snapshot.topology.instances, snapshot.columns["cpu"].tolist(), strict=True):
            name = instance.query.removeprefix(f"{instance.engine}/")
            if of_driver(name) or (instance.engine, name) not in runs:
                continue
            key = instance.engine, runs[instance.engine, name]
            cpu[key] = cpu.get(key, 0.0) + (cores if cores == cores else 0.0) * passed
            tasks[key] = tasks.get(key, 0) + sum(thread.role is Role.MAIN for thread in instance.threads)
        rest = max(0.0, ours - sum(cpu.values())) / max(1, sum(tasks.values()))
        for key, query in self._queries.items():
            query.use(now, cpu.get(key, 0.0) + rest * tasks.get(key, 0))

    def _follow(self, batched: Mapping[Key, Query]) -> None:
        """Another controller where there are other queries, which remembers what those that stay cost."""
        names = _names(batched)
        before = self._controller
        if before is not None and before.flow.tasks == tuple(names):
            return
        self._controller = None
        if names:
            promised = {
                name: query.promise if query.sheds else Promise(LAST, 1.0)
                for name, query in zip(names, batched.values(), strict=True)
            }
            flow = Flow.of(dict.fromkeys(names, ()), promised)
            self._controller = Controller(flow, drain=DRAIN * CYCLE, cycle=CYCLE)
            if before is not None:
                self._controller.remember(before)

    def _measured(self, queries: list[Query]) -> Measured:
        rows, batches, cpu, held = np.array([query.done() for query in queries]).T
        kept = np.array([query.kept for query in queries])
        arriving = np.array([query.rate for query in queries])
        # Of what waits no more than comes in that time: it may be days' worth, or held back by a limit of the query's.
        waiting = np.minimum([query.waiting for query in queries], arriving * DRAIN * CYCLE)
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        ours, others = (np.subtract(last, first) / (now - began)).tolist()
        count = self._cores.count
        in_real_time = sum(query.cores(began, now) for query in self._queries.values() if query.real_time)
        behind = bool(waiting.sum() > arriving.sum() * CYCLE / 2)
        cores = room(count, max(0.0, ours - in_real_time), others + in_real_time, behind=behind)
        return Measured(
            time=now,
            in_rate=rows * kept,
            out_rate=rows * kept,
            arriving=arriving,
            waiting=waiting,
            cpu=cpu,
            worker=np.zeros(len(queries), dtype=np.int64),
            busy=np.array([cpu.sum()]),
            cores=np.array([cores]),
            batches=batches,
            local=kept,
            most=ceilings(cpu, held, count, ours + others),
        )

    def _drop(self, batched: Mapping[Key, Query]) -> None:
        """Tell the drivers what differs."""
        changed: dict[str, dict[str, float]] = {}
        for (name, run), query in batched.items():
            part = round(query.desired, 4)
            if abs(part - query.told) >= WORTH or (part == 1.0) != (query.told == 1.0):
                query.told = part
                log.info("query '%s' keeps %.0f %% of its rows", query.name, part * 100, extra={"query": query.name})
            if part != query.keep:
                changed.setdefault(name, {})[run] = query.keep = part
        for name, parts in changed.items():
            try:
                if name in self._shedders:
                    self._shedders[name].keep(parts)
            except TreadleError as error:
                self._leave(name, error)


def _end(batch: Progress) -> float:
    return batch.began + batch.seconds


def _names(queries: Mapping[Key, Query]) -> list[str]:
    """Of queries, told apart: by their run where two have one name."""
    names = [query.name for query in queries.values()]
    return [
        name if names.count(name) == 1 else f"{name}-{run[:8]}" for name, (_, run) in zip(names, queries, strict=True)
    ]
