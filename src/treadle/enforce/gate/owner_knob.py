"""The knob `owner`, by which the loop assigns hops to the groups of a gate's slots: Haren's inter-thread scheduling."""

from __future__ import annotations

from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.stats import ANY
from treadle.enforce.knob import Per, Target, Value, label
from treadle.errors import ConfigError


class OwnerKnob:
    """The knob `owner`: the group of a hop, -1 for none. All values of a round take effect together, in `commit`.

    A hop that was withdrawn and registered again between two rounds gets its group back in the next one.
    """

    name = "owner"
    per: Per = "instance"

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._written: dict[str, int] = {}
        self._ours: dict[str, int] = {}

    def read(self, target: Target) -> Value:
        group = self._gate.group(label(target))
        return float(self._written.get(label(target), group))

    def write(self, target: Target, value: Value) -> None:
        if isinstance(value, str) or value != int(value) or value < ANY:
            raise ConfigError(
                f"the group of {label(target)} can't be {value}", where="gate", remedy="use a whole number from -1 on"
            )
        self._gate.group(label(target))
        self._written[label(target)] = int(value)

    def commit(self) -> None:
        """Put all that was written in force at the gate at once."""
        now, wanted = self._gate.groups, self._ours | self._written
        self._ours = {name: group for name, group in wanted.items() if name in now}
        self._written = {}
        if any(now[name] != group for name, group in self._ours.items()):
            self._gate.assign(self._ours)
