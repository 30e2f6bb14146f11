"""The settings of a running attachment: how new values are checked, and the plan that they lead to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from treadle.attachment import plan as plans
from treadle.attachment.attached_applications import Wanted
from treadle.attachment.plan import Plan, loads_agent
from treadle.attachment.priorities import checked, with_default
from treadle.control.settings import Setting, Settings, duration, flag
from treadle.errors import ConfigError
from treadle.loop import Loop

WHERE = "attachment"
LEAST_PERIOD = 0.01
"""Minimum period in seconds. A round costs some tenths of a millisecond, and agents sample 8 ms before each round."""


def make(
    loop: Loop,
    wanted: Callable[[], Wanted],
    adopt: Callable[[Plan, Mapping[str, float]], None],
    pause: Callable[[bool], None],
    version: int,
) -> Settings:
    """Make the settings. `wanted` returns what is wanted now, `adopt` follows another plan and other priorities.

    `version` is the version of cgroups.
    """

    def policy(spec: Any) -> Callable[[], None]:
        now = wanted()
        old = now.plan
        new = plans.make(
            spec, old.enforce, old.period, now.priorities, old.caps, old.queries, strict=old.strict and old.by_users
        )
        if new.reads_beans and not old.reads_beans:
            remedy = "end this attachment, and attach with that policy"
            raise ConfigError(f"'{new.policy.name}' needs MBeans, which are not read", where=WHERE, remedy=remedy)
        own = loads_agent(now.agent, dry_run=now.dry_run)
        new.check(version, beans=now.agent is not False, agent=own)
        # The same command may have changed the period and the priorities before.
        return lambda: adopt(replace(new, period=wanted().plan.period), wanted().priorities)

    def priorities(given: Any) -> Callable[[], None]:
        if not isinstance(given, Mapping):
            raise ConfigError(f"priorities can't be {given!r}", where=WHERE, remedy='use {"pattern": number}')
        found = with_default(checked("priorities", given, 0.0))
        return lambda: adopt(wanted().plan, found)

    return Settings(
        {
            "policy": Setting(lambda: wanted().plan.policy.name, policy),
            "priorities": Setting(lambda: dict(wanted().priorities), priorities),
            "period": duration(
                lambda: wanted().plan.period,
                lambda seconds: adopt(replace(wanted().plan, period=seconds), wanted().priorities),
                "period",
                WHERE,
                least=LEAST_PERIOD,
            ),
            "paused": flag(lambda: loop.paused, pause, "paused", WHERE),
        },
        loop.between_rounds,
        WHERE,
    )
