"""Which group of slots each hop is in, as a part of a running pipeline or gate: its binding, settings and status."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from treadle.control.settings import Setting, duration
from treadle.decide.assignment import NONE, Assignment, assigner_of
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.stats import ANY
from treadle.errors import ConfigError
from treadle.loop import Binding, Loop
from treadle.pipelines.hops.options import LEAST_PERIOD

KNOB = "owner"
PERIOD = 1.0
"""Seconds between two calls of f: some batches are done in this time, so a new assignment has an effect."""


class Assign(NamedTuple):
    """What a user wants: f, as a name or an object for `assigner_of`, and the seconds between two calls of it."""

    f: object = NONE
    period: float = PERIOD


UNASSIGNED = Assign()


class Assigning:
    """The f of a gate, while the gate is in use."""

    def __init__(self, gate: Gate, wanted: Assign, where: str) -> None:
        self._gate = gate
        self._where = where
        self._policy = Assignment(assigner_of(wanted.f), lambda: gate.group_count)
        self._period = wanted.period

    def binding(self) -> Binding:
        """Return the binding for the control loop."""
        return Binding(self._policy, KNOB, period=self._period)

    def settings(self, loop: Loop, number: int) -> dict[str, Setting]:
        """Return the settings. `number` is that of the binding in the loop."""
        return {
            "assign": Setting(lambda: self._policy.chosen.name, partial(self._prepared, loop, number)),
            "assign_period": duration(
                lambda: loop.period(number),
                lambda seconds: loop.set_period(seconds, number),
                *("assign_period", self._where),
                least=LEAST_PERIOD,
            ),
        }

    def status(self) -> dict[str, Any]:
        """Return f and the groups as JSON values; empty if all slots serve one line."""
        groups = self._gate.stats.groups
        if not groups and self._policy.chosen.name == NONE:
            return {}
        loads = self._policy.loads
        return {
            "assign": self._policy.chosen.name,
            "assign_refused": self._policy.refused or None,
            "groups": [
                {
                    "slots": group.slots,
                    "hops": len(group.hops),
                    "load": round(math.fsum(loads.get(name, 0.0) for name in group.hops), 3),
                    "running": group.running,
                    "busy_seconds": round(group.held, 3),
                }
                for group in groups
            ],
        }

    def _prepared(self, loop: Loop, number: int, assign: object) -> Callable[[], None]:
        try:
            chosen = assigner_of(assign)
            self._policy.check(chosen)
        except ConfigError as error:
            raise ConfigError(error.message, where=error.where or self._where, remedy=error.remedy) from error

        def put() -> None:
            self._policy.use(chosen)
            loop.set_period(loop.period(number), number)  # so that it is called in the next round

        return put


def group_of(group: int) -> int | None:
    """Return a hop's group for JSON: None if the hop may use any slot."""
    return None if group == ANY else group
