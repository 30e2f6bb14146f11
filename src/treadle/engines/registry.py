"""Engine kinds by name: the built-in ones, and those that other packages add as entry points of `treadle.engines`.

This module lists the kinds and what each can offer at most. It starts no engine, and imports one only on request. An
entry point must have the name of its `EngineKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from treadle import plugins
from treadle.errors import ConfigError
from treadle.loop.engine import Engine

GROUP = "treadle.engines"


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine, before one is started."""

    name: str
    help: str
    offers: frozenset[str]
    """Base metrics that this kind can offer at most; a running engine may offer fewer."""
    start: Callable[..., Engine]
    """Creates an engine; the arguments depend on the kind."""


def get(name: str) -> EngineKind:
    """Return the kind of engine with this name."""
    points = _plug_ins()
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    if name in points:
        return _load(points[name])
    raise ConfigError(f"there is no engine '{name}'", remedy=plugins.suggestion(name, [*_BUILT_IN, *points]))


def describe() -> list[EngineKind]:
    """Return all kinds of engines, built-in ones first."""
    return [*(make() for make in _BUILT_IN.values()), *(_load(point) for point in _plug_ins().values())]


def _plug_ins() -> dict[str, EntryPoint]:
    return plugins.find(GROUP, "an engine", _BUILT_IN)


def _load(point: EntryPoint) -> EngineKind:
    kind = plugins.load(point)
    if not isinstance(kind, EngineKind) or kind.name != point.name:
        raise ConfigError(
            f"'{point.value}' is not an EngineKind with the name '{point.name}'",
            where=plugins.called(point),
            remedy="let the entry point name a treadle.engines.registry.EngineKind",
        )
    return kind


def _simulator() -> EngineKind:
    from treadle.engines.simulator.engine import Simulator  # slow: compiles with numba

    help_ = "runs scenarios in virtual time, with the very loop and policies that run elsewhere"
    return EngineKind(Simulator.name, help_, Simulator.OFFERS, Simulator)


def _spark() -> EngineKind:
    from treadle.engines.spark.engine import SparkEngine

    help_ = "a running, unchanged Spark application, whose threads the operating system schedules"
    return EngineKind("spark", help_, SparkEngine.OFFERS, SparkEngine)


_BUILT_IN: Mapping[str, Callable[[], EngineKind]] = {"simulator": _simulator, "spark": _spark}
