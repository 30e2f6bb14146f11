"""The baseline: leave everything to the operating system, as it was found (Haren section 7.2, "Dedicated Threads")."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class Nothing(Policy):
    """Suggests nothing: all priorities are unknown, so everything stays as it was found."""

    name: ClassVar[str] = "none"
    aliases: ClassVar[tuple[str, ...]] = ("os",)
    optimises: ClassVar[str] = "nothing (baseline)"
    paper: ClassVar[str] = "Haren 7.2"
    steady = True

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(np.full(len(snapshot.topology), np.nan), reason="left to the operating system")
