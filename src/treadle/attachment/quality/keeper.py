"""Keeps promises for queries that run already: measures each query, asks the controller, and drops rows as it decides.

The loop calls the keeper in a thread of its own. A cycle takes `CYCLE` seconds, and an agent in each driver drops the
rows. The CPU use of a query is that of its threads, which the rounds measure. Queries in Real-Time Mode keep all rows,
and so do queries with an unknown rate of arriving rows (`Query.keeps_all`). Stream-Economics section 5.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treadle.attachment.quality import promises
from treadle.attachment.quality.query import CYCLE, WINDOW, Query
from treadle.decide.quality import Controller, Decision, Flow, Measured, Promise
from treadle.decide.quality.room import ceilings, room
from treadle.decide.quality.shortages import Shortages
from treadle.engines.spark.agent.shedder import Report, Shedder
from treadle.engines.spark.application import Process
from treadle.engines.spark.threads.layout import of_driver
from treadle.errors import TargetGone, TreadleError
from treadle.linux.cores import Cores, Used
from treadle.loop.trouble import Trouble
from treadle.model import Role
from treadle.text import visible
from treadle.values import Snapshot

log = logging.getLogger("treadle.attach")

SAMPLES = 4
"""Number of samples of each query's CPU use per cycle."""
DRAIN = 4
"""Cycles in which the backlog should be processed."""
SILENT = 5
"""Number of cycles without a message from this process after which an agent keeps all rows."""
LONGEST_PAUSE = 32
"""Maximum number of cycles before a failed agent is loaded again."""
WORTH = 0.1
"""The smallest change of the share of rows that a query keeps for which a line is logged."""
LAST = 1e9
"""The priority of queries that must keep all rows: their minimum is never lowered in favour of another query's."""
JUMP = 0.1
"""Seconds: if the wall clock and the monotonic clock diverge by more between two cycles, the wall clock was set."""

Key = tuple[str, str]
"""The name of an application, and the run id of one of its queries."""


