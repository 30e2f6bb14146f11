"""HR: the most results per CPU time first, for the least mean latency (Lachesis section 5.1, Haren 7.2).

The metric `global_rate` is computed in `observe/catalogue.py`, with sums over branches; here it becomes a priority.
"""

from __future__ import annotations

from typing import ClassVar

from treadle.decide.policies.shared.columns import lead
from treadle.decide.policy import Policy
from treadle.values import Schedule, Snapshot


class HighestRate(Policy):
    """Runs productive, inexpensive paths first: results per CPU second from here to the sinks."""

    name: ClassVar[str] = "highest-rate"
    aliases: ClassVar[tuple[str, ...]] = ("hr",)
    optimises: ClassVar[str] = "mean latency"
    paper: ClassVar[str] = "Lachesis 5.1; Haren 7.2; Sharaf et al. 2008"
    steady = True
    needs = ("global_rate",)

    def decide(self, snapshot: Snapshot) -> Schedule:
        rate = snapshot["global_rate"]
        says = lead(snapshot.topology, rate, "makes {:.3g} results per CPU second")
        return Schedule(rate, spacing="log", reason="highest output rate first" + says)
