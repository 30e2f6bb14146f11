"""Checks whether a loop can carry out its bindings, before it starts, and each schedule that a policy suggests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from treadle.decide.policy import Policy
from treadle.errors import ConfigError, EngineError
from treadle.loop.binding import Binding
from treadle.loop.engine import Engine
from treadle.observe import make_plan, plannable
from treadle.values import Schedule, Snapshot


def check(
    engines: Sequence[Engine],
    bindings: Sequence[Binding],
    stale_after: int,
    log_size: int,
    sample_timeout: float | None,
) -> None:
    """Raise a ConfigError or an EngineError if anything is missing, wrong or duplicate."""
    if not engines or not bindings:
        what = "policy" if engines else "engine"
        raise ConfigError(f"there is no {what} to run", where="loop", remedy=f"give it at least one {what}")
    names = [engine.name for engine in engines]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two engines are named '{name}'", where="loop", remedy="rename one of them")
    if stale_after < 1 or log_size < 1:
        raise ConfigError(f"stale_after={stale_after}, log_size={log_size}", where="loop", remedy="use 1 or more")
    if sample_timeout is not None and not 0 < sample_timeout <= threading.TIMEOUT_MAX:
        raise ConfigError(
            f"sample_timeout={sample_timeout}", where="loop", remedy="use seconds above 0, or None for no limit"
        )
    for binding in bindings:
        _check_knob(binding, engines)


def _check_knob(binding: Binding, engines: Sequence[Engine]) -> None:
    """Check that some engine has the knob, and that a grouping is used only with a knob for groups."""
    meant = [engine for engine in engines if binding.may_concern(engine.name)]
    carriers = [engine for engine in meant if binding.knob in engine.knobs()]
    if not carriers:
        have = "; ".join(f"{e.name} has {', '.join(sorted(e.knobs())) or 'none'}" for e in meant)
        raise EngineError(
            f"no engine has a knob '{binding.knob}'",
            where=binding.where,
            remedy=have or f"its queries {', '.join(binding.queries)} match no engine",
        )
    if binding.grouping and all(engine.knobs()[binding.knob].per != "group" for engine in carriers):
        raise ConfigError(
            f"knob '{binding.knob}' is not for groups", where=binding.where, remedy="leave the grouping out"
        )


def served(engine: Engine, bindings: Sequence[Binding]) -> list[Binding]:
    """Return the bindings that this engine can carry out."""
    return [b for b in bindings if b.knob in engine.knobs() and b.may_concern(engine.name)]


def metrics(engine: Engine, bindings: Sequence[Binding]) -> set[str]:
    """Return the metrics that the policies need, and those that they want and this engine can provide."""
    metrics: set[str] = set()
    for binding in bindings:
        policy = binding.policy
        check_metrics(policy, [engine])
        metrics |= {*policy.needs, *(name for name in policy.wants if plannable(name, engine.offers))}
    return metrics


def check_metrics(policy: Policy, engines: Sequence[Engine]) -> None:
    """Raise an EngineError if one of these engines can't provide a metric that the policy needs."""
    for engine in engines:
        make_plan(policy.needs, engine.offers, engine=engine.name, policy=policy.name)


def vetted(schedule: Schedule, snapshot: Snapshot) -> Schedule:
    """Return the schedule, or raise a ConfigError if its rows don't fit the snapshot."""
    rows = len(snapshot.topology)
    helpers = rows if schedule.helper is None else schedule.helper.size
    grouped = rows if schedule.groups is None else len(schedule.groups.of_row)
    if not len(schedule.priority) == helpers == grouped == rows:
        raise ConfigError(
            f"decided {len(schedule.priority)} rows, {helpers} helpers and {grouped} group members for {rows} rows",
            remedy="return a value for each row of the snapshot",
        )
    return schedule
