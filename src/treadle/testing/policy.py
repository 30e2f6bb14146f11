"""The conformance suite for policies. It checks the form of schedules, not whether a schedule is a good one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import get_args

import numpy as np

from treadle.decide.policy import Policy
from treadle.model import Floats
from treadle.observe import METRICS
from treadle.testing._demand import blaming, demand
from treadle.testing._worlds import Case, cases, copy_of, known, with_row
from treadle.values import Groups, Schedule, Snapshot, Spacing

Make = Callable[[np.random.Generator], Policy]


def check_policy(make: Make, *, metrics: Collection[str] = METRICS, seed: int = 0) -> None:
    """Run a policy on topologies that change and on snapshots with gaps, zeros and infinities.

    `make` is called several times and must return a new policy each time, which takes all randomness from the given
    generator. `metrics` are the names that the policy may need; another `seed` gives other topologies and snapshots.
    """
    policy = make(np.random.default_rng(seed))
    who = _check_declaration(policy, metrics)
    twin = make(np.random.default_rng(seed))
    demand(twin is not policy, who, "`make` gave the same policy twice; let it make a new one each time")
    for case in cases(np.random.default_rng(seed), policy.needs, policy.wants):
        decided = _decide(policy, case, who)
        _check_schedule(decided, case, who)
        difference = _difference(decided, _decide(twin, case, who))
        demand(
            not difference, who, f"is not repeatable: another of the same seed gave {difference}; given {case.label}"
        )
    _check_state(policy, make, who, seed)
    _check_unknown_rows(make, who, seed)


def _check_declaration(policy: Policy, metrics: Collection[str]) -> str:
    demand(isinstance(policy, Policy), f"{policy!r}", "is not a treadle.decide.policy.Policy")
    name = getattr(policy, "name", "")
    demand(isinstance(name, str) and name, type(policy).__name__, "has no name; give the class a `name`")
    who = f"policy '{name}'"
    for what in ("needs", "wants"):
        names = getattr(policy, what)
        demand(isinstance(names, tuple), who, f"`{what}` is {names!r}, not a tuple of names")
        for metric in names:
            demand(metric in metrics, who, f"{what} '{metric}', which is no metric (see `treadle metrics`)")
    return who


def _decide(policy: Policy, case: Case, who: str) -> Schedule:
    """Decide on a copy, and check that the policy does not change it."""
    given = copy_of(case.snapshot)
    with blaming(who, f"decide on {case.label}"):
        schedule = policy.decide(given)
    before, after = case.snapshot.columns, given.columns
    demand(list(after) == list(before), who, f"added or removed columns of the snapshot; given {case.label}")
    for name in before:
        untouched = np.array_equal(after[name], before[name], equal_nan=True)
        demand(untouched, who, f"modified column '{name}' of the snapshot; given {case.label}")
    demand(given.totals == case.snapshot.totals, who, f"modified the totals of the snapshot; given {case.label}")
    return schedule


def _check_schedule(schedule: Schedule, case: Case, who: str) -> None:
    given = f"given {case.label}"
    demand(isinstance(schedule, Schedule), who, f"decided {schedule!r}, which is no Schedule; {given}")
    demand(schedule.spacing in get_args(Spacing), who, f"has spacing {schedule.spacing!r}; {given}")
    demand(isinstance(schedule.reason, str), who, f"has a reason that is no text, {schedule.reason!r}; {given}")
    _check_numbers("priority", schedule.priority, case, who)
    if schedule.helper is not None:
        _check_numbers("helper", schedule.helper, case, who)
        alike = schedule.helper.ndim == 1 and schedule.priority.shape[1] == 1
        demand(alike, who, f"helpers have one number a row, and so must the mains beside them; {given}")
    if schedule.groups is not None:
        _check_groups(schedule.groups, len(case.snapshot.topology), who, given)


def _check_numbers(what: str, values: Floats, case: Case, who: str) -> None:
    rows, given = len(case.snapshot.topology), f"given {case.label}"
    demand(isinstance(values, np.ndarray), who, f"{what} is no array but {values!r}; {given}")
    demand(values.dtype == np.float64, who, f"{what} is of {values.dtype}, not float64; {given}")
    fits = values.ndim in (1, 2) and len(values) == rows and values.size >= rows
    demand(fits, who, f"{what} has shape {values.shape}, but there are {rows} rows; {given}")
    if case.bounded:
        demand(not np.isinf(values).any(), who, f"{what} is infinite in rows {_rows(np.isinf(values))}; {given}")


def _check_groups(groups: Groups, rows: int, who: str, given: str) -> None:
    members = groups.of_row
    demand(members.shape == (rows,), who, f"groups.of_row has shape {members.shape} for {rows} rows; {given}")
    demand(np.issubdtype(members.dtype, np.integer), who, f"groups.of_row is of {members.dtype}; {given}")
    names = len(groups.names)
    outside = (members < -1) | (members >= names)
    demand(not outside.any(), who, f"rows {_rows(outside)} are in groups that don't exist; {given}")
    demand(groups.priority.shape == (names,), who, f"{groups.priority.shape} priorities for {names} groups; {given}")


def _check_state(policy: Policy, make: Make, who: str, seed: int) -> None:
    """A new policy with the saved state (as JSON) decides like the first; one without state repeats its decisions."""
    case = known(np.random.default_rng(seed), (*policy.needs, *policy.wants))
    first = _decide(policy, case, who)
    with blaming(who, "turning its state() into JSON"):
        saved = json.dumps(policy.state(), sort_keys=True, allow_nan=False)
    other = make(np.random.default_rng(seed + 1))
    with blaming(who, f"load({saved})"):
        other.load(json.loads(saved))
        loaded = json.dumps(other.state(), sort_keys=True, allow_nan=False)
    demand(loaded == saved, who, f"its state is {saved}, but {loaded} once it was loaded")
    second = _decide(policy, case, who)
    if saved == "{}":
        difference = _difference(first, second)
        demand(not difference, who, f"is not repeatable: it has no state(), but gave {difference}; given {case.label}")
    difference = _difference(second, _decide(other, case, who))
    demand(not difference, who, f"does not go on where it was: loaded from its state() it gave {difference}")


def _check_unknown_rows(make: Make, who: str, seed: int) -> None:
    """An instance with unknown metrics affects no other query and, if the policy is row-wise, no other instance."""

    def decide(snapshot: Snapshot) -> Schedule:
        return _decide(make(np.random.default_rng(seed)), replace(case, snapshot=snapshot), who)

    policy = make(np.random.default_rng(seed))
    case = known(np.random.default_rng(seed), (*policy.needs, *policy.wants))
    whole = case.snapshot
    before = decide(whole)
    alone = _is_row_wise(decide, whole, before)
    topology = whole.topology
    for row, name in enumerate(topology.ids):
        after = decide(with_row(whole, row, lambda _: np.nan))
        spoilt = np.isnan(after.scalar) & ~np.isnan(before.scalar) & (topology.query_of != topology.query_of[row])
        demand(not spoilt.any(), who, f"of unknown '{name}' also rows {_rows(spoilt)} of other queries became unknown")
        if alone:
            changed = _others_that_differ(before, after, row)
            demand(not changed.any(), who, f"of unknown '{name}' rows {_rows(changed)} changed, too")


def _is_row_wise(decide: Callable[[Snapshot], Schedule], whole: Snapshot, before: Schedule) -> bool:
    """Whether an instance's metrics, whatever their size, never affect another one; false for policies on the graph."""
    for row in range(len(whole.topology)):
        for change in (lambda column: column.max() * 10.0, lambda column: column.min() / 10.0):
            after = decide(with_row(whole, row, change))
            if _others_that_differ(before, after, row).any():
                return False
    return True


