"""What `enforce` means: which knobs are needed, and which policy turns which knob.

`enforce` names one or several of the enforcers `nice`, `cgroup`, `rt`, `slice` and `quota`, joined by `+`, each with
options as in `rt:share=0.8`. With cgroups of queries, users' priorities decide between the cgroups, and the policy
decides inside of them (Lachesis section 6.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from treadle.attachment.policies import sets
from treadle.attachment.policies.around import AdaptiveUnderAttach, ByShare, Caps, Grouped, Nested, Seen, WithinQuery
from treadle.attachment.policies.limits import FINE, STEPS, WIDEST, limits_of
from treadle.attachment.policies.threads import (
    BatchStartThreadsFirst,
    HelpersFirst,
    HelpersIfNamed,
    InProportion,
    JvmServiceThreadsFirst,
    JvmServiceThreadsUnchanged,
    MainsOnly,
    SourcesLast,
)
from treadle.decide import adaptive, query_rules, registry
from treadle.decide.policies import CongestionAware, Fcfs, HighestRate, MultiClass, QueueSize, UserPriority
from treadle.decide.policies.around.query_sets import QuerySets
from treadle.decide.policy import Policy
from treadle.decide.query_rules import QueryRule
from treadle.decide.transform import NICE_STEP, Scale, nice, nice_of_shares, owner, rt, shares, slices, weight
from treadle.engines.spark.offers import OFFERS, offered
from treadle.errors import ConfigError
from treadle.loop import Binding
from treadle.observe.plan import make_plan, plannable
from treadle.plugins import suggestion

SINGLE = ("downstream-first", "nice")
"""The default policy and enforcer if all queries have the same priority."""
SEVERAL = ("user-priority", "nice")
"""The default policy and enforcer if queries have different priorities."""
RULED = "cgroup+nice"
"""The default enforcer if rules make sets of queries: a CPU group for each set, and its policy inside by nice."""
LEAST_PERIOD = 0.01
"""Minimum period in seconds. A round costs some tenths of a millisecond, and agents sample 8 ms before each round."""
LEARNT = {"candidates": "downstream-first+queue-size+congestion-aware", "objective": "max throughput+min total_queue"}
"""The default candidates and objectives of a learner."""
WHERE = "enforce"


AUTO = "auto"


class EnforcerSpec(NamedTuple):
    """One enforcer: the kernel's knobs that it turns, and the options it takes with their defaults."""

    knobs: tuple[str, ...]
    options: Mapping[str, Any]


PARTS: Mapping[str, EnforcerSpec] = {
    "nice": EnforcerSpec(("nice",), {"low": -math.inf, "high": math.inf, "helpers": AUTO}),
    "cgroup": EnforcerSpec(("group", "shares"), {"by": "query", "low": 0.0, "high": 0.0}),
    "rt": EnforcerSpec(("rt",), {"fifo": False, "share": 0.9, "low": 1.0, "high": 99.0, "helpers": True}),
    "slice": EnforcerSpec(("slice",), {"batch": True, "low": 0.0001, "high": 0.1}),
    "quota": EnforcerSpec(("group", "quota"), {}),
}


