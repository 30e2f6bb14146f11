"""Translates a schedule into orders: the target values of each engine's knob (the translators of Lachesis section 5.3).

One scale spans the targets of all engines, so that their priorities can be compared. Instances without a thread and
those of an engine that failed are on the scale too: otherwise all other values would change whenever a query is between
two batches or an application does not answer. Orders for membership come before those for the groups' own values, since
writing the membership makes the group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from treadle.decide.grouping import group
from treadle.enforce import Column
from treadle.loop.binding import Binding
from treadle.loop.knob_targets import EngineRows, KnobTargets, View, memberships
from treadle.model import Bools, Floats
from treadle.values import Groups, Schedule

MEMBERSHIP = "group"
"""Name of the knob that puts a thread or an instance into a group."""
DEFAULT_GROUPING = "query"


class Order(NamedTuple):
    """The values `wanted` for the targets of one knob of one engine; a target with an unknown value stays as it is."""

    part: EngineRows
    knob: str
    aim: KnobTargets
    wanted: Column


def translate(binding: Binding, view: View, mine: Bools, schedule: Schedule, suffix: str = "") -> list[Order]:
    """Return the orders for the instances in `mine`. `suffix` is added to group names, so that bindings share none."""
    priority, helper = schedule.scalar, schedule.helper
    fresh = view.fresh()
    if mine is not view.everything or fresh is not view.everything:
        known = mine & fresh
        priority = np.where(known, priority, np.nan)
        helper = None if helper is None else np.where(known, helper, np.nan)
    kinds = [part.watch.knobs[binding.knob].per for part in view.parts]
    groups = _groups(binding, view, schedule, priority, suffix) if "group" in kinds else None
    members: list[Order] = []
    aims: list[KnobTargets] = []
    for part, per in zip(view.parts, kinds, strict=True):
        if per == "group" and groups is not None:
            aims.append(part.groups(groups, priority, mine))
            if MEMBERSHIP in part.watch.knobs:
                members.append(_membership(part, groups, priority, mine))
        elif per == "thread":
            aims.append(part.threads(priority, helper, mine))
        else:
            aims.append(part.instances(priority, mine))
    absent = [priority[part.silent] for part, per in zip(view.parts, kinds, strict=True) if per == "thread"]
    if fresh is not view.everything:
        absent.append(schedule.scalar[mine & ~fresh])
    columns = [aim.priority for aim in aims] + [column for column in absent if len(column)]
    values = binding.to_scale.apply(_joined(columns), schedule.spacing)
    orders: list[Order] = []
    end = 0
    for part, aim in zip(view.parts, aims, strict=True):
        start, end = end, end + len(aim.targets)
        orders.append(Order(part, binding.knob, aim, values[start:end]))
    if groups is not None and groups.outer is not None:
        silent = np.unique(groups.outer.of_row[mine & ~fresh])
        orders = _with_outer(binding, groups.outer, priority, mine, orders, groups.outer.priority[silent])
    return members + orders


def _with_outer(
    binding: Binding, outer: Groups, priority: Floats, mine: Bools, orders: list[Order], silent: Floats
) -> list[Order]:
    """Add the outer groups to the orders, on a scale of their own: they compete with each other, not with inner groups.

    `silent` are the priorities of outer groups in engines that failed; these are on the scale too.
    """
    aims = [order.part.groups(outer, priority, mine) for order in orders]
    values = binding.to_scale.apply(np.concatenate([*(aim.priority for aim in aims), silent]), "linear")
    parts = np.split(values, np.cumsum([len(aim.targets) for aim in aims]))[: len(aims)]
    return [
        order._replace(aim=_together(order.aim, aim), wanted=np.concatenate([order.wanted, wanted]))
        for order, aim, wanted in zip(orders, aims, parts, strict=True)
    ]


def _together(one: KnobTargets, other: KnobTargets) -> KnobTargets:
    columns = (np.concatenate(pair) for pair in zip(one[1:], other[1:], strict=True))
    return KnobTargets(one.targets + other.targets, *columns)


def _joined(columns: list[Floats]) -> Floats:
    """Concatenate the columns; a single one, which is the usual case, is not copied."""
    return columns[0] if len(columns) == 1 else np.concatenate(columns or [np.empty(0)])


def _groups(binding: Binding, view: View, schedule: Schedule, priority: Floats, suffix: str) -> Groups:
    """Return the policy's own groups, or those of the binding's grouping."""
    groups = schedule.groups
    if groups is None:
        single = replace(schedule, priority=priority, helper=None)
        groups = group(view.topology, single, binding.grouping or DEFAULT_GROUPING)
    return replace(groups, names=tuple(name + suffix for name in groups.names)) if suffix else groups


def _membership(part: EngineRows, groups: Groups, priority: Floats, mine: Bools) -> Order:
    by_thread = part.watch.knobs[MEMBERSHIP].per == "thread"
    aim = part.threads(priority, None, mine) if by_thread else part.instances(priority, mine)
    return Order(part, MEMBERSHIP, aim, memberships(aim, groups))
