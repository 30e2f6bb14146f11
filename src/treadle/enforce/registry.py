"""Knobs that other packages add as entry points of `treadle.enforcers`, besides the knobs that engines provide.

An entry point has the name of its knob and refers to a class or function that makes the knob when called without
arguments. The first line of its docstring is the help of the knob.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from treadle import plugins
from treadle.enforce.knob import Knob
from treadle.errors import ConfigError, TreadleError

GROUP = "treadle.enforcers"


@dataclass(frozen=True)
class KnobKind:
    """A kind of knob: its name, its help and the function that makes one."""

    name: str
    help: str
    make: Callable[[], Knob]


def get(name: str) -> KnobKind:
    """Return the kind of knob with this name."""
    points = _plug_ins()
    if name in points:
        return _load(points[name])
    none = "no package adds one; engines carry knobs of their own"
    raise ConfigError(f"there is no knob '{name}' among the plug-ins", remedy=plugins.suggestion(name, points, none))


def names() -> tuple[str, ...]:
    """Return the names of all knobs that other packages add; the packages are not imported."""
    return tuple(_plug_ins())


def _plug_ins() -> dict[str, EntryPoint]:
    return plugins.find(GROUP, "a knob")


def _load(point: EntryPoint) -> KnobKind:
    factory, plug_in = plugins.load(point), plugins.called(point)
    if not callable(factory):
        raise ConfigError(
            f"'{point.value}' can't be called",
            where=plug_in,
            remedy="let the entry point name a class or a function that makes a treadle.enforce.Knob",
        )

    def make() -> Knob:
        try:
            knob = factory()
        except TreadleError:
            raise
        except Exception as error:
            raise plugins.failed(plug_in, "can't be made", error) from error
        if not isinstance(knob, Knob) or knob.name != point.name:
            raise ConfigError(
                f"'{point.value}' did not make a Knob with the name '{point.name}'",
                where=plug_in,
                remedy="give what it makes name, per, read and write as in treadle.enforce.Knob",
            )
        return knob

    return KnobKind(point.name, (factory.__doc__ or "").strip().partition("\n")[0], make)
