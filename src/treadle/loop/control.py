"""The main loop of Lachesis (Alg. 1): sample the engines, run the policies that are due, apply their decisions, sleep.

A failure of one engine or one policy does not affect the others. Rounds that the loop missed are skipped, not made up
for. All changes are undone at the end of the loop's `with` block, also after an error or a signal.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from treadle.decide.policy import Policy
from treadle.enforce import Enforcer, Outcomes
from treadle.enforce.recovery.journal import Journal
from treadle.errors import ConfigError
from treadle.loop import checks
from treadle.loop.binding import Binding
from treadle.loop.engine import Clock, Engine, SystemClock
from treadle.loop.fitted import fitted
from treadle.loop.knob_controller import KnobController, tell_left
from treadle.loop.knob_targets import View
from treadle.loop.quality_rule import Quality, QualityRule
from treadle.loop.records import DecisionBatch, DecisionLog, log_changes
from treadle.loop.rule import SLIVER, Rule
from treadle.loop.signals import Signals
from treadle.loop.stats import Stats
from treadle.loop.translate import Order, translate
from treadle.loop.trouble import Trouble
from treadle.loop.watch import Watch
from treadle.values import Schedule, Snapshot

log = logging.getLogger("treadle.loop")

NAP = 0.2
"""Seconds between checks of the stop event."""


class Loop:
    """The control loop. As a context manager it puts back what it found: on exit, on errors and on signals.

    - `log_size`: how many decisions are kept.
    - `stale_after`: for how many of a policy's rounds a decision stays while the priority of its target is unknown.
    - `sample_timeout`: the seconds within which an engine must answer; None, or an `in_process` engine: no limit.
    - `patience`: the seconds that a round waits for an answer before it uses the last sample; None: until it arrives.
    - `longest_pause`: the longest pause in seconds before what failed is tried again.
    - `tau`, `forget`: the seconds over which metrics are averaged, and for which a metric that is no longer measured
      keeps its average (see `Provider`).
    - `metrics`: computed in addition to those that the policies need, so that a later policy (`rebind`) has a history.
    - `journal`: where the values found are written, so that another process puts them back if this one is killed.
    - `quality`: if given, the loop also decides which share of its rows each query keeps.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        bindings: Sequence[Binding],
        *,
        clock: Clock | None = None,
        dry_run: bool = False,
        log_size: int = 100_000,
        stale_after: int = 10,
        sample_timeout: float | None = 5.0,
        patience: float | None = None,
        longest_pause: float = 60.0,
        tau: float = 2.0,
        forget: float = 60.0,
        metrics: Collection[str] = (),
        journal: Journal | None = None,
        quality: Quality | None = None,
    ) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        self.dry_run = dry_run
        self.stats = Stats()
        self.decisions = DecisionLog(log_size)
        self._stale_after = stale_after
        self._journal = None if dry_run else journal
        self._enforcers: dict[tuple[str, str, int], Enforcer] = {}
        self._left: list[Enforcer] = []
        """Enforcers of removed engines with changes that could not be undone yet."""
        self._knob_troubles: dict[str, Trouble] = {}
        self._views: dict[tuple[Watch, ...], View] = {}
        self._signals = Signals(self._restore_twice)
        self.between_rounds = threading.RLock()
        """While it is held, no round runs in another thread."""
        self.paused = False
        """Whether nothing is decided: all changed values are restored, and rounds do nothing."""
        engines = [fitted(e, {b.knob for b in bindings if b.may_concern(e.name)}) for e in engines]
        checks.check(engines, bindings, stale_after, log_size, sample_timeout)
        served = {engine.name: checks.served(engine, bindings) for engine in engines}

        def watch_over(engine: Engine, served: Sequence[Binding]) -> Watch:
            wanted = checks.metrics(engine, served) | set(metrics)
            trouble = Trouble(f"engine '{engine.name}'", min(b.period for b in served), longest_pause)
            return Watch(engine, wanted, trouble, sample_timeout, patience=patience, tau=tau, forget=forget)

        self._watch_over = watch_over
        self._watches = tuple(watch_over(e, served[e.name]) for e in engines if served[e.name])
        watches = [[watch for watch in self._watches if each in served[watch.name]] for each in bindings]
        self._rules = tuple(Rule.of(number, bindings, at, longest_pause) for number, at in enumerate(watches))
        self._troubles = [*(watch.trouble for watch in self._watches), *(rule.trouble for rule in self._rules)]
        self._quality = None if quality is None else QualityRule(quality, longest_pause)
        self._troubles += [] if self._quality is None else [self._quality.trouble]

    def __enter__(self) -> Self:
        self._signals.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._signals.hold("restore"):
            try:
                self._restore_twice()
            finally:
                self._signals.remove()
                self.rest()

    @property
    def next_due(self) -> float:
        """Clock time at which a policy or the step for quality of data is due next; now, if none has run yet."""
        dues = [rule.due for rule in self._rules if not math.isnan(rule.due)]
        if self._quality is not None and not self.paused and math.isfinite(self._quality.next_due):
            dues.append(self._quality.next_due)
        return min(dues) if dues else self.clock.now()

    def run(
        self, seconds: float | None = None, *, until: float | None = None, stop: threading.Event | None = None
    ) -> None:
        """Run a round whenever a policy is due: for some seconds, until a time of the clock, or until `stop` is set."""
        end = math.inf if until is None else until
        end = min(end, math.inf if seconds is None else self.clock.now() + seconds)
        early = SLIVER * min(rule.binding.period for rule in self._rules)
        while self.clock.now() < end - early and not (stop and stop.is_set()):
            self.round()
            self._sleep(min(self.next_due, end), stop)

    def round(self, *, force: bool = False) -> tuple[DecisionBatch, ...]:
        """Run the step for quality of data if it is due, and the policies that are due now (with `force`, all of them).

        Carry out what the policies decide, and return their changes.
        """
        self.keep_promises()
        with self.between_rounds:
            now = self.clock.now()
            due = [rule for rule in self._rules if rule.takes_turn(now, self.stats, force=force)]
            return self._round(due, now) if due and not self.paused else ()

    def _round(self, due: Sequence[Rule], now: float) -> tuple[DecisionBatch, ...]:
        with self._signals.hold("round"), self.stats.round():
            began = time.perf_counter()
            watches = dict.fromkeys(watch for rule in due for watch in rule.watches)
            looks = [watch.looks for watch in watches]
            for watch in watches:
                watch.look(now)
            if self._journal is not None:
                self._journal.tend()
            batches = [batch for rule in due if not rule.is_settled() for batch in self._carry_out(rule, now)]
            self._record(batches)
            looked = [watch for watch, before in zip(watches, looks, strict=True) if watch.looks > before]
            rules = [rule.took for rule in self._rules]
            self.stats.weigh([watch.took for watch in looked], rules, time.perf_counter() - began)
        return tuple(batches)

    def keep_promises(self) -> None:
        """Run only the step for quality of data, if it is due."""
        if self._quality is not None and not self.paused:
            with self.between_rounds:
                self._quality.round(self.clock.now())

    def pause(self) -> None:
        """Restore all changed values and keep all rows, until `resume`."""
        with self.between_rounds:
            self.paused = True
            if self._quality is not None:
                self._quality.pause()
            self._restore_twice()

    def resume(self) -> None:
        """Decide again, from the next round on."""
        with self.between_rounds:
            self.paused = False
            for rule in self._rules:
                rule.seen = None

    @property
    def settled(self) -> bool:
        """Whether no policy has anything to do in the next round unless an engine has news."""
        return all(rule.is_settled() for rule in self._rules)

    def put_off(self, until: float) -> None:
        """Leave out all rounds before this time: they don't count as skipped, and later rounds keep their times."""
        for rule in self._rules:
            rule.put_off(until)

    def rebind(self, policy: Policy | Binding, number: int = 0) -> None:
        """Replace binding `number` by one of the same knob, or only its policy, from the next round on.

        If a metric can't be provided, raise an EngineError and change nothing. Any thread may call this.
        """
        self.check_policy(policy.policy if isinstance(policy, Binding) else policy, number)
        with self.between_rounds:
            rule = self._rules[number]
            new = policy if isinstance(policy, Binding) else replace(rule.binding, policy=policy)
            for watch in rule.watches:
                watch.want(checks.metrics(watch.engine, [new]))
            at = self._troubles.index(rule.trouble)
            self._troubles[at] = rule.rebind(new)
            self._views.clear()

    def check_policy(self, policy: Policy, number: int = 0) -> None:
        """Raise an EngineError if an engine of binding `number` can't provide a metric that this policy needs."""
        checks.check_metrics(policy, [watch.engine for watch in self._rules[number].watches])

    def binding(self, number: int = 0) -> Binding:
        return self._rules[number].binding

    def period(self, number: int = 0) -> float:
        return self._rules[number].binding.period

    def set_period(self, seconds: float, number: int = 0) -> None:
        """Let binding `number` decide every so many seconds, from now on."""
        with self.between_rounds:
            self._rules[number].set_period(seconds, self.clock.now())

    def add(self, engine: Engine) -> None:
        """Add an engine for all bindings that it can serve. Must not be called while a round runs."""
        bindings = [rule.binding for rule in self._rules]
        engine = fitted(engine, {b.knob for b in bindings if b.may_concern(engine.name)})
        if engine.name in [watch.name for watch in self._watches]:
            raise ConfigError(f"two engines are named '{engine.name}'", where="loop", remedy="rename one of them")
        served = checks.served(engine, bindings)
        if not served:
            return
        watch = self._watch_over(engine, served)
        self._watches += (watch,)
        self._troubles.append(watch.trouble)
        self._views.clear()
        for rule in self._rules:
            if rule.binding in served:
                rule.watches += (watch,)

    def remove(self, name: str) -> None:
        """Undo this engine's changes and remove the engine. Must not be called while a round runs.

        Changes that can't be undone now are tried again at the end.
        """
        mine = {key: enforcer for key, enforcer in self._enforcers.items() if key[0] == name}
        self._left += [e for e, outcomes in zip(mine.values(), self._restore(mine.values()), strict=True)
                       if outcomes.failures]  # fmt: skip
        for key in mine:
            del self._enforcers[key]
        for what in [what for what in self._knob_troubles if what.startswith(f"{name}/")]:
            self._troubles.remove(self._knob_troubles.pop(what))
        for watch in [watch for watch in self._watches if watch.name == name]:
            watch.rest()
            self._troubles.remove(watch.trouble)
        self._watches = tuple(watch for watch in self._watches if watch.name != name)
        self._views.clear()
        for rule in self._rules:
            rule.watches = tuple(watch for watch in rule.watches if watch.name != name)
            rule.controllers = {key: controller for key, controller in rule.controllers.items() if key[0] != name}
            rule.view = rule.seen = None
        self._count_failures()

    def rest(self) -> None:
        """End all threads, and let the policies save what they keep; the next round starts new threads."""
        for watch in self._watches:
            watch.rest()
        for rule in self._rules:
            rule.rest()
        if self._quality is not None:
            self._quality.rest()

    def restore(self) -> tuple[Outcomes, ...]:
        """Undo all changes. Harmless if there are none, and when called again."""
        return self._restore(reversed([*self._left, *self._enforcers.values()]))

    def _restore(self, enforcers: Iterable[Enforcer]) -> tuple[Outcomes, ...]:
        with self._signals.hold("restore"):
            done = tuple(enforcer.restore() for enforcer in enforcers)
            count = sum(len(outcomes.applied) for outcomes in done)
            if count:
                self.stats.restored += count
                what = "would put back" if self.dry_run else "put back"
                log.info("%s %d values", what, count, extra={"put_back": count, "dry_run": self.dry_run})
            for outcomes in done:
                tell_left(outcomes)
                for failure in outcomes.failures:
                    log.warning("could not put back %s", failure, extra={"knob": failure.knob})
        return done

    def _restore_twice(self) -> None:
        """Undo all changes while signals wait; if any could not be undone, try once more."""
        with self._signals.hold("restore"):
            if any(outcomes.failures for outcomes in self.restore()):
                self.restore()

    def _sleep(self, wake: float, stop: threading.Event | None) -> None:
        while (rest := wake - self.clock.now()) > 0 and not (stop and stop.is_set()):
            self.clock.sleep(min(rest, NAP) if stop else rest)
            if not stop:
                return

    def _carry_out(self, rule: Rule, now: float) -> list[DecisionBatch]:
        """Decide, translate, enforce. A policy that fails leaves all of its rows unknown."""
        try:
            view = self._look_again(rule)
        except ConfigError as error:  # the engines can't be merged, so no row is known
            rule.trouble.failed(now, error)
            return []
        began = time.perf_counter()
        snapshot = view.snapshot()
        schedule, orders = self._decide(rule, view, snapshot, now)
        decided = time.perf_counter()
        batches: list[DecisionBatch] = []
        settled = rule.binding.policy.steady and not rule.trouble.streak
        for order in orders:
            controller = self._controller_of(rule, order)
            aim, all_turned = controller.carry_out(order, now)
            settled = settled and controller.settled
            for turned in all_turned:
                batches.append(rule.batch(order.part.watch, aim, turned, schedule, snapshot, now))
        rule.seen = rule.looks() if settled else None
        rule.took = (decided - began, time.perf_counter() - decided)
        return batches

    def _decide(self, rule: Rule, view: View, snapshot: Snapshot, now: float) -> tuple[Schedule, list[Order]]:
        suffix = f"-{len(rule.before) + 1}" if rule.before else ""
        if not rule.trouble.waits(now) and view.answered():
            try:
                schedule = checks.vetted(rule.binding.policy.decide(snapshot), snapshot)
                orders = translate(rule.binding, view, rule.mine, schedule, suffix)
            except Exception as error:
                rule.trouble.failed(now, error)
            else:
                rule.trouble.worked()
                return schedule, orders
        unknown = Schedule(np.full(len(view.topology), np.nan))
        return unknown, translate(rule.binding, view, rule.mine, unknown, suffix)

    def _look_again(self, rule: Rule) -> View:
        """Return a current view of the rule's engines; rules with the same engines share one view."""
        view = self._views.get(rule.watches)
        if view is None or not view.shows(rule.watches):
            view = self._views[rule.watches] = View(rule.watches)
        if rule.view is not view:
            rule.view, rule.mine = view, view.rows_of(rule.binding, rule.before)
        return view

    def _controller_of(self, rule: Rule, order: Order) -> KnobController:
        """Return the controller of the order's knob, made if there is none yet.

        Bindings share a knob's enforcer, and so the values found, unless the knob is for groups.
        """
        watch = order.part.watch
        controller = rule.controllers.get((watch.name, order.knob))
        if controller is None:
            knob = watch.knobs[order.knob]
            key = (watch.name, order.knob, rule.number if knob.per == "group" else -1)
            enforcer = self._enforcers.setdefault(key, Enforcer(knob, dry_run=self.dry_run, journal=self._journal))
            what = f"{watch.name}/{order.knob}"
            if what not in self._knob_troubles:
                self._knob_troubles[what] = Trouble(f"knob '{what}'")
                self._troubles.append(self._knob_troubles[what])
            controller = rule.controllers[watch.name, order.knob] = KnobController(
                enforcer, self._knob_troubles[what], self._stale_after
            )
        return controller

    def _record(self, batches: list[DecisionBatch]) -> None:
        """Record what was changed and what failed."""
        if any(trouble.news for trouble in self._troubles):
            self._count_failures()
        count = sum(self.decisions.append(batch) for batch in batches)
        if not count:
            return
        self.stats.changes += count
        if log.isEnabledFor(logging.INFO):
            log_changes(count, batches, dry_run=self.dry_run)

    def _count_failures(self) -> None:
        stats = self.stats
        stats.failures = {watch.name: watch.trouble.total for watch in self._watches}
        stats.policy_failures = dict.fromkeys((rule.binding.policy.name for rule in self._rules), 0)
        for rule in self._rules:
            stats.policy_failures[rule.binding.policy.name] += rule.trouble.total
        stats.knob_failures = {what: trouble.total for what, trouble in self._knob_troubles.items()}
        stats.troubles = {trouble.what: trouble.error for trouble in self._troubles if trouble.streak}
        for trouble in self._troubles:
            trouble.news = False
