"""An attachment: one loop over several running applications, and its rounds from start to stop.

`start` makes an attachment, `attached_applications` has its applications. Lachesis section 4.
"""

from __future__ import annotations

import atexit
import logging
import math
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from treadle.attachment import live_settings
from treadle.attachment.attached_applications import COUNTED, GLANCED, AttachedApplications, Wanted
from treadle.attachment.coverage import QueryCoverage
from treadle.attachment.micro_batches import batch_turns
from treadle.attachment.micro_batches.task_order import Ordering
from treadle.attachment.newcomers import Newcomers
from treadle.attachment.pace import Pace
from treadle.attachment.plan import Plan
from treadle.attachment.policies.sets import rule_of
from treadle.attachment.quality import live
from treadle.attachment.shown import report
from treadle.attachment.urgency import ahead
from treadle.control import control_socket
from treadle.control.settings import Changeable, Settings
from treadle.engines.spark.application import Application
from treadle.loop import Binding, DecisionBatch, Loop
from treadle.values import Snapshot

if TYPE_CHECKING:  # promises need compiled code, which takes as long to load as all the rest
    from treadle.attachment.quality.keeper import PromiseKeeper
    from treadle.decide.quality import Promise

log = logging.getLogger("treadle.attach")

NAP = 0.1
"""Maximum seconds between two checks of whether the attachment must stop."""
LONG_NAP = 0.2
"""Maximum seconds without a round. Agents report new Java threads meanwhile, but not new threads of the JVM itself."""
PATIENCE = 10.0
"""Maximum seconds that a patient `run` waits until all known queries were seen at work. After half of this time,
patterns that match no query are logged."""
PART_OF_PERIOD = 0.6
"""The maximum share of a period for which a round waits for an engine's answer. A thread dump of a JVM that is short of
CPU would otherwise delay the next round."""
Told = Callable[[tuple[DecisionBatch, ...]], None]


