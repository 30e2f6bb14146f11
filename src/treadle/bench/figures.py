"""Pictures of benchmarks, where matplotlib is there to draw them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from treadle import durations
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check() -> None:
    """Raise a ConfigError if nothing can be drawn; asked before the work is done."""
    if find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed", where="picture", remedy="pip install 'treadle[plot]'")


def figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    check()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def durations_on(axis: Any) -> None:
    """A logarithmic axis of seconds, labelled as people write lengths of time: 500ms, 2s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: durations.text(value)))
    axis.set_minor_locator(NullLocator())
