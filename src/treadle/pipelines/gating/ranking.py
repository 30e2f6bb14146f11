"""What ranks the hops of a gate: one policy for all, and rules for sets of them, which are changed while it runs.

Sets are classes, as in Multi-Class: all hops of a set with a higher priority go before those of a lower one. A gate
grants one slot after the other, so there is nothing of which a hop could have a share; its patience keeps the hops of
low sets from starving.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from treadle.decide import query_rules
from treadle.decide.policies.around.query_sets import QuerySets
from treadle.decide.policy import Policy
from treadle.decide.query_rules import QueryRule
from treadle.errors import ConfigError, TreadleError
from treadle.loop import Loop
from treadle.model import Topology
from treadle.pipelines.hops.options import LEAST_PERIOD, policy_of


class Ranking:
    """The policy `own` and the rules, and the one policy that is made of both; `period` is that of `own` in seconds."""

    def __init__(self, own: Policy, rules: Any, period: float, measured: Collection[str], what: str) -> None:
        """`what` is how errors name all that is ranked, and `measured` are the objectives that are measured of it."""
        self._measured, self._what = measured, what
        self._own, self.period = own, period
        self._rules = self._read(rules)
        query_rules.check_with(own, self._rules)
        self._sets = self._made()

    @property
    def policy(self) -> Policy:
        """The policy for the loop."""
        return self._own if self._sets is None else self._sets

    @property
    def rounds(self) -> float:
        """Seconds between two rounds of the loop: the shortest period of all sets."""
        return query_rules.shortest(self._rules, self.period)

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules as values for JSON."""
        return [rule.as_json() for rule in self._rules]

    def read_as_json(self, given: Any) -> list[dict[str, Any]]:
        """Return rules as users give them as `rules` would show them."""
        return [rule.as_json() for rule in self._read(given)]

    def rule_of(self, query: str) -> str | None:
        """The pattern of the rule that counts for a query; None if there is none."""
        return next((rule.queries for rule in self._rules if rule.matches(query)), None)

    def rules_of(self, topology: Topology) -> Mapping[str, str]:
        """Instance -> the pattern of the rule that counts for it; instances without a rule are left out."""
        labels = {} if self._sets is None else self._sets.labels(topology)
        return {name: label for name, label in labels.items() if label}

    def prepared(self, loop: Loop, given: Any) -> Callable[[], None]:
        """Check rules that shall replace all others, and return the function that puts them in force."""
        rules = self._read(given)
        query_rules.check_with(self._own, rules)
        for rule in rules:
            try:
                loop.check_policy(rule.policy)
            except TreadleError as error:
                raise ConfigError(error.message, where=rule.where, remedy=error.remedy) from error
        return lambda: self.follow(loop, rules=rules)

    def check(self, own: Policy) -> None:
        """Raise a ConfigError if the rules can't be in force beside this policy."""
        query_rules.check_with(own, self._rules)

    def follow(
        self,
        loop: Loop,
        *,
        own: Policy | None = None,
        rules: Sequence[QueryRule] | None = None,
        period: float | None = None,
    ) -> None:
        """Put another policy, other rules or another period in force, from the next round on."""
        own, rules = self._own if own is None else own, self._rules if rules is None else tuple(rules)
        query_rules.check_with(own, rules)  # again, since one command may change both
        self._own, self._rules, self.period = own, rules, self.period if period is None else period
        self._sets = self._made()
        loop.rebind(self.policy)
        if loop.period() != self.rounds or period is not None:
            loop.set_period(self.rounds)

    def _read(self, given: Any) -> tuple[QueryRule, ...]:
        return query_rules.read(given, lambda spec: policy_of(spec, self._measured, self._what), least=LEAST_PERIOD)

    def _made(self) -> QuerySets | None:
        """Return the policy that is made of all; None without rules, where `own` decides alone."""
        if not self._rules:
            return None
        return QuerySets(query_rules.sets_of(self._rules, self._own, self.period), at_gate=True)
