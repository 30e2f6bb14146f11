"""The base of policies that wrap one other policy."""

from __future__ import annotations

from typing import Any

from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Around(Policy):
    """Wraps another policy, and by default decides as it does, with its name, metrics and state."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]
        self.needs, self.wants, self.steady = inner.needs, inner.wants, inner.steady

    def decide(self, snapshot: Snapshot) -> Schedule:
        return self.inner.decide(snapshot)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load(self, state: dict[str, Any]) -> None:
        self.inner.load(state)

    def rest(self) -> None:
        self.inner.rest()
