"""The settings of a running attachment: how new values are checked, and the plan that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from treadle.attachment import plan as plans
from treadle.attachment.attached_applications import Wanted
from treadle.attachment.plan import LEAST_PERIOD, Plan, loads_agent, read_rules
from treadle.attachment.priorities import with_default
from treadle.control.settings import Setting, Settings, duration, flag, numbers
from treadle.decide import learner_settings
from treadle.errors import ConfigError
from treadle.loop import Loop

WHERE = "attachment"
LEAST_QUOTA = 0.01
"""Minimum quota in CPUs."""


def make(
    loop: Loop,
    wanted: Callable[[], Wanted],
    adopt: Callable[[Plan, Mapping[str, float]], None],
    pause: Callable[[bool], None],
    version: int,
    more: Mapping[str, Setting] = MappingProxyType({}),
) -> Settings:
    """Make the settings. `wanted` returns what is wanted now, `adopt` follows another plan and other priorities.

    `version` is the version of cgroups. `more` are settings of other parts of the attachment.
    """

    def policy(spec: Any) -> Callable[[], None]:
        if spec is None:  # only at the start is there a default
            raise ConfigError("policy can't be None", where=WHERE, remedy="give a policy's name, as 'fcfs'")
        now = wanted()
        old = now.plan
        strict = old.strict and old.by_users and not old.rules  # rules decide by priorities, whatever the policy is
        new = plans.make(spec, old.enforce, old.period, now.priorities, old.caps, old.queries, strict=strict)
        _check(new, now, version)
        new.with_rules(old.rules)
        if now.dry_run and new.learner is not None:
            new.learner.keep_no_file()
        # The same command may have changed other settings before: only what the policy decides is taken over.
        return partial(follow, new)

    def follow(new: Plan) -> None:
        plan = wanted().plan
        adopt(replace(plan, policy=new.policy).with_rules(plan.rules), wanted().priorities)

    def rules(given: Any) -> Callable[[], None]:
        now, found = wanted(), read_rules(given)
        _check(now.plan.with_rules(found), now, version)
        return lambda: adopt(wanted().plan.with_rules(found), wanted().priorities)

    return Settings(
        {
            **learner_settings.make(
                lambda: wanted().plan.learner,
                lambda probe: _check(wanted().plan.learning(probe), wanted(), version),
                lambda changed: adopt(wanted().plan.learning(changed), wanted().priorities),
                WHERE,
            ),
            "policy": Setting(lambda: wanted().plan.policy.name, policy),
            "rules": Setting(
                lambda: [rule.as_json() for rule in wanted().plan.rules],
                rules,
                lambda given: [rule.as_json() for rule in read_rules(given)],
            ),
            **_by_patterns(loop, wanted, adopt),
            "period": duration(
                lambda: wanted().plan.period,
                lambda seconds: adopt(replace(wanted().plan, period=seconds), wanted().priorities),
                "period",
                WHERE,
                least=LEAST_PERIOD,
            ),
            "paused": flag(lambda: loop.paused, pause, "paused", WHERE),
            **more,
        },
        loop.between_rounds,
        WHERE,
    )


def _by_patterns(
    loop: Loop, wanted: Callable[[], Wanted], adopt: Callable[[Plan, Mapping[str, float]], None]
) -> dict[str, Setting]:
    """Make the settings that are given by patterns of query names."""

    def priorities(given: Any) -> Callable[[], None]:
        found = with_default(numbers(given, "priorities", WHERE, 0.0))
        return lambda: adopt(wanted().plan, found)

    def queries(given: Any) -> Callable[[], None]:
        patterns = given if isinstance(given, list | tuple) else [given]
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise ConfigError(f"queries can't be {given!r}", where=WHERE, remedy='use ["pattern", …]')
        return partial(afresh, queries=tuple(patterns))

    def quotas(given: Any) -> Callable[[], None]:
        if "quota" not in wanted().plan.parts:
            remedy = "end this attachment, and attach with --quota"
            raise ConfigError("no quotas are enforced", where=WHERE, remedy=remedy)
        if not numbers(given, "quotas", WHERE, LEAST_QUOTA):
            raise ConfigError("quotas can't be empty", where=WHERE, remedy='use {"pattern": CPUs}')
        return partial(afresh, caps=dict(given))

    def afresh(**changes: Any) -> None:
        """Follow a plan for other queries: restore all values first, since the new plan may leave some queries out."""
        loop.restore()
        adopt(replace(wanted().plan, **changes), wanted().priorities)

    return {
        "priorities": Setting(lambda: dict(wanted().priorities), priorities, with_default),
        "queries": Setting(
            lambda: list(wanted().plan.queries), queries, lambda given: [given] if isinstance(given, str) else [*given]
        ),
        "quotas": Setting(lambda: dict(wanted().plan.caps), quotas),
    }


def _check(new: Plan, now: Wanted, version: int) -> None:
    """Raise an error if a plan needs what is not measured; agents are loaded at the start only."""
    if new.reads_beans and not now.plan.reads_beans:
        remedy = "end this attachment, and attach with that policy"
        raise ConfigError(f"'{new.policy.name}' needs MBeans, which are not read", where=WHERE, remedy=remedy)
    new.check(version, beans=now.agent is not False, agent=loads_agent(now.agent, dry_run=now.dry_run))
