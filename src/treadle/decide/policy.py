"""The interface of policies: a policy names the metrics it needs and turns a snapshot into a schedule, nothing more."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from treadle.values import Schedule, Snapshot


class Policy(ABC):
    """Suggests schedules, which the loop checks. A stateless policy gives equal schedules for equal snapshots."""

    name: ClassVar[str]
    needs: tuple[str, ...] = ()
    """The metrics that must be in the snapshot."""
    wants: tuple[str, ...] = ()
    """The metrics it also uses where the engine has them."""
    steady: bool = False
    """True if the schedule depends on the snapshot only, not on time; then `decide` is called for new snapshots only.
    """

    @abstractmethod
    def decide(self, snapshot: Snapshot) -> Schedule: ...

    def state(self) -> dict[str, Any]:
        """Return what must be saved so that the policy can continue later, as plain JSON values."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027 (most policies have no state)
        """Continue from a saved `state()`."""

    def rest(self) -> None:  # noqa: B027 (most policies keep nothing on disk)
        """Save what is kept on disk. The loop calls this at its end, and when another policy replaces this one.

        `decide` may be called again later.
        """
