"""An attachment: one loop over several running applications, with everything that makes it safe to start and to stop.

`attach` finds the applications, checks what can be done, and only then begins. What was found is on disk before the
first write, another process puts it back after a kill -9, and a watchdog takes real-time priorities off when nothing
moves. Lachesis section 4; several engines in one decision as in its section 6.6.
"""

from __future__ import annotations

import atexit
import logging
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from treadle import durations
from treadle.attachment import checks, plan, targets
from treadle.attachment.attached_engine import AttachedEngine, Guard
from treadle.attachment.coverage import QueryCoverage
from treadle.attachment.knobs import Knobs, part
from treadle.attachment.newcomers import Newcomers
from treadle.attachment.pace import Pace
from treadle.attachment.plan import Plan
from treadle.attachment.shown import report
from treadle.attachment.shown.published import Published, ask
from treadle.attachment.targets import Claims, Target
from treadle.attachment.task_order import Ordering
from treadle.attachment.urgency import ahead
from treadle.decide.policy import Policy
from treadle.durations import Duration
from treadle.enforce import Knob
from treadle.enforce.recovery.guardian import Guardian
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.new_threads import NewThreadReset
from treadle.enforce.recovery.releasable import Releasable
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import ConfigError, TreadleError
from treadle.linux import users
from treadle.linux.files.open_files import raise_limit
from treadle.linux.users import User
from treadle.loop import DecisionBatch, Loop
from treadle.text import visible
from treadle.values import Snapshot

if TYPE_CHECKING:  # promises need compiled code, which takes as long to load as all the rest
    from treadle.attachment.quality.keeper import Quality
    from treadle.attachment.quality.promises import Given
    from treadle.decide.quality import Promise

log = logging.getLogger("treadle.attach")

NAP = 0.1
"""Seconds between looks at whether it is to end."""
LONG_NAP = 0.2
"""Seconds for which rounds are left out: agents tell of the threads that are born, but not of the JVM's own."""
PATIENCE = 10.0
"""Seconds for which the first query is waited for."""
WATCHED, UNWATCHED = 0.2, 1.0
"""Seconds between two looks at what was taken from Kafka: where the watchdog waits for it to move, and elsewhere."""
COUNTED, GLANCED = 0.2, 1.0
"""Seconds between two readings of what tasks count: where a policy decides by it, at best, and where it is shown."""
LEAST_PERIOD = 0.01
"""Seconds. A round costs some tenths of a millisecond, and agents read their JVMs 8 ms before each round."""
PART_OF_PERIOD = 0.6
"""For which a round waits for a JVM to dump its threads: one that is short of CPU would keep it from the next."""
LEAST_QUOTA = 0.01
"""CPUs: the kernel takes no less."""
ORDINARY = 1.0
"""The priority of a query that no pattern names."""
Told = Callable[[tuple[DecisionBatch, ...]], None]


