"""Objectives of scheduling: totals of the engine, each to be maximised or minimised, with a relative weight.

This is the performance specification of AMoS section 3.2 in text form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from treadle.errors import ConfigError

_FORM = 'write "min latency 0.7", "max output_rate 0.3" or {metric = "latency", maximise = false, weight = 0.7}'
_ALSO = {"throughput": "output_rate"}
"""Another name of a total -> its name in `Snapshot.totals`."""
_QUANTIFIER = {"min": False, "minimise": False, "minimize": False, "max": True, "maximise": True, "maximize": True}


@dataclass(frozen=True, slots=True)
class Objective:
    """One requirement: a total by its name in `Snapshot.totals`, the direction, and the weight."""

    metric: str
    maximise: bool
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.metric:
            raise ConfigError("an objective names no metric", where="objectives", remedy=_FORM)
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(
                f"the weight of '{self.metric}' is {self.weight:g}",
                where="objectives",
                remedy="give it a weight above 0, or leave the objective out",
            )

    @property
    def sign(self) -> float:
        """The quantifier q of Eq. 2."""
        return 1.0 if self.maximise else -1.0

    def __str__(self) -> str:
        return f"{'max' if self.maximise else 'min'} {self.metric} {self.weight:g}"


Spec = Objective | str | Mapping[str, Any]


def parse_objective(spec: Spec) -> Objective:
    """Parse an objective; its weight is 1 if not given."""
    if isinstance(spec, Objective):
        return spec
    if isinstance(spec, str):
        return _from_words(spec)
    if isinstance(spec, Mapping):
        return _from_table(spec)
    raise _unknown(spec)


def parse_objectives(specs: str | Iterable[Spec]) -> tuple[Objective, ...]:
    """Parse all objectives, separated by commas in a string, and normalise their weights to a sum of 1."""
    parts: Iterable[Spec] = specs.split(",") if isinstance(specs, str) else specs
    found = [parse_objective(part) for part in parts]
    if not found:
        raise ConfigError("there is no objective to judge by", where="objectives", remedy=_FORM)
    names = [objective.metric for objective in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"'{name}' is given twice", where="objectives", remedy="keep one of them")
    if math.isclose(math.fsum(objective.weight for objective in found), 1.0, rel_tol=1e-12):
        return tuple(found)  # saved weights are normalised already and must not change
    heaviest = max(objective.weight for objective in found)  # scaled first, so that no sum overflows
    total = sum(objective.weight / heaviest for objective in found)
    return tuple(replace(objective, weight=objective.weight / heaviest / total) for objective in found)


def from_text(value: Any) -> tuple[Objective, ...]:
    """Parse what a user has written: a text with objectives joined by `+` or commas, or a list of them."""
    if isinstance(value, str):
        return parse_objectives(value.replace("+", ","))
    if isinstance(value, (list, tuple)):
        return parse_objectives(value)
    raise _unknown(value)


def as_text(objectives: Iterable[Objective]) -> str:
    """Return objectives as one text that `from_text` reads."""
    return "+".join(map(str, objectives))


def _from_words(text: str) -> Objective:
    words = text.split()
    if len(words) not in (2, 3) or words[0].lower() not in _QUANTIFIER:
        raise _unknown(text)
    weight = _weight(words[2], text) if len(words) == 3 else 1.0
    return Objective(_named(words[1]), _QUANTIFIER[words[0].lower()], weight)


def _from_table(table: Mapping[str, Any]) -> Objective:
    metric, maximise = table.get("metric"), table.get("maximise")
    if set(table) - {"metric", "maximise", "weight"} or not isinstance(metric, str) or not isinstance(maximise, bool):
        raise _unknown(table)
    return Objective(_named(metric), maximise, _weight(table.get("weight", 1.0), table))


def _named(metric: str) -> str:
    return _ALSO.get(metric, metric)


def _weight(value: Any, spec: Spec) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise _unknown(spec) from None


def _unknown(spec: object) -> ConfigError:
    shown = dict(spec) if isinstance(spec, Mapping) else spec
    return ConfigError(f"{shown!r} is not an objective", where="objectives", remedy=_FORM)