@dataclass(frozen=True)
class Plan:
    """What the attachment does: `parts` are its enforcers by name, with all their options."""

    policy: Policy
    period: float
    parts: Mapping[str, Mapping[str, Any]]
    caps: Mapping[str, float] = field(default_factory=dict)
    queries: tuple[str, ...] = ("*",)
    strict: bool = False
    """Whether only the order of users' priorities counts; otherwise they are shares of the CPU."""
    rules: tuple[QueryRule, ...] = ()
    """Sets of queries with other policies; `policy` and `period` are those of all other queries."""

    @property
    def rounds(self) -> float:
        """Seconds between two rounds: the shortest period of all sets."""
        return query_rules.shortest(self.rules, self.period)

    @property
    def _metrics(self) -> set[str]:
        """All metrics that any policy uses."""
        policies = (self.policy, *(rule.policy for rule in self.rules))
        return {name for policy in policies for name in (*policy.needs, *policy.wants)}

    @property
    def enforce(self) -> str:
        """The enforcers as a user would write them, with the options that are not the defaults."""
        return "+".join(_written(name, options) for name, options in self.parts.items())

    @property
    def learner(self) -> adaptive.Adaptive | None:
        """The adaptive policy in charge; None if another policy is."""
        return self.policy.learner if isinstance(self.policy, AdaptiveUnderAttach) else None

    def learning(self, learner: adaptive.Adaptive) -> Plan:
        """Return this plan with an adaptive policy, or raise a ConfigError if not enough is measured for it."""
        return replace(self, policy=AdaptiveUnderAttach(learner, OFFERS))

    @property
    def by_users(self) -> bool:
        """Whether users' priorities count: as the policy, or between groups inside of which another policy decides.

        Priorities of rules are users' priorities, too.
        """
        return bool(self.rules) or isinstance(self.policy, UserPriority) or self._has_groups_by_users

    @property
    def _has_groups_by_users(self) -> bool:
        if "cgroup" not in self.parts:
            return False
        return bool(set(self.parts) - {"cgroup", "quota"}) or self.parts["cgroup"]["by"] == NESTED

    @property
    def reads_beans(self) -> bool:
        """Whether the MBeans of Kafka's clients are needed in addition to tasks' counters.

        Learners judge by the rows that leave an application; the watchdog of real-time threads needs to see progress.
        """
        judged_by = set(self.policy.needs) if isinstance(self.policy, AdaptiveUnderAttach) else set()
        return "rt" in self.parts or bool(judged_by & {"rate", "external_queue"})

    def loads_jolokia(self, agent: bool | None, *, dry_run: bool) -> bool:
        """Whether Jolokia may be loaded. If `agent` is None: only if it is needed, since it can't be unloaded."""
        return (not dry_run and (self.reads_beans or self._counts_rows)) if agent is None else agent

    def counts_period(self, often: float, seldom: float) -> float:
        """Seconds between two readings of tasks' counters: `often` if the policy uses them, `seldom` if not.

        With real-time threads, counters that the policy does not use are never read (0): the watchdog sees from the
        kernel alone whether a stage is busy, even while the JVM gets no CPU to count.
        """
        if self._counts_rows or "queue" in self._metrics:
            return often
        return 0.0 if "rt" in self.parts else seldom

    @property
    def _counts_rows(self) -> bool:
        """Whether the policy needs metrics that only an agent or Kafka's MBeans can give, such as rows in and out."""
        without = offered(beans=False, agent=False)
        return not all(plannable(name, without) for name in self._metrics)

    @property
    def holds_compilers(self) -> bool:
        """Whether the JIT compilers of JVMs get a low priority: only if nice alone is used, and its range allows it.

        With users' priorities the compilers are not changed: they are already less urgent than the driver, and more
        urgent than queries with a low priority.
        """
        if set(self.parts) != {"nice"} or isinstance(self.policy, UserPriority) or self.rules:
            return False
        low, high = limits_of(self.parts["nice"])
        return bool(
            high - BatchStartThreadsFirst.HELD_BACK * (high - low) >= 1.0
        )  # otherwise their priority would rise

    def with_rules(self, rules: tuple[QueryRule, ...]) -> Plan:
        """Return the same plan with other rules; raise a ConfigError if enforcers or policy don't allow them."""
        query_rules.check_with(self.policy, rules)
        if rules and "quota" in self.parts:
            raise ConfigError(
                "a quota needs a CPU group for each query, and rules make one for each set",
                where=rules[0].where,
                remedy="leave out the quotas, or the rules",
            )
        if rules and self.parts.get("cgroup", {}).get("by", "query") != "query":
            by = f"cgroup:by={self.parts['cgroup']['by']}"
            remedy = "use cgroup, or cgroup+nice"
            raise ConfigError(f"rules make the CPU groups, so '{by}' can't", where=rules[0].where, remedy=remedy)
        return replace(self, rules=rules)

    def check(self, version: int, *, beans: bool, agent: bool) -> None:
        """Raise an error if a limit is wrong for cgroups of this version, or a policy needs what is not measured.

        What is measured depends on whether Kafka's MBeans are read, and whether Treadle's own agent is loaded.
        """
        offers = offered(beans=beans, agent=agent)
        bound = [("policy", binding.policy) for binding in self.bindings(version)[0]]
        ruled = [(rule.where, rule.policy) for rule in self.rules] + [("policy", self.policy)] * bool(self.rules)
        for where, policy in [*ruled, *bound]:
            missing = [name for name in policy.needs if not plannable(name, offers)]
            if missing and all(plannable(name, OFFERS) for name in missing):
                raise ConfigError(
                    f"'{policy.name}' needs {' and '.join(missing)}, which only an agent can count",
                    where=where,
                    remedy="add --agent (agent=True); without it a dry run loads no agent",
                )
            make_plan(policy.needs, offers, engine="Spark", policy=policy.name)

    def bindings(self, version: int) -> tuple[list[Binding], Seen]:
        """Return the loop's bindings for cgroups of this version, and the policy that keeps the last decision."""
        if self.rules:
            decided = sets.sets_of(self.rules, self.policy, self.period)
            seen = Seen(decided)
            return [self._binding_of_sets(name, seen, decided, version) for name in self.parts], seen
        seen = Seen(Caps(self.caps) if set(self.parts) == {"quota"} else self.policy)
        return [self._binding(name, seen, version) for name in self.parts], seen

    @property
    def orders_tasks_by(self) -> int | None:
        """The number of the binding that decides the priority of a query as a whole; None if none does."""
        names = list(self.parts)
        if "cgroup" in names:
            return None if self.parts["cgroup"]["by"] == NESTED else names.index("cgroup")
        return next((names.index(name) for name in ("nice", "rt") if name in names), None)

    def _binding(self, name: str, seen: Seen, version: int) -> Binding:
        options = self.parts[name]
        within = name != "quota" and "cgroup" in self.parts and len(self.parts) > 1
        policy: Policy = seen
        if name == "quota":
            caps = Caps(self.caps) if len(self.parts) > 1 else seen
            return Binding(caps, "quota", self.period, scale=owner(), queries=tuple(self.caps))
        if name == "cgroup":
            knob = "shares" if version == 1 else "weight"
            limits = {key: options[key] for key in ("low", "high") if options[key]}
            ratio = limits["high"] / limits["low"] if len(limits) == 2 else WIDEST
            if options["by"] == NESTED:
                grouped: Policy = Nested(seen, ratio, strict=self.strict)
            elif self.by_users:
                users: Policy = UserPriority() if self._has_groups_by_users else seen
                grouped = Grouped(ByShare(users, ratio, strict=self.strict), options["by"])
                limits = limits or FINE[version]
            else:
                grouped = Grouped(seen, options["by"])
            shared = shares(**limits) if version == 1 else weight(**limits)
            return Binding(grouped, knob, self.period, scale=shared, queries=self.queries)
        low, high = limits_of(options)
        by_share = name == "nice" and not within and self.by_users
        if by_share:
            steps = STEPS if math.inf in (-options["low"], options["high"]) else high - low
            policy = ByShare(seen, NICE_STEP**steps, strict=self.strict)
        elif within:
            policy = WithinQuery(seen)
        elif isinstance(self.policy, (Fcfs, HighestRate, MultiClass)) and name != "slice":
            policy = SourcesLast(policy, by_class=isinstance(self.policy, MultiClass))
        elif isinstance(self.policy, (CongestionAware, QueueSize)) and name == "nice":
            policy = InProportion(policy)
        helpers = options.get("helpers", True)
        if not helpers:
            policy = MainsOnly(policy)
        elif helpers == AUTO and not self.by_users:
            policy = HelpersIfNamed(policy)
        elif name == "rt":
            policy = HelpersFirst(policy, spare_least=options["low"] == 0)
        if name == "nice" and not within:
            policy = BatchStartThreadsFirst(policy)
        policy = JvmServiceThreadsUnchanged(policy) if name == "rt" else JvmServiceThreadsFirst(policy)
        scale_of: Mapping[str, Callable[..., Scale]] = {"nice": nice, "rt": rt, "slice": slices}
        scale = nice_of_shares(low, high) if by_share else scale_of[name](low=low, high=high)
        return Binding(policy, name, self.period, scale=scale, queries=self.queries)

    def _binding_of_sets(self, name: str, seen: Seen, decided: QuerySets, version: int) -> Binding:
        """Return the binding of one enforcer where rules make sets of queries."""
        options = self.parts[name]
        if name == "cgroup":
            alone = len(self.parts) == 1
            policy, scale = sets.by_groups(seen, decided, options, version, strict=self.strict, alone=alone)
            return Binding(policy, scale.name, self.rounds, scale=scale, queries=self.queries)
        within = "cgroup" in self.parts
        policy, scale = sets.by_threads(name, seen, decided, options, strict=self.strict, within=within)
        return Binding(policy, name, self.rounds, scale=scale, queries=self.queries)