def _others_that_differ(one: Schedule, other: Schedule, row: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Mask of the rows other than `row` in which two schedules differ; all other rows if the shapes differ."""
    differs = np.zeros(len(one.priority), dtype=np.bool_)
    for mine, its in ((one.priority, other.priority), (one.helper, other.helper)):
        if mine is None and its is None:
            continue
        if mine is None or its is None or mine.shape != its.shape:
            differs[:] = True
            continue
        same = (mine == its) | (np.isnan(mine) & np.isnan(its))
        differs |= ~same.reshape(len(same), -1).all(axis=1)
    differs[row : row + 1] = False
    return differs


def _difference(one: Schedule, other: Schedule) -> str:
    """Describe the first difference between two schedules; empty if there is none."""
    if one.spacing != other.spacing:
        return f"spacing {other.spacing!r} for {one.spacing!r}"
    pairs = [("priority", one.priority, other.priority), ("helper", one.helper, other.helper)]
    if one.groups is not None and other.groups is not None:
        pairs += [
            ("members of groups", one.groups.of_row.astype(np.float64), other.groups.of_row.astype(np.float64)),
            ("priority of groups", one.groups.priority, other.groups.priority),
        ]
    for what, mine, its in pairs:
        if mine is None and its is None:
            continue
        if mine is None or its is None or not np.array_equal(mine, its, equal_nan=True):
            return f"another {what}, {_short(its)} for {_short(mine)}"
    return "" if (one.groups is None) == (other.groups is None) else "groups only once"


def _rows(chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> str:
    return ", ".join(str(row) for row in np.unique(np.nonzero(chosen)[0])[:5].tolist())


def _short(values: Floats | None) -> str:
    return (
        "none" if values is None else np.array2string(values, precision=4, threshold=6, edgeitems=2).replace("\n", "")
    )
