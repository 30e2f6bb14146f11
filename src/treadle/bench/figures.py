"""Pictures of benchmarks, drawn by matplotlib if it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from treadle import durations
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check() -> None:
    """Raise a ConfigError if matplotlib is not installed; called before the benchmark runs."""
    if find_spec("matplotlib") is None:
        raise ConfigError("matplotlib is not installed", where="picture", remedy="pip install 'treadle[plot]'")


def figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height are in inches."""
    check()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def durations_on(axis: Any) -> None:
    """Make an axis of seconds logarithmic, with labels such as 500ms and 2s."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: durations.text(value)))
    axis.set_minor_locator(NullLocator())
