"""The applications of an attachment: those that run at its start, those that start later, and those that end.

Before the first application is attached and until the last one has ended, three things make it safe to change threads:
claims that keep other Treadle processes away, the journal, and the guardian, which undoes all changes after a kill -9.
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
from treadle.attachment.micro_batches.batch_turns import BatchTurns, Slots
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
"""Seconds between two reads of Kafka's MBeans: with real-time threads, whose watchdog reads progress from them, and
without."""
COUNTED, GLANCED = 0.2, 1.0
"""Seconds between two readings of tasks' counters: the minimum if a policy decides by them, and the maximum, which is
also used if they are only shown."""


class Wanted(NamedTuple):
    """What the user wants, which is the same for all applications."""

    plan: Plan
    priorities: Mapping[str, float]
    goals: Mapping[str, float]
    agent: bool | None
    dry_run: bool
    slots: Slots = None
    """How many micro-batches of an application may run at once; None: no limit."""


class AttachedApplications:
    """The applications of one attachment, from `begin` to `close`. `status` returns the status that is published."""

    def __init__(self, wanted: Wanted, later: Newcomers, status: Callable[[], dict[str, Any]]) -> None:
        self.applications: dict[str, Application] = {}
        self.engines: list[AttachedEngine] = []
        self.guards: dict[str, Guard] = {}
        """By application: the guard of its real-time threads."""
        self.knobs = Knobs(wanted.plan)
        self.journal: Journal | None = None
        self.leaves = False
        """Whether changes stay in place at the end."""
        self.changing = threading.Lock()
        """Held while applications are added or removed."""
        self.wanted = wanted
        """What holds now."""
        self._later = later
        self._burnt: dict[str, float] = {}
        self._turns: dict[str, BatchTurns] = {}
        self._guardian: Guardian | None = None
        self._closing = ExitStack()
        self._on_end: dict[str, ExitStack] = {}
        """By application: the callbacks that run when it ends."""
        self._claims = Claims()
        self._published = Published(status)
        self._closing.callback(later.close)

    def begin(self, applications: Mapping[str, Application]) -> None:
        """Claim these applications, so that no other Treadle process schedules them, and open their engines."""
        raise_limit()  # some files of each thread are kept open
        if not self.wanted.dry_run:
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
        """Publish the status of the applications, so that other processes can ask for it."""
        for application in self.applications.values() if not self.wanted.dry_run else ():
            self._published.add(application.processes)

    def close(self) -> None:
        self._closing.close()

    @property
    def ended(self) -> bool:
        """Whether all applications have ended, and no new ones are expected."""
        return not self._later.expected and all(engine.ended for engine in self.engines)

    def living(self) -> dict[str, Sequence[Process]]:
        """Return, by application name, the processes of all applications that have not ended."""
        return {each.name: each.engine.processes for each in list(self.engines) if not each.ended}

    @property
    def unplanned(self) -> set[str]:
        """Running queries whose plan is not known yet: neither an agent nor Spark's UI has reported it."""
        return {name for each in list(self.engines) if not each.ended for name in each.engine.unplanned}

    def adopt(self, plan: Plan, priorities: Mapping[str, float]) -> None:
        """Follow another plan with the same enforcers, and other priorities, from the next round on."""
        with self.changing:
            self.wanted = self.wanted._replace(plan=plan, priorities=priorities)
            for each in self.engines:
                each.engine.set_priorities(priorities)
                each.engine.agents.period = plan.rounds
                each.engine.agents.counts = plan.counts_period(COUNTED, GLANCED)

    def set_slots(self, slots: Slots) -> None:
        """Replace the limit of micro-batches, from the next round on."""
        with self.changing:
            self.wanted = self.wanted._replace(slots=slots)

    def take_turns(self, *, paused: bool) -> None:
        """Limit how many micro-batches of each application run at once; while `paused`, let all run."""
        for each in self.engines:
            if each.name in self._turns and not each.ended:
                self._turns[each.name].update(None if paused else self.wanted.slots)
                if paused:  # no round speaks with the agents
                    each.engine.agents.look()

    def look(self, loop: Loop) -> None:
        """Attach to applications that have started since the last round, and remove those that have ended."""
        if not self._later.expected:
            return
        self._remove_ended(loop)
        while (found := self._later.next()) is not None:
            if found.id not in {each.id for each in self.applications.values()}:
                self._attach_new(found, loop)

    def release_real_time(self, reason: str) -> None:
        """Note that the guardian has taken real-time off, since this process hung; the watchdogs decide on a retry."""
        for guard in self.guards.values():
            guard.watchdog.let_go(reason)

    # ------------------------------------------------------------ inside

    def _attach_new(self, found: Application, loop: Loop) -> None:
        """Attach to a new application; one that can't be scheduled is left alone."""
        dry_run = self.wanted.dry_run
        name = found.name if found.name not in self.applications else f"{found.name}@{found.processes[0].pid}"
        there = [
            each for each, engine in zip(self.applications.values(), self.engines, strict=True) if not engine.ended
        ]
        try:
            if not dry_run:
                checks.check(self.wanted.plan, [*there, found])
                self._claims.take([found])
                checks.settle([found])
            followed = self._follow(name, found, self.knobs.make(found))
            loop.add(followed)
        except TreadleError as error:
            self._claims.drop(found.processes)
            if name in self._on_end:
                self._on_end.pop(name).close()
            log.warning(
                "application '%s' is skipped: %s", name, error, extra={"application": name, "error": str(error)}
            )
            return
        with self.changing:
            self.applications[name] = found
            self.engines.append(followed)
        if not dry_run:
            self._published.add(found.processes)
        log.info("attached to new application '%s'", name, extra={"application": name})

    def _remove_ended(self, loop: Loop) -> None:
        """Remove applications that have ended: otherwise they would accumulate while new ones start."""
        for each in [each for each in self.engines if each.ended]:
            with self.changing:
                self.engines.remove(each)
                application = self.applications.pop(each.name)
            loop.remove(each.name)
            self._on_end.pop(each.name).close()
            self._claims.drop([*application.processes, *each.engine.processes])
            self._published.drop(application.processes)
            for kept in (self.guards, self._burnt, self._turns):
                kept.pop(each.name, None)
            log.info("application '%s' has ended", visible(each.name), extra={"application": each.name})

    def _follow(self, name: str, application: Application, knobs: Mapping[str, Knob]) -> AttachedEngine:
        plan, priorities, goals, agent, dry_run, _ = self.wanted
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
            period=plan.rounds,
            admits=(lambda _: True) if dry_run else self._claims.admit,
            compilers=plan.holds_compilers,
            counts_period=plan.counts_period(COUNTED, GLANCED),
        )
        parting = self._on_end[name] = ExitStack()
        parting.callback(engine.close)
        if dry_run:
            return AttachedEngine(engine)
        cores = checks.cores(application)
        self._turns[name] = BatchTurns(engine, cores)
        releasable = knobs.get("rt")
        if isinstance(releasable, Releasable):
            guard = Guard(
                *(releasable, cores * part(releasable), plan.rounds, self._burnt),
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
            for each in self._on_end.values():
                all_of_them.push(each)

    def _close_knobs(self) -> None:
        if not self.leaves:
            self.knobs.close()

    def _close_journal(self) -> None:
        """Close the journal. Changes that stay in place stay in it too, for `treadle restore` or a later attachment."""
        if self.journal is not None:
            if self.leaves and len(self.journal):
                self.journal.leave()
            self.journal.close()
            if self.leaves and self.journal.keeper is not None:
                self.journal.keeper.stop()
