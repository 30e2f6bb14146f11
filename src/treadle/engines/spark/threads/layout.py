"""Finds the threads of each stage of each query, and builds the topology from them.

A task thread is the main thread of its stage's instance; the threads of its shuffles are helpers. In micro-batches
stages take turns and wait for the same rows, so a query is one instance there, with the threads of all its tasks.
Threads that serve several queries (a shared Kafka producer, Python workers) are helpers of all that may need them. The
threads that plan, schedule and start batches form the pseudo query `driver`; threads for which no batch waits are left
out. Instances stay while their query runs, also between batches.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from treadle.engines.spark.queries.plan import Stage
from treadle.engines.spark.queries.rest import Directory, Job
from treadle.engines.spark.threads.places import Place, QueryRun, Rows, SortedThreads
from treadle.engines.spark.threads.shuffles import Hop, Shuffles
from treadle.engines.spark.threads.thread_names import (
    COMPILERS,
    SERVICES,
    Kind,
    Named,
    parse_thread_name,
    stable_thread_name,
)
from treadle.errors import TargetGone
from treadle.jvm import JavaThread
from treadle.linux.thread_times import start_time
from treadle.model import Instance, Operator, Query, Role, ThreadRef

UNSCHEDULED = (Kind.IDLE, Kind.RUNTIME, Kind.BACKGROUND)
DRIVER = "driver"
TICKS = os.sysconf("SC_CLK_TCK")
PLANS = "plan "
"""The prefix of a planner's operator in the pseudo query of the driver; the name of its query follows."""
STEADY = 0.15
"""Seconds after which a task of a micro-batch gets its query's priority; shorter tasks never get it."""
JOBS = "jobs"
"""The pseudo query of tasks that belong to no streaming query."""