class PromiseKeeper:
    """Measures the queries of applications and drops their rows, as the `controller` decides, until it is closed.

    `applications` (processes by application name) and `seen` (the last round's snapshot) are called again and again.
    """

    def __init__(
        self,
        given: Mapping[str, Promise],
        applications: Callable[[], Mapping[str, Sequence[Process]]],
        seen: Callable[[], Snapshot | None],
    ) -> None:
        self.promises = given
        """By patterns of query names. It may be replaced at any time, and counts from the next cycle on."""
        self.suspended = False
        """Whether all rows are kept from the next cycle on, whatever is promised."""
        self._applications = applications
        self._seen = seen
        self._shedders: dict[str, Shedder] = {}
        self._troubles: dict[str, Trouble] = {}
        """By application: the failures of its agent."""
        self._suspended: dict[str, int] = {}
        """By application: how often its agent has kept all rows because it had received nothing from this process."""
        self._queries: dict[Key, Query] = {}
        self._flowing: dict[Key, Query] = {}
        """The queries that the controller knows, in its order: those of which rows may be dropped."""
        self.period = CYCLE / SAMPLES
        self.in_process = False
        self.controller: Controller | None = None
        self._decision: Decision | None = None
        self._shortages = Shortages("query", log)
        self._cores = Cores(())
        self._looks: deque[tuple[float, Used]] = deque(maxlen=WINDOW * SAMPLES + 1)
        self._samples = 0
        """Number of samples since the start or the last failure."""
        self._ahead = time.time() - time.monotonic()
        """Seconds by which the wall clock, which Spark's reports use, is ahead of the monotonic one."""

    def close(self) -> None:
        """Close the agents: all rows are kept again."""
        for shedder in self._shedders.values():
            shedder.close()
        self._cores.close()

    def status(self) -> dict[str, Any]:
        """For each query its promise, its target and its measured accuracy, and the reason if it must keep all rows."""
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
                    "keeps_all": each.keeps_all,
                    "real_time": each.real_time,
                    "measured": each.measured,
                }
                for (application, _), each in sorted(queries.items(), key=lambda item: (item[0][0], item[1].name))
            ],
            "short": [each.told("query") for each in (decision.short if decision else ())],
            "suspended": dict(self._suspended),
        }

    def measure(self, now: float) -> Measured | None:  # noqa: ARG002 - each query is measured at its own time
        """Sample the CPU use of the queries. Once per cycle also read all reports, and return the measured values.

        None: this is not the time of a cycle, no query may drop rows, or too few samples are known.
        """
        self._sample()
        self._samples += 1
        if self._samples % SAMPLES != 1:
            return None
        self._hear()
        self._flowing = {key: query for key, query in self._queries.items() if query.keeps_all is None}
        self._follow(self._flowing)
        if self.controller is not None and len(self._looks) >= SAMPLES:
            return self._measured(list(self._flowing.values()))
        if self.controller is None:
            self._decision = None
        self._drop()
        return None

    def carry_out(self, decision: Decision, now: float) -> None:  # noqa: ARG002 - as above
        """Drop rows as decided."""
        self._decision = decision
        flowing = self._flowing.values()
        for query, outside in zip(flowing, decision.outside.tolist(), strict=True):
            part = outside if query.sheds else 1.0
            if part > query.desired or not any(each.comes_before(query) for each in flowing):
                query.desired = part
        self._drop()

    def keep_all(self) -> None:
        """Drop nothing until the next decision."""
        self._samples = 0
        for query in self._queries.values():
            query.desired = 1.0
        self._drop()

    # ------------------------------------------------------------ inside

    def _hear(self) -> None:
        there = self._applications()
        for name in self._shedders.keys() - there.keys():
            self._shedders.pop(name).close()
        for kept in (self._troubles, self._suspended):
            for name in kept.keys() - there.keys():
                del kept[name]
        self._cores.keep(process.pid for processes in there.values() for process in processes)
        self._note_jumps()
        found: dict[Key, Query] = {}
        given = self.promises
        for name, processes in there.items():
            for report in self._reports(name, processes):
                query = self._queries.get((name, report.run))
                promise = promises.of(report.name, given)
                if query is None:
                    query = Query(report.name, promise, report.real_time, met=time.monotonic())
                query.promise = promise
                query.ends = report.ends
                query.hear(self._timed(report))
                found[name, report.run] = query
                self._say_why(name, query)
        self._queries = found

    def _say_why(self, application: str, query: Query) -> None:
        """Log once for each reason that all of a query's rows are kept, though its promise would allow less."""
        why = query.keeps_all
        if why is not None and why not in query.said and query.promise.accuracy < 1.0:
            query.said.add(why)
            extra = {"application": application, "query": query.name, "reason": why}
            log.warning("query '%s' keeps all rows: %s", visible(query.name), why, extra=extra)

    def _note_jumps(self) -> None:
        """Measure all queries anew if the wall clock was set."""
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        if abs(self._ahead - before) > JUMP:
            log.warning("the wall clock was changed by %+.1f s: all queries are measured again", self._ahead - before)
            for query in self._queries.values():
                query.forget(time.monotonic())

    def _timed(self, report: Report) -> Report:
        """Convert a report's times to the monotonic clock.

        A time in the future was taken before the wall clock was set: it becomes NaN.
        """
        latest = time.monotonic() + CYCLE
        began = [each.began - self._ahead for each in report.progress]
        known = [
            replace(each, began=when if when + each.seconds <= latest else math.nan)
            for each, when in zip(report.progress, began, strict=True)
        ]
        return report._replace(progress=tuple(known))

    def _reports(self, name: str, processes: Sequence[Process]) -> list[Report]:
        """Return the reports of one application; an empty list after a failure, which is logged once."""
        trouble = self._troubles.get(name)
        if trouble is None:
            means = "no rows of its queries are dropped"
            trouble = Trouble(f"the agent in '{visible(name)}'", CYCLE, LONGEST_PAUSE * CYCLE, means=means, log=log)
            self._troubles[name] = trouble
        if trouble.waits(time.monotonic()):
            return []
        try:
            if name not in self._shedders:
                driver = next((process.pid for process in processes if process.driver), None)
                if driver is None:
                    raise TargetGone("its driver is not on this host, and only an agent in the driver can drop rows")
                self._shedders[name] = Shedder(driver, SILENT * CYCLE)
            reports = self._shedders[name].look()
        except Exception as error:  # whatever it is, other applications go on
            self._leave(name, error)
            return []
        trouble.worked()
        if silent := self._shedders[name].suspended:
            self._suspended[name] = self._suspended.get(name, 0) + 1
            what = "the agent in '%s' has kept all rows for a while: it received nothing from Treadle for %.0f s"
            log.warning(what, visible(name), silent, extra={"application": name, "seconds": silent})
        return reports

    def _leave(self, application: str, error: Exception) -> None:
        """Close the agent of an application until a later retry: it may be late because it gets no CPU."""
        if application in self._shedders:
            self._shedders.pop(application).close()
        # A newly loaded agent starts its counters at zero and drops nothing at first, so its queries start anew too.
        self._queries = {key: query for key, query in self._queries.items() if key[0] != application}
        self._troubles[application].failed(time.monotonic(), error)

    def _sample(self) -> None:
        """Add each query's CPU time since the last sample: that of its threads, and a share of all other CPU time.

        The other CPU time of the processes is divided in proportion to the queries' numbers of tasks.
        """
        now, used, snapshot = time.monotonic(), self._cores.read(), self._seen()
        self._looks.append((now, used))
        if len(self._looks) < 2 or snapshot is None or "cpu" not in snapshot.columns:
            return
        passed, ours = now - self._looks[-2][0], used.ours - self._looks[-2][1].ours
        runs: dict[tuple[str, str], str] = {}
        for (application, run), query in sorted(self._queries.items(), key=lambda item: item[0]):
            runs.setdefault((application, query.name), run)
            runs[application, f"{query.name}-{run[:8]}"] = run  # the name of a second query of one name
        cpu: dict[Key, float] = {}
        tasks: dict[Key, int] = {}
        for instance, cores in zip(snapshot.topology.instances, snapshot.columns["cpu"].tolist(), strict=True):
            name = instance.query.removeprefix(f"{instance.engine}/")
            if of_driver(name) or (instance.engine, name) not in runs:
                continue
            key = instance.engine, runs[instance.engine, name]
            cpu[key] = cpu.get(key, 0.0) + (cores if cores == cores else 0.0) * passed
            tasks[key] = tasks.get(key, 0) + sum(thread.role is Role.MAIN for thread in instance.threads)
        # A query is at work even if its tasks end before they can be seen.
        working = {key: max(1, tasks.get(key, 0)) for key, used in cpu.items() if used > 0.0 or tasks.get(key)}
        working = working or dict.fromkeys(self._queries, 1)
        rest = max(0.0, ours - sum(cpu.values())) / max(1, sum(working.values()))
        for key, query in self._queries.items():
            query.use(now, cpu.get(key, 0.0) + rest * working.get(key, 0))

    def _follow(self, flowing: Mapping[Key, Query]) -> None:
        """Make a new controller if queries or promises have changed; it takes over the costs of queries that stay."""
        names = _names(flowing)
        before = self.controller
        promised = {
            name: query.promise if query.sheds else Promise(LAST, 1.0)
            for name, query in zip(names, flowing.values(), strict=True)
        }
        if before is not None and before.flow.tasks == tuple(names) and before.flow.promises == promised:
            return
        self.controller = None
        if names:
            flow = Flow.of(dict.fromkeys(names, ()), promised)
            self.controller = Controller(flow, drain=DRAIN * CYCLE, cycle=CYCLE)
            if before is not None:
                self.controller.remember(before)

    def _measured(self, queries: list[Query]) -> Measured:
        rows, batches, cpu, held = np.array([query.done() for query in queries]).T
        kept = np.array([query.kept for query in queries])
        arriving = np.array([query.rate for query in queries])
        # Count no more of a backlog than arrives in that time: it may be days' worth, or the query limits its batches.
        waiting = np.minimum([query.waiting for query in queries], arriving * DRAIN * CYCLE)
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        ours, others = (np.subtract(last, first) / (now - began)).tolist()
        count = self._cores.count
        # The input of queries that keep all rows is unknown, and so are their needs: they count as other processes.
        apart = sum(query.cores(began, now) for query in self._queries.values() if query.keeps_all is not None)
        behind = bool(waiting.sum() > arriving.sum() * CYCLE / 2)
        cores = room(count, max(0.0, ours - apart), others + apart, behind=behind)
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

    def _drop(self) -> None:
        """Send each driver the changed shares of rows to keep; queries that may not drop rows keep all."""
        for query in self._queries.values():
            if self.suspended or not query.sheds:
                query.desired = 1.0
        self._shortages.tell(self._decision.short if self._decision is not None else ())
        changed: dict[str, dict[str, float]] = {}
        for (name, run), query in self._queries.items():
            part = round(query.desired, 4)
            if abs(part - query.told) >= WORTH or (part == 1.0) != (query.told == 1.0):
                query.told = part
                log.info(
                    "query '%s' keeps %.0f %% of its rows", visible(query.name), part * 100, extra={"query": query.name}
                )
            if part != query.keep:
                changed.setdefault(name, {})[run] = query.keep = part
        for name, parts in changed.items():
            try:
                if name in self._shedders:
                    self._shedders[name].keep(parts)
            except TreadleError as error:
                self._leave(name, error)


def _names(queries: Mapping[Key, Query]) -> list[str]:
    """Return unique names of the queries: if two share a name, each gets the start of its run id appended."""
    names = [query.name for query in queries.values()]
    return [
        name if names.count(name) == 1 else f"{name}-{run[:8]}" for name, (_, run) in zip(names, queries, strict=True)
    ]
