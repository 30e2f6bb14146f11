"""The applications of an attachment: those that were there at its start, those that start later, and those that end.

Everything that makes it safe to change their threads is opened before the first of them and closed after the last: the
claim that nobody else schedules them, the journal, and the guardian that puts everything back after a kill -9.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from treadle.attachment import checks, targets
from treadle.attachment.attached_engine import AttachedEngine, Guard
from treadle.attachment.knobs import Knobs, part
from treadle.attachment.newcomers import Newcomers
from treadle.attachment.plan import Plan, loads_agent
from treadle.attachment.shown.published import Published
from treadle.attachment.targets import Claims
from treadle.enforce import Knob
from treadle.enforce.recovery.guardian import Guardian
from treadle.enforce.recovery.journal import Journal
from treadle.enforce.recovery.new_threads import NewThreadReset
from treadle.enforce.recovery.releasable import Releasable
from treadle.engines.spark.application import Application, Process
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import TreadleError
from treadle.linux.files.open_files import raise_limit
from treadle.loop import Loop
from treadle.text import visible

log = logging.getLogger("treadle.attach")

WATCHED, UNWATCHED = 0.2, 1.0
"""Seconds between two looks at what was taken from Kafka: where the watchdog waits for it to move, and elsewhere."""
COUNTED, GLANCED = 0.2, 1.0
"""Seconds between two readings of what tasks count: where a policy decides by it, at best, and where it is shown."""


class Wanted(NamedTuple):
    """What was asked for, which is the same for all applications."""

    plan: Plan
    priorities: Mapping[str, float]
    goals: Mapping[str, float]
    agent: bool | None
    dry_run: bool


class Members:
    """Of one attachment, from `begin` until it is closed. `status` is what is published of it."""

    def __init__(self, wanted: Wanted, later: Newcomers, status: Callable[[], dict[str, Any]]) -> None:
        self.applications: dict[str, Application] = {}
        self.engines: list[AttachedEngine] = []
        self.guards: dict[str, Guard] = {}
        """By application: who watches over its real-time threads."""
        self.knobs = Knobs(wanted.plan)
        self.journal: Journal | None = None
        self.leaves = False
        """Whether what was changed stays so at the end."""
        self.changing = threading.Lock()
        """Held while applications come and go."""
        self._wanted = wanted
        self._later = later
        self._burnt: dict[str, float] = {}
        self._guardian: Guardian | None = None
        self._closing = ExitStack()
        self._parting: dict[str, ExitStack] = {}
        """By application: what ends with it."""
        self._claims = Claims()
        self._published = Published(status)
        self._closing.callback(later.close)

    def begin(self, applications: Mapping[str, Application]) -> None:
        """Take these; nobody else may schedule them."""
        raise_limit()  # some files of each thread are kept open
        if not self._wanted.dry_run:
            self._closing.callback(self._claims.release)
            self._claims.take(applications.values())
            self._closing.callback(self._published.close)
            checks.settle(applications.values())
            self.journal = Journal.open()
            self._closing.callback(self._close_journal)
            self._guardian = Guardian.start(self.journal, self.release_real_time)
            self._closing.callback(self._close_knobs)
        self._closing.callback(self._part_all)
        knobs = [self.knobs.make(each) for each in applications.values()]
        # From here on agents are loaded: everything that can be refused has been checked.
        self.applications = targets.named(each.identified() for each in applications.values())
        self.engines += [self._follow(*each, made) for each, made in zip(self.applications.items(), knobs, strict=True)]

    def publish(self) -> None:
        """Let other processes ask for the status."""
        for application in self.applications.values() if not self._wanted.dry_run else ():
            self._published.add(application.processes)

    def close(self) -> None:
        self._closing.close()

    @property
    def ended(self) -> bool:
        """Whether all have ended, and none can come any more."""
        return not self._later.expected and all(engine.ended for engine in self.engines)

    def living(self) -> dict[str, Sequence[Process]]:
        """The processes of those that have not ended."""
        return {each.name: each.engine.processes for each in list(self.engines) if not each.ended}

    @property
    def unplanned(self) -> set[str]:
        """Queries whose plan Spark's UI, where it is asked for it, has not shown yet."""
        return {name for each in list(self.engines) if not each.ended for name in each.engine.unplanned}

    def look(self, loop: Loop) -> None:
        """Take applications that have come since the last round, and forget those that have ended."""
        if not self._later.expected:
            return
        self._dismiss(loop)
        while (found := self._later.next()) is not None:
            if found.id not in {each.id for each in self.applications.values()}:
                self._welcome(found, loop)

    def release_real_time(self, reason: str) -> None:
        """By the guardian, while this process stood still. The watchdogs decide when it is tried again."""
        for guard in self.guards.values():
            guard.watchdog.let_go(reason)

    # ------------------------------------------------------------ inside

    def _welcome(self, found: Application, loop: Loop) -> None:
        """One that can't be scheduled is left alone."""
        dry_run = self._wanted.dry_run
        name = found.name if found.name not in self.applications else f"{found.name}@{found.processes[0].pid}"
        there = [
            each for each, engine in zip(self.applications.values(), self.engines, strict=True) if not engine.ended
        ]
        try:
            if not dry_run:
                checks.check(self._wanted.plan, [*there, found])
                self._claims.take([found])
                checks.settle([found])
            followed = self._follow(name, found, self.knobs.make(found))
            loop.add(followed)
        except TreadleError as error:
            self._claims.drop(found.processes)
            if name in self._parting:
                self._parting.pop(name).close()
            log.warning("'%s' is left alone: %s", name, error, extra={"application": name, "error": str(error)})
            return
        with self.changing:
            self.applications[name] = found
            self.engines.append(followed)
        if not dry_run:
            self._published.add(found.processes)
        log.info("attached to new application '%s'", name, extra={"application": name})

    def _dismiss(self, loop: Loop) -> None:
        """Forget applications that have ended: where others come, they would add up."""
        for each in [each for each in self.engines if each.ended]:
            with self.changing:
                self.engines.remove(each)
                application = self.applications.pop(each.name)
            loop.remove(each.name)
            self._parting.pop(each.name).close()
            self._claims.drop([*application.processes, *each.engine.processes])
            self._published.drop(application.processes)
            for kept in (self.guards, self._burnt):
                kept.pop(each.name, None)
            log.info("application '%s' has ended", visible(each.name), extra={"application": each.name})

    def _follow(self, name: str, application: Application, knobs: Mapping[str, Knob]) -> AttachedEngine:
        plan, priorities, goals, agent, dry_run = self._wanted
        engine = SparkEngine(
            application,
            name=name,
            priorities=priorities,
            latency_goals=goals,
            knobs=knobs,
            mbeans=agent is not False,
            loads=plan.loads_jolokia(agent, dry_run=dry_run),
            needs_beans=plan.reads_beans,
            needs_busy="rt" in knobs,
            agent=loads_agent(agent, dry_run=dry_run),
            beans_period=WATCHED if "rt" in knobs else UNWATCHED,
            period=plan.period,
            admits=(lambda _: True) if dry_run else self._claims.admit,
            compilers=plan.holds_compilers,
            counts_period=plan.counts_period(COUNTED, GLANCED),
        )
        parting = self._parting[name] = ExitStack()
        parting.callback(engine.close)
        if dry_run:
            return AttachedEngine(engine)
        leash = knobs.get("rt")
        if isinstance(leash, Releasable):
            cores = checks.cores(application) * part(leash)
            guard = Guard(
                *(leash, cores, plan.period, self._burnt),
                sees=Guard.PROGRESS in engine.offers,
                beat=None if self._guardian is None else self._guardian.beat,
            )
            self.guards[name] = guard
            parting.callback(guard.watchdog.stop)
        new_threads = NewThreadReset(knobs.values(), [process.pid for process in application.processes], self.journal)
        followed = AttachedEngine(engine, new_threads, self.guards.get(name))
        parting.callback(self._part, followed)
        return followed

    def _part(self, followed: AttachedEngine) -> None:
        if not self.leaves:
            followed.part()

    def _part_all(self) -> None:
        with ExitStack() as all_of_them:
            for each in self._parting.values():
                all_of_them.push(each)

    def _close_knobs(self) -> None:
        if not self.leaves:
            self.knobs.close()

    def _close_journal(self) -> None:
        """What is left as it is stays written down, and nobody puts it back before he is asked to."""
        if self.journal is not None:
            if self.leaves and len(self.journal):
                self.journal.leave()
            self.journal.close()
            if self.leaves and self.journal.keeper is not None:
                self.journal.keeper.stop()