class Layout:
    """Assigns the threads of an application to instances; each `lay_out` does so anew.

    `priorities` and `latency_goals` map patterns of query names to priorities, and to goals in seconds. `left_out` are
    services that are not shown: nothing in the application waits for their threads.
    """

    def __init__(
        self,
        engine: str,
        directory: Directory,
        priorities: Mapping[str, float],
        *,
        latency_goals: Mapping[str, float] = MappingProxyType({}),
        left_out: Collection[str] = (COMPILERS,),
    ) -> None:
        self._engine = engine
        self._directory = directory
        self.priorities, self._goals = dict(priorities), dict(latency_goals)
        self._left_out = frozenset(left_out)
        self._runs: dict[str, QueryRun] = {}
        self._shuffles = Shuffles()
        self._refs: dict[tuple[int, int, str], ThreadRef] = {}
        self._order: dict[int, int] = {}
        self.mains: dict[Place, ThreadRef] = {}
        """The thread of each task that runs now."""
        self.python = False
        """Whether any query needs Python workers."""
        self.sources: dict[Place, ThreadRef] = {}
        """The main threads of tasks that read from Kafka."""
        self.pooled: tuple[tuple[int, int], ...] = ()
        """(process, thread) of all pooled threads, which may serve one query now and another one soon."""
        self.waits = False
        """True if some threads are not assigned to an instance yet, because their job or shuffle is not known."""
        self.unplanned: frozenset[str] = frozenset()
        """Running queries without a known plan, so that their stages can't be distinguished."""
        self.hurries = False
        """True if some tasks are short, so that pooled threads change their query all the time."""
        self._since: dict[int, tuple[int, float]] = {}
        """By thread, its task of a micro-batch, and when the task was first seen."""
        self.ripens = math.inf
        """When to call `lay_out` again even without a change: a task will have run for `STEADY` seconds by then."""

    def lay_out(
        self, dumps: Mapping[int, Sequence[JavaThread]], drivers: Collection[int], workers: Sequence[ThreadRef]
    ) -> Rows:
        """Assign all threads to instances.

        `dumps` has the Java threads by process, `drivers` the driver processes, `workers` the Python workers.
        """
        named = {
            pid: [(parse_thread_name(thread.name), thread) for thread in threads] for pid, threads in dumps.items()
        }
        self._directory.learn({n.stage for threads in named.values() for n, _ in threads if n.kind is Kind.TASK})
        self.pooled = tuple((p, t.tid) for p, ts in named.items() for n, t in ts if n.kind in (Kind.TASK, Kind.IDLE))
        found = self._sort(named)
        self._follow(found, planned=any(pid in dumps for pid in drivers))
        threads = {place: list(mains) for place, mains in found.tasks.items()}
        self.mains = {place: mains[0] for place, mains in found.tasks.items() if mains}
        self.sources = {place: ref for place, ref in self.mains.items() if self._stage(place).kafka_in}
        self.hurries = bool(found.other_tasks) or any(self._runs[place.run].batched for place in found.tasks)
        self._give_helpers(found, threads, workers)
        return self._rows(found, threads)

    # ------------------------------------------------------------ threads

    def _sort(self, named: Mapping[int, Sequence[tuple[Named, JavaThread]]]) -> SortedThreads:
        found = SortedThreads()
        refs: dict[tuple[int, int, str], ThreadRef] = {}
        for pid, threads in named.items():
            number = self._order.setdefault(pid, len(self._order))
            for what, thread in threads:
                if what.kind in UNSCHEDULED or what.service in self._left_out:
                    continue
                key = (pid, thread.tid, thread.name)
                ref = self._refs.get(key) or _ref(pid, thread, what)
                if ref is not None:
                    refs[key] = ref
                    self._put(found, what, ref, number)
        self._refs = refs
        self._place(found)
        return found

    def _put(self, found: SortedThreads, what: Named, ref: ThreadRef, number: int) -> None:
        if what.kind is Kind.TASK:
            job = self._directory.job(what.stage)
            if job is None:
                found.unknown.add(what.stage)
            elif not job.run:
                found.other_tasks.append(ref)
            else:
                found.running.append((job, what, ref))
        elif what.kind is Kind.PLANNER:
            found.planners[what.run] = (what, ref)
        elif what.kind is Kind.SERVICE:
            found.services.setdefault((what.service, number), []).append(ref)
        else:
            found.helpers.append((what, ref))

    def _place(self, found: SortedThreads) -> None:
        """Find the place of each task.

        If a run has concurrent jobs, its stages are those of the job with most stages, or the newest of such jobs.
        """
        jobs: dict[str, Job] = {}
        for job, _, _ in found.running:
            known = jobs.setdefault(job.run, job)
            if (len(job.stages), job.number) > (len(known.stages), known.number):
                jobs[job.run] = job
        for job in jobs.values():
            self._note(job)
        since, self._since, self.ripens = self._since, {}, math.inf
        for job, what, ref in found.running:
            if (place := self._place_of(job, what)) is None:
                continue
            mains = found.tasks.setdefault(place, [])
            if not self._runs[job.run].batched or self._is_steady(ref.tid, what.task, since):
                mains.append(ref)

    def _is_steady(self, thread: int, task: int, since: Mapping[int, tuple[int, float]]) -> bool:
        """True if a thread has run its task for `STEADY` seconds. For shorter tasks, only the start order is set."""
        now, known = time.monotonic(), since.get(thread)
        began = known[1] if known is not None and known[0] == task else now
        self._since[thread] = task, began
        if now >= began + STEADY:
            return True
        self.ripens = min(self.ripens, began + STEADY)
        return False

    def _place_of(self, job: Job, what: Named) -> Place | None:
        """Return a task's place; None if its job has not as many stages as the plan of its run."""
        run = self._runs.get(job.run)
        if run is not None and run.batched:
            return Place.whole(job.run)
        if run is None or len(job.stages) != len(run.plan.stages):
            return None
        return Place(job.run, job.stages.index(what.stage), what.partition)

    def _note(self, job: Job) -> None:
        run = self._runs.get(job.run)
        plan = self._directory.plan(job)
        if run is None:
            run = self._runs[job.run] = QueryRun(job, plan)
        elif run.batched:  # a batch may have several jobs: the plan with most stages has the names
            run.job, run.plan = job, max(run.plan, plan, key=lambda each: len(each.stages))
        elif job.number != run.job.number or plan != run.plan:
            if len(plan.stages) != len(run.plan.stages):
                run.partitions = {}
            run.job, run.plan = job, plan
        if not run.batched and self._directory.has_plan(job) and not run.plan.real_time:
            run.batched, run.partitions = True, {}

    def _follow(self, found: SortedThreads, *, planned: bool) -> None:
        """Drop ended runs: a run ends with its planner or, if that is on another host, its last task."""
        there = found.planners.keys() if planned else {place.run for place in found.tasks}
        self._runs = {number: run for number, run in self._runs.items() if number in there}
        for place in [place for place in found.tasks if place.run not in self._runs]:
            del found.tasks[place]
        for place in found.tasks:
            self._runs[place.run].partitions.setdefault(place.position, set()).add(place.partition)
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        seen: dict[int, float] = {}
        for what, ref in found.helpers:
            if what.shuffle >= 0:
                began = booted + ref.start_time / TICKS
                seen[what.shuffle] = min(seen.get(what.shuffle, began), began)
        jobs = [self._runs[place.run].job for place in found.tasks]
        if not self._directory.told:
            self._shuffles.assign(seen, jobs, complete=not found.unknown)

    def _give_helpers(
        self, found: SortedThreads, threads: dict[Place, list[ThreadRef]], workers: Sequence[ThreadRef]
    ) -> None:
        sinks = [place for place in found.tasks if self._stage(place).kafka_out]
        batched = [Place.whole(number) for number, run in self._runs.items() if run.batched]
        # Python workers stay between two batches, so their CPU time must still be counted.
        python = [place for place in {**found.tasks, **dict.fromkeys(batched)} if self._stage(place).python]
        self.python = any(stage.python for run in self._runs.values() for stage in run.plan.stages)
        self.waits = bool(found.unknown)
        for what, ref in found.helpers:
            if what.shuffle >= 0 and self._hop(what.shuffle) is None:
                self.waits = True
            for place in self._helped(what, found, sinks, python):
                threads.setdefault(place, []).append(ref)
        for ref in workers:
            for place in python:
                threads.setdefault(place, []).append(ref)

    def _helped(self, what: Named, found: SortedThreads, sinks: list[Place], python: list[Place]) -> list[Place]:
        """Return the tasks that a helper serves."""
        if what.kind is Kind.PRODUCER:
            return sinks
        if what.kind is Kind.PYTHON:
            job = self._directory.job(what.stage)
            if job is None or what.stage < 0:
                return python
            own = self._place_of(job, what)
            return [own] if own in found.tasks else []
        hop = self._hop(what.shuffle)
        if hop is None or hop.job.run not in self._runs or self._runs[hop.job.run].job.number != hop.job.number:
            return []  # left over from a batch that has ended
        position = hop.position
        if what.kind is Kind.READER:
            position = self._runs[hop.job.run].plan.reader_of(position)
        place = Place(hop.job.run, position, what.partition)
        return [place] if place in found.tasks else []

    def _hop(self, shuffle: int) -> Hop | None:
        """Return the job and stage that write a shuffle: as an agent reports, or as matched by time; else None."""
        told = self._directory.hop(shuffle)
        return Hop(*told) if told is not None else self._shuffles.get(shuffle)

    def _stage(self, place: Place) -> Stage:
        return self._runs[place.run].stages[place.position]

    # ------------------------------------------------------------ rows

    def _rows(self, found: SortedThreads, threads: Mapping[Place, Sequence[ThreadRef]]) -> Rows:
        self._name_runs(found)
        runs = self._runs.values()
        self.unplanned = frozenset(run.name for run in runs if not self._directory.has_plan(run.job))
        queries: list[Query] = []
        instances: list[Instance] = []
        places: list[Place | None] = []
        for number, run in sorted(self._runs.items(), key=lambda item: item[1].name):
            goal = _first_of(self._goals, run.name)
            queries.append(Query(run.name, run.operators, self._priority(run.name), goal))
            for position, stage in enumerate(run.stages):
                for partition in sorted(run.partitions.get(position, {0})):
                    place = Place(number, position, partition)
                    places.append(place)
                    mine = tuple(threads.get(place, ()))
                    instances.append(Instance(run.name, stage.operators, partition, self._engine, mine))
        if found.other_tasks:
            queries.append(Query(self._free(JOBS), (Operator("task"),), self._priority(JOBS)))
            instances += [
                Instance(queries[-1].name, ("task",), index, self._engine, (ref,))
                for index, ref in enumerate(found.other_tasks)
            ]
        engine = self._driver(found)
        if engine:
            # All queries wait for the driver, so without a priority of its own it gets the highest one of all queries.
            priority = self.priorities.get(DRIVER, max([query.priority for query in queries], default=0.0))
            names = dict.fromkeys(instance.operators[0] for instance in engine)
            queries.append(Query(engine[0].query, tuple(map(Operator, names)), priority))
            instances += engine
        places += [None] * (len(instances) - len(places))
        return Rows(tuple(queries), tuple(instances), tuple(places))

    def _driver(self, found: SortedThreads) -> list[Instance]:
        """Return the driver's instances: a planner for each query, then the services, by process."""
        query = self._free(DRIVER)
        planners = sorted((f"{PLANS}{self._called(what)}", ref) for what, ref in found.planners.values())
        counts: dict[str, int] = {}
        instances: list[Instance] = []
        for name, ref in planners:
            index = counts[name] = counts.get(name, -1) + 1
            instances.append(Instance(query, (name,), index, self._engine, (ref,)))
        for service in SERVICES:
            for number in sorted(number for which, number in found.services if which == service):
                refs = tuple(found.services[service, number])
                instances.append(Instance(query, (service,), number, self._engine, refs))
        return instances

    def _name_runs(self, found: SortedThreads) -> None:
        """Name each run by its query's name or id. If two runs share a name, the second name also has the run id."""
        taken: set[str] = set()
        for number, run in sorted(self._runs.items()):
            what = found.planners.get(number)
            name = run.job.query or (what[0].query if what else "") or f"query-{run.job.query_id[:8]}"
            run.name = f"{name}-{number[:8]}" if name in taken else name
            taken.add(name)

    def _called(self, what: Named) -> str:
        run = self._runs.get(what.run)
        return run.name if run else what.query or f"query-{what.query_id[:8]}"

    def _free(self, name: str) -> str:
        """Return a name that no query of the user has."""
        taken = {run.name for run in self._runs.values()}
        return name if name not in taken else f"spark {name}"

    def _priority(self, name: str) -> float:
        found = _first_of(self.priorities, name)
        return 0.0 if found is None else found


def _first_of(values: Mapping[str, float], name: str) -> float | None:
    """The value of the first pattern that fits a name."""
    return next((value for pattern, value in values.items() if fnmatchcase(name, pattern)), None)


def _ref(pid: int, thread: JavaThread, what: Named) -> ThreadRef | None:
    try:
        return ThreadRef(thread.tid, pid, start_time(pid, thread.tid), what.role, stable_thread_name(thread.name, what))
    except TargetGone:
        return None


def python_worker(pid: int, began: int) -> ThreadRef:
    """The main thread of a Python worker process."""
    return ThreadRef(pid, pid, began, Role.HELPER, "python worker")


def of_driver(query: str) -> bool:
    """Whether a query is a pseudo query of a driver; the name of an application may come before (`name/driver`)."""
    return query.rpartition("/")[2] in (DRIVER, f"spark {DRIVER}")