class Attachment(Changeable):
    """A running attachment, made by `attach`. As a context manager it ends with its block and undoes its changes."""

    def __init__(
        self,
        wanted: Wanted,
        applications: Mapping[str, Application],
        promised: Mapping[str, Promise],
        *,
        later: Newcomers | None = None,
    ) -> None:
        chosen = wanted.plan
        self.dry_run = wanted.dry_run
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._changes = report.Changes()
        self._unread: deque[DecisionBatch] = deque(maxlen=10_000)
        self._partial = wanted.dry_run and wanted.agent is None
        patterns = [rule.queries for rule in chosen.rules]
        self._coverage = QueryCoverage(
            [*wanted.priorities, *wanted.goals, *chosen.caps, *chosen.queries, *promised, *patterns]
        )
        self._members = members = AttachedApplications(wanted, later or Newcomers(()), self.status)
        self._closing = ExitStack()
        self._closing.callback(members.close)
        try:
            members.begin(applications)
            bindings, self._seen = chosen.bindings(members.knobs.version)
            self._pace, self._ordering = self._pace_of(chosen), self._ordering_of(bindings, chosen)
            patience = PART_OF_PERIOD * chosen.rounds
            self._quality = self._promise_keeper(promised)
            self.loop = Loop(
                members.engines,
                bindings,
                dry_run=self.dry_run,
                journal=members.journal,
                patience=patience,
                quality=self._quality,
            )
            self._closing.callback(self.loop.rest)
            version = members.knobs.version
            more = {
                "quality": live.setting(self._quality),
                "slots": batch_turns.setting(lambda: members.wanted.slots, members.set_slots, wanted.agent),
            }
            self._settings = live_settings.make(
                self.loop, lambda: members.wanted, self._adopt, self._pause, version, more
            )
            members.publish()
            self._listen()
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
    def plan(self) -> Plan:
        """What the attachment does now."""
        return self._members.wanted.plan

    @property
    def applications(self) -> Mapping[str, Application]:
        """The applications that are scheduled, by name."""
        return self._members.applications

    @property
    def ended(self) -> bool:
        """Whether all applications have ended, and no new ones are expected."""
        return self._members.ended

    @property
    def running(self) -> bool:
        """Whether it runs in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Run in a thread of its own, until `stop`, the end of this process, or the end of all applications."""
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
        """Run in this thread: for some seconds, until `ask_to_stop`, or until all applications have ended.

        In the main thread, a signal that ends the program is delayed until the end of the round, and all changes are
        undone before it takes effect. `told` is called with the changes of each round, `before_end` before changes are
        undone. With `leave` the changes stay in place; `treadle restore` undoes them. With `patient` the seconds count
        from the time when all known queries have been seen at work, but at most `PATIENCE` seconds after the start.
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
            self._members.leaves = leave
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
        """Wait until the background run ends, for at most `seconds`; raise the error that ended the run, if any."""
        if self._thread is not None:
            self._thread.join(seconds)
        if self._error is not None:
            raise self._error

    @property
    def settings(self) -> Settings:
        return self._settings

    def status(self) -> dict[str, Any]:
        """Return the current state, as plain values."""
        with self._members.changing:
            while self._unread:
                self._changes.add(self._unread.popleft())
            return self._status()

    # ------------------------------------------------------------ inside

    def _status(self) -> dict[str, Any]:
        stats, last, members = self.loop.stats, self._seen.last, self._members
        return {
            "applications": [
                {"name": name, "id": each.id, "ui": each.ui, "pids": [p.pid for p in each.processes], "ended": gone}
                for (name, each), gone in zip(
                    members.applications.items(), [engine.ended for engine in members.engines], strict=True
                )
            ],
            "policy": self.plan.policy.name,
            "adaptive": None if (learner := self.plan.learner) is None else learner.status(),
            "enforce": self.plan.enforce,
            "period": self.plan.period,
            "dry_run": self.dry_run,
            "rounds": stats.rounds,
            "skipped": stats.skipped,
            "changes": stats.changes,
            "round_ms": round(stats.median_ms, 3),
            "failures": dict(stats.troubles),
            "released": {
                name: guard.releasable.reason for name, guard in members.guards.items() if guard.releasable.reason
            },
            "seen": sorted(self._coverage.seen),
            "unseen": sorted(self._coverage.unseen),
            "unplanned": sorted(members.unplanned),
            "partial": self._partial,
            "rules": [rule.as_json() for rule in self.plan.rules],
            "rows": report.rows(*last, self._changes, partial(rule_of, self.plan.rules)) if last else [],
            "quality": None if self._quality is None else self._quality.status(),
        }

    def _pace_of(self, plan: Plan) -> Pace | None:
        return Pace(COUNTED, GLANCED) if plan.counts_period(COUNTED, GLANCED) == COUNTED else None

    def _ordering_of(self, bindings: list[Binding], plan: Plan) -> Ordering | None:
        return None if self.dry_run else Ordering.of(bindings, plan.orders_tasks_by)

    def _adopt(self, plan: Plan, priorities: Mapping[str, float]) -> None:
        """Follow another plan with the same enforcers, and other priorities, from the next round on."""
        bindings, seen = plan.bindings(self._members.knobs.version)
        ordering = self._ordering_of(bindings, plan)
        for number, binding in enumerate(bindings):
            self.loop.rebind(binding, number)
        self._seen, self._ordering, self._pace = seen, ordering, self._pace_of(plan)
        self._members.adopt(plan, priorities)

    def _pause(self, paused: bool) -> None:
        """Restore all values and start tasks in Spark's own order, or decide again."""
        if not paused:
            self.loop.resume()
            return
        self.loop.pause()
        for each in self._members.engines:
            each.engine.agents.task_order = ()
            each.settle(all_threads=True)  # threads started since the last round have inherited changed values

    def _listen(self) -> None:
        """Open the control socket under the name of the first application."""
        if not self.dry_run:
            commands = {
                **self._settings.commands(),
                "slots": lambda: self._settings.read()["slots"],
                "status": self.status,
                "stop": self._stop_by_command,
            }
            name = next(iter(self._members.applications), "attach")
            _, server = control_socket.serve_application(name, commands)
            if server is not None:
                self._closing.callback(server.close)

    def _stop_by_command(self, drain: bool = False) -> None:  # noqa: ARG002 - same arguments as for a pipeline
        self.ask_to_stop()

    def _promise_keeper(self, promised: Mapping[str, Promise]) -> PromiseKeeper | None:
        if not promised or self.dry_run:
            return None
        from treadle.attachment.quality import keeper

        made = keeper.PromiseKeeper(promised, self._members.living, self._snapshot)
        self._closing.callback(made.close)
        return made

    def _snapshot(self) -> Snapshot | None:
        return self._seen.last[0] if self._seen.last else None

    def _serve(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error
            log.exception("the attachment ended by an error; all changed values are restored")

    def _rounds(self, seconds: float, told: Told | None, *, patient: bool) -> None:
        loop, began = self.loop, time.monotonic()
        end = began + seconds
        while not self._stopping and not self.ended and time.monotonic() < end:
            with loop.between_rounds:  # an application that comes must get the policy and the priorities of now
                self._members.look(loop)
            batches = self._round()
            self._order_tasks()
            self._members.take_turns(paused=loop.paused)
            if batches:
                self._unread.extend(batches)
                if told is not None:
                    told(batches)
            if patient or self._coverage.unfit:
                self._meet(time.monotonic() - began)
            if patient:
                patient = not self._coverage.all or bool(self._members.unplanned)
                end = max(end, min(time.monotonic(), began + PATIENCE) + seconds)
            if loop.settled:
                self._nap(end)
            wake = min(loop.next_due, end)
            while (rest := wake - time.monotonic()) > 0 and not self._stopping:
                time.sleep(min(rest, NAP))
                if self._members.journal is not None:
                    self._members.journal.tend()

    def _order_tasks(self) -> None:
        """Let Spark start tasks in the order of the last decision. A pause must not begin in between."""
        with self.loop.between_rounds:
            if self._ordering is not None and not self.loop.paused:
                self._ordering.update(each.engine for each in self._members.engines if not each.ended)

    def _round(self) -> tuple[DecisionBatch, ...]:
        """Run a round of the loop. The cost of rounds with new counter readings decides how often counters are read."""
        if self._pace is None:
            return self.loop.round()
        began, readings = time.thread_time(), self._readings
        batches = self.loop.round()
        if self._readings > readings:
            self._pace.add(time.thread_time() - began)
            for each in self._members.engines:
                each.engine.agents.counts = self._pace.period
        return batches

    @property
    def _readings(self) -> int:
        return sum(each.engine.readings for each in self._members.engines)

    def _nap(self, end: float) -> None:
        """Leave out rounds that would have nothing to do, for up to `LONG_NAP` seconds or until an agent reports."""
        now = time.monotonic()
        rest = min(now + LONG_NAP, end, *(each.calm_until for each in self._members.engines)) - now
        if rest > self.plan.rounds:
            agents = select.poll()
            for each in self._members.engines:
                with suppress(ValueError):  # this engine is being closed
                    agents.register(each.engine, select.POLLIN)
            agents.poll(rest * 1e3)
            self.loop.put_off(time.monotonic())

    def _meet(self, passed: float = math.inf) -> None:
        """Add the queries of the last round to the coverage; after a while, log the patterns that match no query."""
        if self._seen.last is None:
            return
        met = self._coverage
        met.look(self._seen.last[0].topology)
        if met.unfit and met.known and passed > PATIENCE / 2:
            there = ", ".join(sorted(met.known))
            for pattern in sorted(met.unfit):
                log.warning("no query matches '%s' (known: %s)", pattern, there, extra={"pattern": pattern})
            met.unfit.clear()

    def _close(self) -> None:
        self._closing.close()