def make(
    policy: str | Policy | None,
    enforce: str | None,
    period: float,
    priorities: Mapping[str, float],
    caps: Mapping[str, float],
    queries: tuple[str, ...],
    *,
    strict: bool = False,
    rules: Any = (),
) -> Plan:
    """Make a plan, or raise a ConfigError. The default enforcer is `nice`, the default policy `SINGLE` or `SEVERAL`.

    `rules` are as users give them. With rules, the default enforcer is `RULED`, which gives each set its part.
    """
    usual = SEVERAL if len({*priorities.values(), 1.0}) > 1 else SINGLE
    if enforce is None and rules:
        enforce = RULED
    elif enforce is None:
        enforce = usual[1] if policy is None else SEVERAL[1]
    parts = _parts(enforce)
    if "quota" in parts and not caps:
        remedy = "add --quota 'pattern=CPUs' (quotas={'pattern': CPUs})"
        raise ConfigError("no query has a quota", where=WHERE, remedy=remedy)
    if caps and "quota" not in parts:
        parts = {**parts, "quota": {}}
    _check(parts)
    explicit = policy is not None
    if policy is None:  # inside of groups by users' priorities, a policy must decide too
        inside = "cgroup" in parts and set(parts) - {"cgroup", "quota"}
        policy = SINGLE[0] if inside else usual[0]
    made = policy_of(policy)
    chosen = Plan(made, period, parts, dict(caps), queries, strict).with_rules(read_rules(rules))
    if strict and explicit and not chosen.by_users:
        remedy = "leave out --strict (strict=True), or the policy"
        raise ConfigError(f"'{made.name}' does not decide by users' priorities", where="strict", remedy=remedy)
    return chosen


