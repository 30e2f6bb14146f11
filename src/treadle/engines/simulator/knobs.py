"""The knobs of the simulator, with the same meaning as on Linux; they write to the simulation instead of a kernel.

`rank` and `owner` belong to the cooperative scheduler, the others to the simulated kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from treadle.enforce import Knob, Target, Value
from treadle.engines.simulator.kernel.cells import GROUP_FLOOR
from treadle.engines.simulator.state import GROUP
from treadle.errors import ConfigError, TargetGone
from treadle.model import ThreadRef

if TYPE_CHECKING:
    from treadle.engines.simulator.engine import Simulator

Per = Literal["thread", "instance", "group"]
DEFAULT_GROUP = ""


def knobs_of(simulator: Simulator) -> Mapping[str, Knob]:
    """Return the knobs of the mode in which the simulator runs."""
    knobs: list[Knob]
    if simulator.mode == "cooperative":
        knobs = [
            _Cell(simulator, "rank", "instance", "rank", limits=(-math.inf, math.inf)),
            _Cell(simulator, "owner", "instance", "owner", limits=(0, 1e6)),
        ]
    else:
        group = _Group(simulator)
        knobs = [
            _Cell(
                simulator,
                "nice",
                "thread",
                "weight",
                limits=(-20, 19),
                to_cell=_weight_of_nice,
                from_cell=_nice_of_weight,
            ),
            _Cell(simulator, "rt", "thread", "realtime", limits=(0, 99)),
            _Cell(simulator, "slice", "thread", "time_slice", limits=(1e-6, 1e6)),
            group,
            _Shares(group),
        ]
    return {knob.name: knob for knob in knobs}


class _Cell:
    """A knob that reads and writes one column of the simulator's node records."""

    def __init__(
        self,
        simulator: Simulator,
        name: str,
        per: Per,
        column: str,
        *,
        limits: tuple[float, float],
        to_cell: Callable[[float], float] = float,
        from_cell: Callable[[float], float] = float,
    ) -> None:
        self.name = name
        self.per: Per = per
        self._sim = simulator
        self._column = column
        self._limits = limits
        self._to_cell = to_cell
        self._from_cell = from_cell

    def read(self, target: Target) -> Value:
        return self._from_cell(self._sim.state.node[self._column][_node(self._sim, target)])

    def write(self, target: Target, value: Value) -> None:
        node = _node(self._sim, target)
        _check(self.name, value, *self._limits)
        self._sim.state.node[self._column][node] = self._to_cell(float(value))
        self._sim.reorder()


class _Group:
    """The group of a thread; a group is created when it is first named."""

    name = "group"
    per: Per = "thread"

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.numbers = {DEFAULT_GROUP: 0}

    def read(self, target: Target) -> Value:
        number = int(self.simulator.state.node["group"][_node(self.simulator, target)])
        return next(name for name, known in self.numbers.items() if known == number)

    def write(self, target: Target, value: Value) -> None:
        node = _node(self.simulator, target)
        number = self.numbers.setdefault(str(value), len(self.numbers))
        s = self.simulator.state
        if number == len(s.group):
            self.simulator.state = s = s._replace(group=np.append(s.group, np.zeros(1, dtype=GROUP)))
            s.group[number]["weight"], s.group[number]["virtual"] = 1024.0, s.clock[GROUP_FLOOR]
        s.node["group"][node] = number
        s.node["virtual"][node] = s.group["floor"][number]
        self.simulator.reorder()


class _Shares:
    """The CPU shares of groups, like cgroup v1's cpu.shares."""

    name = "shares"
    per: Per = "group"

    def __init__(self, groups: _Group) -> None:
        self._groups = groups

    def read(self, target: Target) -> Value:
        return float(self._groups.simulator.state.group["weight"][self._number(target)])

    def write(self, target: Target, value: Value) -> None:
        number = self._number(target)
        _check(self.name, value, 2, 262_144)
        self._groups.simulator.state.group["weight"][number] = float(value)

    def _number(self, target: Target) -> int:
        if isinstance(target, str) and target in self._groups.numbers:
            return self._groups.numbers[target]
        raise TargetGone(f"the simulator has no group {target}")


def _node(simulator: Simulator, target: Target) -> int:
    if isinstance(target, ThreadRef):
        if 0 < target.tid <= len(simulator.state.node):
            return target.tid - 1
    elif target in simulator.topology().row_of:
        return simulator.topology().row_of[target]
    raise TargetGone(f"the simulator runs no {target}")


def _check(name: str, value: Value, low: float, high: float) -> None:
    if isinstance(value, str) or not low <= value <= high:
        raise ConfigError(f"{name} can't be {value}", where="simulator", remedy=f"use {low:g} to {high:g}")


def _weight_of_nice(nice: float) -> float:
    return float(1024.0 / 1.25**nice)


def _nice_of_weight(weight: float) -> float:
    return float(round(math.log(1024.0 / weight, 1.25)))
