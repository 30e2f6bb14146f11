"""The knob `rank`, by which the loop tells a gate whose batch comes first."""

from __future__ import annotations

from treadle.enforce.gate.gate import Gate
from treadle.enforce.knob import Per, Target, Value, label
from treadle.errors import ConfigError


class GateKnob:
    """The knob `rank`: a hop's rank at a gate, with NaN for none. Its targets are the names of registered hops."""

    name = "rank"
    per: Per = "instance"

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def read(self, target: Target) -> Value:
        return self._gate.rank(label(target))

    def write(self, target: Target, value: Value) -> None:
        if isinstance(value, str):
            raise ConfigError(f"the rank of {label(target)} can't be '{value}'", where="gate", remedy="use a number")
        self._gate.set_rank(label(target), float(value))
