"""What can be changed while a gate works: the policy in charge, and the slots, by hand or by the pressure on the CPU.

A running pipeline and the gate of an application have it in common; what runs behind the gate, it does not know.
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
    """For a gate and, from `begin` on, a loop that ranks at it. With `elastic` the slots follow the CPU's pressure.

    `measured` are the objectives by which a policy that learns can be judged there.
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
        """From now on there is somebody to tell of another policy."""
        self._loop = loop

    def set_policy(self, spec: str | Policy) -> None:
        """From the next round on another policy decides. One that is unknown or can't be served changes nothing."""
        chosen = policy_of(spec, self._measured, self._where)
        if self._loop is None:
            raise EngineError("is still starting", where=self._where, remedy="try again")
        self._loop.rebind(chosen)
        self.policy = text_of(spec)
        log.info("policy is now %s", self.policy, extra={"policy": self.policy})

    def set_slots(self, count: int) -> None:
        """How many may run at once from now on; that is then no more chosen automatically."""
        self._gate.slots = count
        self._elastic = None

    def step(self) -> None:
        """Let the slots follow the pressure, if they are to."""
        if (elastic := self._elastic) is not None:  # a client of the control socket may take it away
            elastic.step()

    def close(self) -> None:
        if self._pressure is not None:
            self._pressure.close()

    def commands(self) -> dict[str, Callable[..., object]]:
        """What can be asked over a control socket; how requests come and go is `ctl`'s business."""

        def policy(name: str | None = None) -> str:
            if name is not None:
                self.set_policy(name)
            return self.policy

        def slots(count: int | None = None) -> int:
            if count is not None:
                self.set_slots(count)
            return self._gate.slots

        return {"policy": policy, "slots": slots}
