"""What a policy is: it names the metrics it needs and turns a snapshot into a schedule. It never touches the system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from treadle.values import Schedule, Snapshot


class Policy(ABC):
    """A policy suggests, the loop vets. One without state gives equal schedules for equal snapshots."""

    name: ClassVar[str]
    needs: tuple[str, ...] = ()
    """The metrics that must be in the snapshot."""
    wants: tuple[str, ...] = ()
    """The metrics it also uses where the engine has them."""
    steady: bool = False
    """Whether it decides the same on the same snapshot, at whatever time: then it is not asked again before there is a
    new one."""

    @abstractmethod
    def decide(self, snapshot: Snapshot) -> Schedule: ...

    def state(self) -> dict[str, Any]:
        """What must be saved for the policy to go on where it was; plain values that JSON can hold."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027 (most policies have no state)
        """Go on from a saved `state()`."""
