"""Rules for sets of queries: a set has a policy, a priority and a period of its own (Lachesis section 3.1, goal G3).

A rule names its queries by a pattern. The first rule that matches a query counts; a query that no rule matches has the
policy and the period of the whole, and the priority `ORDINARY`. This module reads rules and checks them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from treadle import durations
from treadle.decide.adaptive import Adaptive
from treadle.decide.policies.around.query_sets import Periodic, QuerySet
from treadle.decide.policies.shared.spec import bare, split
from treadle.decide.policy import Policy
from treadle.errors import ConfigError, TreadleError
from treadle.plugins import suggestion

ORDINARY = 1.0
"""The priority of queries that no rule matches, and of rules without a priority."""
KEYS = ("queries", "policy", "priority", "period")
FLAG = "'alerts-*: policy=fcfs, priority=10, period=100ms'"
FORM = 'write rules as [{"queries": "alerts-*", "policy": "fcfs", "priority": 10, "period": "100ms"}]'


@dataclass(frozen=True, eq=False)
class QueryRule:
    """The queries that match the pattern `queries` are a set, in which `policy` decides every `period` seconds.

    `spec` is the policy as it was given, or the name of a Policy object. Without a period, that of the whole holds.
    """

    number: int
    queries: str
    policy: Policy
    spec: str
    priority: float = ORDINARY
    period: float | None = None

    @property
    def where(self) -> str:
        """How errors name this rule."""
        return _where(self.number, self.queries)

    def matches(self, query: str) -> bool:
        return fnmatchcase(query, self.queries)

    def as_json(self) -> dict[str, Any]:
        """Return the rule as values for JSON, from which it can be read again."""
        own = {} if self.period is None else {"period": self.period}
        return {"queries": self.queries, "policy": self.spec, "priority": self.priority, **own}


def read(given: Any, make: Callable[[str | Policy], Policy], *, least: float) -> tuple[QueryRule, ...]:
    """Return the rules from a list of mappings, or raise a ConfigError that names the rule that is wrong.

    `make` returns the policy that a rule names, `least` is the shortest period in seconds.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(f"rules can't be {given!r}", remedy=f"{FORM}, or [] for none")
    rules = tuple(_rule(number, each, make, least) for number, each in enumerate(given, 1))
    for rule in rules:
        for other in rules[: rule.number - 1]:
            if other.queries == rule.queries:
                raise ConfigError(
                    f"rule {other.number} has this pattern too", where=rule.where, remedy="leave out one of them"
                )
            if other.policy is rule.policy:
                raise ConfigError(
                    f"rule {other.number} has the same Policy object", where=rule.where, remedy="make one for each rule"
                )
    return rules


def check_with(own: Policy, rules: Sequence[QueryRule]) -> None:
    """Raise a ConfigError if these rules can't be in force while `own` decides for all other queries."""
    if rules and own.name == Adaptive.name:
        raise ConfigError(
            f"'{own.name}' judges by the figures of all queries, so it can't decide for those without a rule",
            where=rules[0].where,
            remedy="use another policy, or no rules",
        )
    for rule in rules:
        if rule.policy is own:
            remedy = "make a Policy object for each"
            raise ConfigError("the policy for all other queries is the same object", where=rule.where, remedy=remedy)


def sets_of(rules: Sequence[QueryRule], own: Policy, period: float) -> list[QuerySet]:
    """Return the sets of these rules, and the set of all other queries, for which `own` decides every `period`."""
    rounds = shortest(rules, period)

    def kept(policy: Policy, seconds: float) -> Policy:
        return Periodic(policy, seconds if seconds > rounds else 0.0)

    made = [
        QuerySet(each.queries, each.matches, kept(each.policy, each.period or period), each.priority) for each in rules
    ]
    return [*made, QuerySet("", lambda _: True, kept(own, period), ORDINARY)]


def shortest(rules: Sequence[QueryRule], period: float) -> float:
    """Return the time between two rounds: the shortest period of all sets."""
    return min([period, *(rule.period for rule in rules if rule.period is not None)])


def parse(text: str) -> dict[str, Any]:
    """Parse a rule of a command line, as `alerts-*: policy=fcfs, priority=10`; `read` checks the values."""
    pattern, colon, rest = (part.strip() for part in text.partition(":"))
    found: dict[str, Any] = {"queries": pattern}
    for pair in split(rest, ",", text) if rest else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value or key in found:
            colon = ""
            break
        found[key] = bare(value) if key == "policy" else _number(value) if key == "priority" else value
    if not colon:
        raise ConfigError(f"'{text}' is not a rule", where="--rule", remedy=f"write it as {FLAG}")
    return found


def before(given: Iterable[str], configured: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules of the command line, then those of the configuration with other patterns."""
    flags = [parse(text) for text in given]
    patterns = {rule["queries"] for rule in flags}
    return [*flags, *(dict(rule) for rule in configured if rule.get("queries") not in patterns)]


def _rule(number: int, given: Any, make: Callable[[str | Policy], Policy], least: float) -> QueryRule:
    if not isinstance(given, Mapping):
        raise ConfigError(f"can't be {given!r}", where=f"rule {number}", remedy=FORM)
    pattern = given.get("queries")
    where = _where(number, pattern)
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"there is no key '{key}'", where=where, remedy=suggestion(str(key), KEYS))
    if not isinstance(pattern, str) or not pattern.strip():
        raise ConfigError("has no pattern", where=where, remedy='name its queries, as queries = "alerts-*"')
    if given.get("policy") is None:
        raise ConfigError("has no policy", where=where, remedy='name one, as policy = "fcfs"')
    priority, period = given.get("priority", ORDINARY), given.get("period")
    if isinstance(priority, bool) or not isinstance(priority, int | float) or not 0 <= priority < math.inf:
        raise ConfigError(f"its priority can't be {priority!r}", where=where, remedy="use a number of at least 0")
    if period is not None:
        period = durations.seconds(period, what="its period", where=where, least=least)
    policy = _policy(given["policy"], make, where)
    spec = given["policy"] if isinstance(given["policy"], str) else policy.name
    return QueryRule(number, pattern, policy, spec, float(priority), period)


def _policy(spec: Any, make: Callable[[str | Policy], Policy], where: str) -> Policy:
    try:
        policy = make(spec)
    except TreadleError as error:
        raise ConfigError(error.message, where=where, remedy=error.remedy) from error
    if policy.name == Adaptive.name:
        raise ConfigError(
            f"'{policy.name}' judges by the figures of all queries, not by those of one set",
            where=where,
            remedy="use another policy",
        )
    return policy


def _where(number: int, pattern: object) -> str:
    return f"rule {number} ('{pattern}')" if isinstance(pattern, str) and pattern.strip() else f"rule {number}"


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