def attach(
    target: Target | Sequence[Target],
    *,
    policy: str | Policy | None = None,
    enforce: str | None = None,
    period: Duration = "50ms",
    priorities: Mapping[str, float] | None = None,
    strict: bool = False,
    latency_goals: Mapping[str, Duration] | None = None,
    quotas: Mapping[str, float] | None = None,
    queries: Sequence[str] = ("*",),
    user: User | None = None,
    qod: Given | None = None,
    dry_run: bool = False,
    agent: bool | None = None,
    background: bool = True,
) -> Attachment:
    """Schedule the threads of one or several Spark applications that run on this host.

    A target is a process id, an application's name, the address of its UI, or a SparkSession of this process; all are
    scheduled by one policy in one loop. A name such as `shop-*` is a pattern: it means all that fit, also those that
    are started later. Names and patterns mean applications of one `user` (a name or a uid), by default of the one that
    calls this, also by sudo. `enforce` is nice, cgroup, rt, slice or quota, or some joined by `+`; see docs/attach.md.
    `priorities`, `latency_goals` and `quotas` (in CPUs) are by patterns of query names, the first that fits counts, and
    `queries` are the patterns of those that are scheduled at all. Priorities are shares of the CPU, and what is not
    named has 1; if `strict`, only their order counts, and the highest gets as much as the lowest can do without. With
    `qod`, a mapping of patterns to `priority` and `min_accuracy` or the path of a TOML file that has such, micro-
    batches drop rows when the CPU is short, never more than that; see docs/quality.md. By default Treadle's agent is
    loaded for as long as this lasts, and a Jolokia agent, which stays, where the policy or the watchdog needs it; in a
    dry run neither. With `agent` both are loaded, with False none is loaded or read. In the `background` it is at work
    when this returns; otherwise call `run`.
    """
    wanted = dict(priorities or {})
    _check_numbers("priorities", wanted, 0.0)
    _check_numbers("quotas", quotas or {}, LEAST_QUOTA)
    length = durations.seconds(period, what="the period", where="attach", least=LEAST_PERIOD)
    promised = {} if qod is None else _promised(qod)
    if promised and agent is False:
        raise ConfigError(
            "rows can be dropped by an agent only",
            where="qod",
            remedy="leave out --no-agent (agent=False), or the promises",
        )
    goals = {
        pattern: durations.seconds(goal, what=f"the goal of '{pattern}'", where="latency_goals")
        for pattern, goal in (latency_goals or {}).items()
    }
    policy = "min-latency" if policy is None and goals else policy
    chosen = plan.make(policy, enforce, length, wanted, quotas or {}, tuple(queries), strict=strict)
    own = _loads_own(agent, dry_run=dry_run)
    chosen.check(Knobs(chosen).version, beans=agent is not False, agent=own)
    owner = None if user is None else users.number(user)
    applications = targets.find(target, agent=own, user=owner)
    if not dry_run:
        checks.check(chosen, applications.values())
    wanted["*"] = wanted.get("*", ORDINARY)
    later = Newcomers(targets.patterns(target), owner)
    attachment = Attachment(
        chosen, applications, wanted, promised, goals=goals, later=later, dry_run=dry_run, agent=agent
    )
    if background:
        attachment.start()
    return attachment


def look_on(
    target: Target | Sequence[Target], *, agent: bool = False, user: User | None = None
) -> Callable[[], dict[str, Any] | None] | None:
    """Where somebody schedules these applications: how to ask for its status, which is None once it has ended."""
    owner = None if user is None else users.number(user)
    found = list(targets.find(target, agent=agent, user=owner).values())
    return (lambda: ask(found)) if ask(found) is not None else None


def watch(
    target: Target | Sequence[Target],
    *,
    period: Duration = "200ms",
    agent: bool | None = None,
    user: User | None = None,
) -> Attachment:
    """Look at applications without changing anything of how they are scheduled: `run` it, or `start` it."""
    return attach(target, policy="none", period=period, dry_run=True, agent=agent, user=user, background=False)


