"""User priority: the priority that the user gave a query or an operator (Lachesis section 5.1, Alg. 2).

Priorities are given for logical operators; where several run fused as one instance, the highest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from treadle.decide.logical import to_physical
from treadle.decide.policies.shared.spec import Options
from treadle.decide.policy import Policy
from treadle.errors import ConfigError
from treadle.model import Floats, Query, Topology
from treadle.plugins import suggestion
from treadle.values import Schedule, Snapshot


class UserPriority(Policy):
    """Obeys the priority of each query; `operators` overrides it by "operator" or, stronger, by "query.operator"."""

    name: ClassVar[str] = "user-priority"
    aliases: ClassVar[tuple[str, ...]] = ("user",)
    optimises: ClassVar[str] = "what the user says"
    paper: ClassVar[str] = "Lachesis 5.1"
    steady = True

    def __init__(self, operators: Mapping[str, float] | None = None) -> None:
        self._operators = dict(operators or {})
        self._transformed: tuple[Topology, Floats] | None = None

    @classmethod
    def from_options(cls, options: Options) -> UserPriority:
        return cls({name: options.number(name) for name in options.unread()})

    def decide(self, snapshot: Snapshot) -> Schedule:
        topology = snapshot.topology
        if not self._operators:
            return Schedule(topology.priority, reason="by the priority of the query")
        if self._transformed is None:
            self._check(topology)
        if self._transformed is None or self._transformed[0] is not topology:
            self._transformed = (topology, self._transform(topology))
        return Schedule(self._transformed[1], reason="by the priority of the operator, else of the query")

    def _check(self, topology: Topology) -> None:
        """Raise a ConfigError for an operator that the first topology lacks; later its query may have ended."""
        names = {op.name for query in topology.queries for op in query.operators}
        known = names | {f"{query.name}.{op.name}" for query in topology.queries for op in query.operators}
        for name in self._operators.keys() - known:
            remedy = suggestion(name, sorted(names))
            raise ConfigError(f"there is no operator '{name}'", where=f"policy '{self.name}'", remedy=remedy)

    def _transform(self, topology: Topology) -> Floats:
        """Map priorities of all logical operators to rows, only when the topology changes."""
        by_operator = {
            (query.name, operator.name): self._priority(query, operator.name)
            for query in topology.queries
            for operator in query.operators
        }
        return to_physical(topology, by_operator)

    def _priority(self, query: Query, operator: str) -> float:
        own = self._operators.get(operator, query.priority)
        return self._operators.get(f"{query.name}.{operator}", own)