def policy_of(spec: str | Policy) -> Policy:
    """Return the policy that a spec describes; a learner judges by what is measured under attach."""
    if isinstance(spec, Policy):
        made = spec
    else:
        made = registry.create(adaptive.spelt_out(spec, LEARNT) if isinstance(spec, str) else spec)
    return AdaptiveUnderAttach(made, OFFERS) if isinstance(made, adaptive.Adaptive) else made


def read_rules(given: Any) -> tuple[QueryRule, ...]:
    """Return rules as users give them, or raise a ConfigError."""
    return query_rules.read(given, policy_of, least=LEAST_PERIOD)


def _parts(enforce: str) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for text in enforce.split("+"):
        name, _, rest = (piece.strip() for piece in text.partition(":"))
        if name not in PARTS:
            raise ConfigError(f"there is no enforcer '{name}'", where=WHERE, remedy=suggestion(name, PARTS))
        if name in found:
            raise ConfigError(f"'{name}' is given twice", where=WHERE, remedy="name it once")
        given = dict(_option(name, pair) for pair in rest.split(",") if pair.strip())
        found[name] = {**PARTS[name].options, **given}
    return found


def _written(name: str, options: Mapping[str, Any]) -> str:
    usual = PARTS[name].options
    own = ",".join(f"{key}={_text(value)}" for key, value in options.items() if value != usual[key])
    return f"{name}:{own}" if own else name


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _option(part: str, pair: str) -> tuple[str, Any]:
    key, _, text = (piece.strip() for piece in pair.partition("="))
    where, known = f"{WHERE} '{part}'", PARTS[part].options
    if key not in known:
        raise ConfigError(
            f"there is no option '{key}'", where=where, remedy=suggestion(key, known, "it has no options")
        )
    if known[key] == AUTO and text == AUTO:
        return key, AUTO
    if isinstance(known[key], bool) or known[key] == AUTO:
        if text.lower() not in _FLAGS:
            raise ConfigError(f"{key} is '{text}'", where=where, remedy="give yes or no")
        return key, _FLAGS[text.lower()]
    if isinstance(known[key], float):
        try:
            return key, float(text)
        except ValueError:
            raise ConfigError(f"{key} is '{text}'", where=where, remedy=f"give a number, as {key}=5") from None
    if text not in _BY:
        raise ConfigError(f"{key} is '{text}'", where=where, remedy=f"use one of {', '.join(_BY)}")
    return key, text


def _check(parts: Mapping[str, Mapping[str, Any]]) -> None:
    if "rt" in parts and len(parts) > 1:
        remedy = "use 'rt' alone: real-time threads take no notice of nice, shares, slices and quotas"
        raise ConfigError(f"'{'+'.join(parts)}' can't be combined", where=WHERE, remedy=remedy)
    if "quota" in parts and parts.get("cgroup", {}).get("by", "query") != "query":
        raise ConfigError("a quota needs a group for each query", where=WHERE, remedy="use cgroup:by=query")


_FLAGS = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
NESTED = "query/operator"
_BY = ("query", "operator", "class", NESTED)


def loads_agent(agent: bool | None, *, dry_run: bool) -> bool:
    """Whether to load Treadle's own agent, which ends with the attachment. If `agent` is None: not in a dry run."""
    return not dry_run if agent is None else agent