class Attachment:
    """Made by `attach`. As a context manager it ends with its block; what it has changed is then as it was."""

    def __init__(
        self,
        chosen: Plan,
        applications: Mapping[str, Application],
        priorities: Mapping[str, float],
        promised: Mapping[str, Promise],
        *,
        goals: Mapping[str, float] = MappingProxyType({}),
        later: Newcomers | None = None,
        dry_run: bool = False,
        agent: bool | None = None,
    ) -> None:
        self.plan = chosen
        self.applications = dict(applications)
        self.dry_run = dry_run
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._changes = report.Changes()
        self._unread: deque[DecisionBatch] = deque(maxlen=10_000)
        self._telling = threading.Lock()
        self._guards: dict[str, Guard] = {}
        self._burnt: dict[str, float] = {}
        self._journal: Journal | None = None
        self._guardian: Guardian | None = None
        self._knobs = Knobs(chosen)
        self._closing = ExitStack()
        self._parting: dict[str, ExitStack] = {}
        """By application: what ends with it."""
        self._leaves = False
        self._met = QueryCoverage([*priorities, *goals, *chosen.caps, *chosen.queries, *promised])
        self._claims = Claims()
        self._quality: Quality | None = None
        self._published = Published(self.status)
        self._priorities, self._goals, self._agent = dict(priorities), dict(goals), agent
        self._newcomers = later or Newcomers(())
        self._closing.callback(self._newcomers.close)
        try:
            self._engines = self._prepare()
            bindings, self._seen = chosen.bindings(self._knobs.version)
            often = chosen.counts_period(COUNTED, GLANCED) == COUNTED
            self._pace = Pace(COUNTED, GLANCED) if often else None
            self._ordering = None if dry_run else Ordering.of(bindings, chosen.orders_tasks_by)
            patience = PART_OF_PERIOD * chosen.period
            self.loop = Loop(self._engines, bindings, dry_run=dry_run, journal=self._journal, patience=patience)
            self._keep_promises(promised)
            for application in self.applications.values() if not dry_run else ():
                self._published.add(application.processes)
        except BaseException:
            self._closing.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def ended(self) -> bool:
        """Whether all applications have ended, and none can come any more."""
        return not self._newcomers.expected and all(engine.ended for engine in self._engines)

    @property
    def running(self) -> bool:
        """Whether it is at work in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """In a thread of its own, until `stop`, the end of this process, or that of all applications."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="treadle-attach", daemon=True)
            self._thread.start()
            atexit.register(self.stop)

    def run(
        self,
        seconds: float | None = None,
        *,
        told: Told | None = None,
        before_end: Callable[[], None] | None = None,
        leave: bool = False,
        patient: bool = False,
    ) -> None:
        """In this thread: for some seconds, until `ask_to_stop`, or the end of all applications.

        In the main thread signals that end a program wait for the end of a round, and everything is put back first.
        `told` is called with the changes of each round, `before_end` before anything is put back. With `leave` what
        was changed stays so; `treadle restore` puts it back. If `patient` the seconds are counted from when the first
        query is seen, and that is waited for.
        """
        length = math.inf if seconds is None else seconds
        try:
            with ExitStack() as ending:
                if not self.dry_run:
                    ending.enter_context(ahead())
                if not leave:
                    ending.enter_context(self.loop)
                self._rounds(length, told, patient=patient)
                self._meet()
                if before_end is not None:
                    before_end()
            self._leaves = leave
        except BaseException:
            self.loop.restore()
            raise
        finally:
            self._close()

    def ask_to_stop(self) -> None:
        """End after this round. It may be called from a signal handler."""
        self._stopping = True

    def stop(self) -> None:
        """Put everything back and end; harmless when called again."""
        self._stopping = True
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            atexit.unregister(self.stop)
        self._close()

    def wait(self, seconds: float | None = None) -> None:
        """Until it ends in the background, or so long; what ended it, if that was an error."""
        if self._thread is not None:
            self._thread.join(seconds)
        if self._error is not None:
            raise self._error

    def status(self) -> dict[str, Any]:
        """How everything is at this moment; plain values."""
        with self._telling:
            while self._unread:
                self._changes.add(self._unread.popleft())
            return self._status()

    # ------------------------------------------------------------ inside

    def _status(self) -> dict[str, Any]:
        stats, last = self.loop.stats, self._seen.last
        return {
            "applications": [
                {"name": name, "id": each.id, "ui": each.ui, "pids": [p.pid for p in each.processes], "ended": gone}
                for (name, each), gone in zip(
                    self.applications.items(), [engine.ended for engine in self._engines], strict=True
                )
            ],
            "policy": self.plan.policy.name,
            "enforce": self.plan.enforce,
            "period": self.plan.period,
            "dry_run": self.dry_run,
            "rounds": stats.rounds,
            "skipped": stats.skipped,
            "changes": stats.changes,
            "round_ms": round(stats.median_ms, 3),
            "failures": dict(stats.troubles),
            "released": {name: guard.leash.reason for name, guard in self._guards.items() if guard.leash.reason},
            "seen": sorted(self._met.seen),
            "unseen": sorted(self._met.unseen),
            "unplanned": sorted(self._unplanned),
            "partial": self.dry_run and self._agent is None,
            "rows": report.rows(*last, self._changes) if last else [],
            "quality": None if self._quality is None else self._quality.status(),
        }

    def _keep_promises(self, promised: Mapping[str, Promise]) -> None:
        if promised and not self.dry_run:
            from treadle.attachment.quality import keeper

            self._quality = keeper.Quality(promised, self._there, self._snapshot)
            self._closing.callback(self._quality.close)
            self._quality.start()

    def _there(self) -> dict[str, Sequence[Process]]:
        """The processes of those that have not ended."""
        return {each.name: each.engine.processes for each in list(self._engines) if not each.ended}

    @property
    def _unplanned(self) -> set[str]:
        """Queries whose plan Spark's UI, where it is asked for it, has not shown yet."""
        return {name for each in list(self._engines) if not each.ended for name in each.engine.unplanned}

    def _snapshot(self) -> Snapshot | None:
        return self._seen.last[0] if self._seen.last else None

    def _prepare(self) -> list[AttachedEngine]:
        raise_limit()  # some files of each thread are kept open
        if not self.dry_run:
            self._closing.callback(self._claims.release)
            self._claims.take(self.applications.values())
            self._closing.callback(self._published.close)
            checks.settle(self.applications.values())
            self._journal = Journal.open()
            self._closing.callback(self._close_journal)
            self._guardian = Guardian.start(self._journal, self._real_time_was_taken_off)
            self._closing.callback(self._close_knobs)
        self._closing.callback(self._part_all)
        knobs = [self._knobs.make(each) for each in self.applications.values()]
        # From here on agents are loaded: everything that can be refused has been checked.
        self.applications = targets.named(each.identified() for each in self.applications.values())
        return [self._follow(*each, made) for each, made in zip(self.applications.items(), knobs, strict=True)]

    def _welcome(self) -> None:
        """Applications that came since the last round. One that can't be scheduled is left alone."""
        if not self._newcomers.expected:
            return
        self._dismiss()
        while (found := self._newcomers.next()) is not None:
            if found.id in {each.id for each in self.applications.values()}:
                continue
            name = found.name if found.name not in self.applications else f"{found.name}@{found.processes[0].pid}"
            there = [each for each, engine in zip(self.applications.values(), self._engines, strict=True)
                     if not engine.ended]  # fmt: skip
            try:
                if not self.dry_run:
                    checks.check(self.plan, [*there, found])
                    self._claims.take([found])
                    checks.settle([found])
                followed = self._follow(name, found, self._knobs.make(found))
                self.loop.add(followed)
            except TreadleError as error:
                self._claims.drop(found.processes)
                if name in self._parting:
                    self._parting.pop(name).close()
                log.warning("'%s' is left alone: %s", name, error, extra={"application": name, "error": str(error)})
                continue
            with self._telling:
                self.applications[name] = found
                self._engines.append(followed)
            if not self.dry_run:
                self._published.add(found.processes)
            log.info("'%s' has come", name, extra={"application": name})

    def _dismiss(self) -> None:
        """Forget applications that have ended: where others come, they would add up."""
        for each in [each for each in self._engines if each.ended]:
            with self._telling:
                self._engines.remove(each)
                application = self.applications.pop(each.name)
            self.loop.remove(each.name)
            self._parting.pop(each.name).close()
            self._claims.drop([*application.processes, *each.engine.processes])
            self._published.drop(application.processes)
            for kept in (self._guards, self._burnt):
                kept.pop(each.name, None)
            log.info("'%s' has ended", visible(each.name), extra={"application": each.name})

    def _follow(self, name: str, application: Application, knobs: Mapping[str, Knob]) -> AttachedEngine:
        period = WATCHED if "rt" in knobs else UNWATCHED
        engine = SparkEngine(
            application,
            name=name,
            priorities=self._priorities,
            latency_goals=self._goals,
            knobs=knobs,
            mbeans=self._agent is not False,
            loads=self.plan.loads_jolokia(self._agent, dry_run=self.dry_run),
            needs_beans=self.plan.reads_beans,
            needs_busy="rt" in knobs,
            agent=_loads_own(self._agent, dry_run=self.dry_run),
            beans_period=period,
            period=self.plan.period,
            admits=(lambda _: True) if self.dry_run else self._claims.admit,
            compilers=self.plan.holds_compilers,
            counts_period=self.plan.counts_period(COUNTED, GLANCED),
        )
        parting = self._parting[name] = ExitStack()
        parting.callback(engine.close)
        if self.dry_run:
            return AttachedEngine(engine)
        leash = knobs.get("rt")
        if isinstance(leash, Releasable):
            cores = checks.cores(application) * part(leash)
            guard = Guard(
                *(leash, cores, self.plan.period, self._burnt),
                sees=Guard.PROGRESS in engine.offers,
                beat=None if self._guardian is None else self._guardian.beat,
            )
            self._guards[name] = guard
            parting.callback(guard.watchdog.stop)
        heirs = NewThreadReset(knobs.values(), [process.pid for process in application.processes], self._journal)
        followed = AttachedEngine(engine, heirs, self._guards.get(name))
        parting.callback(self._part, followed)
        return followed

    def _real_time_was_taken_off(self, reason: str) -> None:
        """By the guardian, while this process stood still. The watchdogs decide when it is tried again."""
        for guard in self._guards.values():
            guard.watchdog.let_go(reason)

    def _serve(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            log.exception("ended by an error, and everything is put back")

    def _rounds(self, seconds: float, told: Told | None, *, patient: bool) -> None:
        loop, began = self.loop, time.monotonic()
        end = began + seconds
        while not self._stopping and not self.ended and time.monotonic() < end:
            self._welcome()
            batches = self._round()
            if self._ordering is not None:
                self._ordering.update(each.engine for each in self._engines if not each.ended)
            if batches:
                self._unread.extend(batches)
                if told is not None:
                    told(batches)
            if patient or self._met.unfit:
                self._meet(time.monotonic() - began)
            if patient:
                patient = not self._met.all or bool(self._unplanned)
                end = max(end, min(time.monotonic(), began + PATIENCE) + seconds)
            if loop.settled:
                self._nap(end)
            wake = min(loop.next_due, end)
            while (rest := wake - time.monotonic()) > 0 and not self._stopping:
                time.sleep(min(rest, NAP))
                if self._journal is not None:
                    self._journal.tend()

    def _round(self) -> tuple[DecisionBatch, ...]:
        """One round of the loop. What it costs with new readings of counters decides how often they are read."""
        if self._pace is None:
            return self.loop.round()
        began, readings = time.thread_time(), self._readings
        batches = self.loop.round()
        if self._readings > readings:
            self._pace.add(time.thread_time() - began)
            for each in self._engines:
                each.engine.read_counters_every(self._pace.period)
        return batches

    @property
    def _readings(self) -> int:
        return sum(each.engine.readings for each in self._engines)

    def _nap(self, end: float) -> None:
        """Leave out rounds that would have nothing to do, for a while, or until an agent speaks."""
        now = time.monotonic()
        rest = min(now + LONG_NAP, end, *(each.calm_until for each in self._engines)) - now
        if rest > self.plan.period:
            agents = select.poll()
            for each in self._engines:
                with suppress(ValueError):  # it is ending
                    agents.register(each.engine, select.POLLIN)
            agents.poll(rest * 1e3)
            self.loop.put_off(time.monotonic())

    def _meet(self, passed: float = math.inf) -> None:
        """See which queries there are; after a while, say which patterns fit none."""
        if self._seen.last is None:
            return
        met = self._met
        met.look(self._seen.last[0].topology)
        if met.unfit and met.known and passed > PATIENCE / 2:
            there = ", ".join(sorted(met.known))
            for pattern in sorted(met.unfit):
                log.warning("no query fits '%s' (there are: %s)", pattern, there, extra={"pattern": pattern})
            met.unfit.clear()

    def _part(self, followed: AttachedEngine) -> None:
        if not self._leaves:
            followed.part()

    def _part_all(self) -> None:
        with ExitStack() as all_of_them:
            for each in self._parting.values():
                all_of_them.push(each)

    def _close_knobs(self) -> None:
        if not self._leaves:
            self._knobs.close()

    def _close_journal(self) -> None:
        """What is left as it is stays written down, and nobody puts it back before he is asked to."""
        if self._journal is not None:
            if self._leaves and len(self._journal):
                self._journal.leave()
            self._journal.close()
            if self._leaves and self._journal.keeper is not None:
                self._journal.keeper.stop()

    def _close(self) -> None:
        self._closing.close()


def _promised(qod: Given) -> dict[str, Promise]:
    from treadle.attachment.quality import promises

    return promises.read(qod)


def _loads_own(agent: bool | None, *, dry_run: bool) -> bool:
    """Whether Treadle's own agent is loaded, which ends with us, if that was left open (None)."""
    return not dry_run if agent is None else agent


def _check_numbers(what: str, numbers: Mapping[str, float], least: float) -> None:
    for pattern, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number < math.inf:
            remedy = f"use a number from {least:g} on, as {{'alerts-*': 10}}"
            raise ConfigError(f"{pattern!r} has {number!r}", where=what, remedy=remedy)
