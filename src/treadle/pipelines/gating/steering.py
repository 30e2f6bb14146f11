"""Changes the policy and the number of slots of a gate on request; slots may also follow CPU pressure.

It is used by running pipelines and by the gate of an existing application.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from treadle.control.settings import Setting, Settings, duration, flag
from treadle.decide import learner_settings
from treadle.decide.adaptive import Adaptive
from treadle.decide.batch import BatchSizer, Rows, batch_size
from treadle.decide.policy import Policy
from treadle.enforce.gate.gate import Gate, checked_count
from treadle.enforce.gate.slots import Elastic, starting_slots
from treadle.errors import EngineError
from treadle.linux.pressure import Pressure
from treadle.loop import Loop
from treadle.pipelines.gating.assigning import Assigning
from treadle.pipelines.gating.ranking import Ranking
from treadle.pipelines.hops.options import LEAST_PERIOD, policy_of, text_of
from treadle.pipelines.hops.totals import OBJECTIVES


class Steering:
    """Control of a gate and, from `begin` on, of the loop that ranks its hops. If `elastic`, slots follow CPU pressure.

    `measured` are the objectives that are measured; a learning policy that needs others is refused. With `assigning`
    slots can be put into groups; its binding must be the loop's last.
    """

    def __init__(
        self,
        gate: Gate,
        policy: str | Policy,
        *,
        elastic: bool,
        where: str,
        measured: Collection[str] = OBJECTIVES,
        assigning: Assigning | None = None,
    ) -> None:
        self.policy = text_of(policy)
        self.assigning = assigning
        self.ranking: Ranking | None = None
        """What ranks the hops, from `begin` on."""
        self._measured = measured
        self._gate = gate
        self._where = where
        self._settings: Settings | None = None
        self._loop: Loop | None = None
        self._pressure = Pressure() if elastic else None
        self._elastic: Elastic | None = None
        if self._pressure is not None:
            self._elastic = Elastic(gate, self._pressure, low=gate.slots, high=2 * gate.slots)

    def begin(
        self,
        loop: Loop,
        ranking: Ranking,
        sizer: BatchSizer | None = None,
        more: Mapping[str, Setting] = MappingProxyType({}),
    ) -> None:
        """Set the control loop, what ranks the hops in it, and what decides the size of batches, if anything does.

        `more` are settings of what is scheduled, beside those of loop and gate.
        """
        self._loop, self.ranking = loop, ranking
        self._settings = Settings({**self._all(loop, ranking, sizer), **more}, loop.between_rounds, self._where)

    @property
    def settings(self) -> Settings:
        """All settings that can be changed while it runs."""
        if self._settings is None:
            raise EngineError("is still starting", where=self._where, remedy="try again")
        return self._settings

    def set_policy(self, spec: str | Policy) -> None:
        """Change the policy from the next round on; an unknown one, or one without its metrics, is refused."""
        self.settings.set({"policy": spec})

    def set_slots(self, count: int) -> None:
        """Set how many batches may run at once; this ends the automatic choice."""
        self.settings.set({"slots": count})

    def learned(self) -> dict[str, Any] | None:
        """The status of the adaptive policy in charge; None if another policy is."""
        found = None if self._loop is None else _learner_of(self._loop.binding().policy)
        return None if found is None else found.status()

    def step(self) -> None:
        """Adapt the slots to the CPU pressure, unless their number is fixed or nothing is held back."""
        elastic = self._elastic  # another thread may change it
        if elastic is not None and not self._gate.opened:
            elastic.step()

    def assigned(self) -> dict[str, Any]:
        """The groups of slots as JSON values; empty if there are none."""
        return {} if self.assigning is None else self.assigning.status()

    def close(self) -> None:
        if self._pressure is not None:
            self._pressure.close()

    def commands(self) -> dict[str, Callable[..., object]]:
        """Handlers for the control socket, by command."""

        def policy(name: str | None = None) -> str:
            if name is not None:
                self.set_policy(name)
            return self.policy

        def slots(count: int | None = None) -> int:
            if count is not None:
                self.set_slots(count)
            return self._gate.slots

        def set_(settings: dict[str, Any], dry_run: bool = False) -> object:
            return self.settings.commands()["set"](settings, dry_run)

        return {
            "policy": policy,
            "slots": slots,
            "settings": lambda: self.settings.read(),
            "set": set_,
            "history": lambda: self.settings.commands()["history"](),
        }

    def _all(self, loop: Loop, ranking: Ranking, sizer: BatchSizer | None) -> dict[str, Setting]:
        gate, where = self._gate, self._where

        def set_period(seconds: float) -> None:
            ranking.follow(loop, period=seconds)

        found = {
            "policy": Setting(lambda: self.policy, partial(self._prepared_policy, loop)),
            "rules": Setting(lambda: ranking.rules, partial(self._prepared_rules, loop), ranking.read_as_json),
            "slots": Setting(lambda: gate.slots if self._elastic is None else "auto", self._prepared_slots),
            "period": duration(lambda: ranking.period, set_period, "period", where, least=LEAST_PERIOD),
            "patience": duration(lambda: gate.patience, partial(setattr, gate, "patience"), "patience", where),
            "express": Setting(lambda: gate.express, self._prepared_express),
            "paused": flag(lambda: loop.paused, partial(self._pause, loop), "paused", where),
        }
        found |= learner_settings.make(
            lambda: _learner_of(loop.binding().policy), partial(self._check, loop), partial(self._adopt, loop), where
        )
        if self.assigning is not None:
            found |= self.assigning.settings(loop, number=1)
        if sizer is not None:
            found["batch"] = Setting(
                lambda: _shown(sizer.size),
                lambda size: _prepared_batch(sizer, size, where),
                lambda size: _shown(batch_size(size, where)),
            )
        return found

    def _prepared_policy(self, loop: Loop, spec: str | Policy) -> Callable[[], None]:
        chosen = policy_of(spec, self._measured, self._where)
        loop.check_policy(chosen)
        ranking = self._begun
        ranking.check(chosen)

        def put() -> None:
            ranking.follow(loop, own=chosen)
            self.policy = text_of(spec)

        return put

    def _check(self, loop: Loop, policy: Policy) -> None:
        policy_of(policy, self._measured, self._where)
        loop.check_policy(policy)

    def _adopt(self, loop: Loop, learner: Adaptive) -> None:
        """Let the loop follow an adaptive policy whose objectives or candidates were changed."""
        self._begun.follow(loop, own=learner)
        self.policy = learner.spec or self.policy

    def _prepared_rules(self, loop: Loop, given: Any) -> Callable[[], None]:
        return self._begun.prepared(loop, given)

    @property
    def _begun(self) -> Ranking:
        assert self.ranking is not None  # settings are read from `begin` on
        return self.ranking

    def _prepared_slots(self, count: int | str) -> Callable[[], None]:
        if count == "auto":
            if self._pressure is None:
                self._pressure = Pressure()
            pressure = self._pressure

            def put() -> None:
                slots = starting_slots("auto")
                self._elastic = self._elastic or Elastic(self._gate, pressure, low=slots, high=2 * slots)

            return put
        slots = checked_count(count, "slots", 1)

        def fix() -> None:
            self._elastic = None
            self._gate.slots = slots

        return fix

    def _prepared_express(self, count: int) -> Callable[[], None]:
        return partial(setattr, self._gate, "express", checked_count(count, "express", 0))

    def _pause(self, loop: Loop, paused: bool) -> None:
        """Hold no batch back and restore all changed values, or decide again."""
        (loop.pause if paused else loop.resume)()
        self._gate.opened = paused


def _learner_of(policy: Policy) -> Adaptive | None:
    return policy if isinstance(policy, Adaptive) else None


def _prepared_batch(sizer: BatchSizer, size: Any, where: str) -> Callable[[], None]:
    return partial(sizer.set_size, batch_size(size, where))


def _shown(size: float | Rows) -> float | str:
    return str(size) if isinstance(size, Rows) else size
