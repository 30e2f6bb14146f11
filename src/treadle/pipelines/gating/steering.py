"""Changes the policy and the number of slots of a gate on request; slots may also follow CPU pressure.

It is used by running pipelines and by the gate of an existing application.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from treadle.decide.policy import Policy
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.slots import Elastic
from treadle.errors import EngineError
from treadle.linux.pressure import Pressure
from treadle.loop import Loop
from treadle.pipelines.hops.options import policy_of, text_of
from treadle.pipelines.hops.totals import OBJECTIVES

log = logging.getLogger("treadle.pipelines")


class Steering:
    """Control of a gate and, from `begin` on, of the loop that ranks its hops. If `elastic`, slots follow CPU pressure.

    `measured` are the objectives that are measured; a learning policy that needs others is refused.
    """

    def __init__(
        self,
        gate: Gate,
        policy: str | Policy,
        *,
        elastic: bool,
        where: str,
        measured: Collection[str] = OBJECTIVES,
    ) -> None:
        self.policy = text_of(policy)
        self._measured = measured
        self._gate = gate
        self._where = where
        self._loop: Loop | None = None
        self._pressure = Pressure() if elastic else None
        self._elastic: Elastic | None = None
        if self._pressure is not None:
            self._elastic = Elastic(gate, self._pressure, low=gate.slots, high=2 * gate.slots)

    def begin(self, loop: Loop) -> None:
        """Set the control loop, whose policy `set_policy` changes."""
        self._loop = loop

    def set_policy(self, spec: str | Policy) -> None:
        """Change the policy from the next round on; an unknown one, or one without its metrics, is refused."""
        chosen = policy_of(spec, self._measured, self._where)
        if self._loop is None:
            raise EngineError("is still starting", where=self._where, remedy="try again")
        self._loop.rebind(chosen)
        self.policy = text_of(spec)
        log.info("policy is now %s", self.policy, extra={"policy": self.policy})

    def set_slots(self, count: int) -> None:
        """Set how many batches may run at once; this ends the automatic choice."""
        self._gate.slots = count
        self._elastic = None

    def step(self) -> None:
        """Adapt the slots to the CPU pressure, unless their number is fixed."""
        if (elastic := self._elastic) is not None:  # another thread may call `set_slots`
            elastic.step()

    def close(self) -> None:
        if self._pressure is not None:
            self._pressure.close()

    def commands(self) -> dict[str, Callable[..., object]]:
        """Handlers for the control socket (`run.control_socket`), by command."""

        def policy(name: str | None = None) -> str:
            if name is not None:
                self.set_policy(name)
            return self.policy

        def slots(count: int | None = None) -> int:
            if count is not None:
                self.set_slots(count)
            return self._gate.slots

        return {"policy": policy, "slots": slots}
