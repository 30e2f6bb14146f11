"""Compares policies on one scenario: runs them, puts their figures into a table, and draws them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from treadle.bench import figures
from treadle.engines.simulator.run import Outcome, simulate
from treadle.engines.simulator.scenario import Scenario
from treadle.errors import ConfigError
from treadle.model import Floats

Progress = Callable[[str, float], None]
"""Called with the policy that runs and the share of all work that is done, 0 to 1."""


@dataclass(frozen=True)
class Figure:
    """A column of the table: its title, its key in a summary, and whether less is better."""

    title: str
    key: str
    less_is_better: bool
    show: Callable[[float], str]


def seconds(value: float) -> str:
    """Format a duration for people."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def count(value: float) -> str:
    """Format a number of tuples for people."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


FIGURES = (
    Figure("latency", "mean_latency", True, seconds),
    Figure("p99", "p99_latency", True, seconds),
    Figure("max", "max_latency", True, seconds),
    Figure("results/s", "throughput", False, count),
    Figure("queued", "mean_queue", True, count),
    Figure("peak", "peak_queue", True, count),
    Figure("left", "queued_at_end", True, count),
)
DROPPED = Figure("dropped", "dropped", True, count)
CAPTION = "latency, queued: means; left: still queued at the end; *: best of its column"


def compare(
    scenario: Scenario,
    policies: Sequence[str],
    *,
    duration: float | None = None,
    seed: int | None = None,
    resolve: Callable[[str], str] = str,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run each policy with the same arrivals, costs and random numbers; `resolve` turns its name into a spec."""
    outcomes: list[Outcome] = []
    for number, spec in enumerate(policies):

        def told(part: float, number: int = number, spec: str = spec) -> None:
            if progress is not None:
                progress(spec, (number + part) / len(policies))

        outcome = simulate(scenario, resolve(spec), seconds=duration, seed=seed, progress=told)
        outcomes.append(relabelled(outcome, spec))
        told(1.0)
    return outcomes


def relabelled(outcome: Outcome, label: str) -> Outcome:
    """Return the outcome with the name that the user gave the policy."""
    return replace(outcome, label=label)


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Policy -> its figures and its series."""
    return {outcome.label: {"series": outcome.series(), **outcome.summary()} for outcome in outcomes}


def table(outcomes: Sequence[Outcome], title: str = "") -> Table:
    """Build a table with a row per policy and class, the best of each column marked. It fits 80 columns."""
    rows = [(name, outcome.summary()) for name, outcome in zip(names(outcomes), outcomes, strict=True)]
    dropped = any(summary["dropped"] for _, summary in rows)
    figures = (*FIGURES, DROPPED) if dropped else FIGURES
    grid = Table(
        title=title or None,
        title_justify="left",
        caption=CAPTION,
        caption_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    grid.add_column("policy", no_wrap=True)
    for figure in figures:
        grid.add_column(figure.title, justify="right", no_wrap=True)
    best = {figure.key: _best(figure, [summary[figure.key] for _, summary in rows]) for figure in figures}
    for label, summary in rows:
        grid.add_row(label, *(_cell(figure, summary[figure.key], best[figure.key]) for figure in figures))
        for name, part in summary.get("classes", {}).items():
            grid.add_row(
                f" priority {name}", *(f.show(part[f.key]) if f.key in part else "" for f in figures), style="dim"
            )
    return grid


def names(outcomes: Sequence[Outcome]) -> list[str]:
    """Return short names of policies: "adaptive" and the learner for adaptive ones, or full names if two are alike."""
    short = [_LEARNER.sub(r"adaptive \1", outcome.label) for outcome in outcomes]
    return short if len(set(short)) == len(short) else [outcome.label for outcome in outcomes]


_LEARNER = re.compile(r"^adaptive:(?:.*,)?learner=\(?([a-z]+)[^@]*")


def _best(figure: Figure, values: Sequence[float]) -> float | None:
    """Return the best value; None if all are equal."""
    low, high = min(values), max(values)
    return None if low == high else low if figure.less_is_better else high


def _cell(figure: Figure, value: float, best: float | None) -> str:
    text = figure.show(value)
    return f"[bold green]{text}*[/]" if value == best else text


def check_plot(path: Path) -> None:
    """Raise ConfigError, before the runs, if matplotlib or the folder is missing or the file's ending is wrong."""
    figures.check()
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder '{path.parent}'", where=str(path), remedy="make it first")
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(
            "the kind of picture is unknown", where=str(path), remedy="use a name that ends in .png, .svg or .pdf"
        )


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw latency, queued tuples and results over time, with a line per policy; the file's ending sets the format."""
    check_plot(path)
    labels = names(outcomes)
    figure = figures.figure(10, 9.5)
    axes = figure.subplots(3, 1, sharex=True)
    for number, outcome in enumerate(outcomes):
        colour = f"C{number % 10}"
        style = "-" if number < 10 else "--"
        times, latency, output = _over_time(outcome)
        axes[0].plot(times, latency, style, color=colour, lw=1.4, marker=".", ms=3, label=labels[number])
        grid, queued = outcome.memory
        if len(outcome.trace) > 1:
            grid, queued = outcome.trace[:, 0], outcome.trace[:, -2]
        axes[1].step(grid, queued, style, color=colour, lw=1.4, where="post")
        axes[2].plot(times, output, style, color=colour, lw=1.4)
    top = np.unique(outcomes[0].class_of_row)
    axes[0].set_ylabel("mean latency [s]" if len(top) == 1 else f"mean latency of priority {top[-1]:g} [s]")
    axes[1].set_ylabel("queued tuples")
    axes[2].set_ylabel("results per second")
    axes[2].set_xlabel("virtual time [s]")
    for axis in axes[:2]:
        low, high = _extent(axis)
        if low > 0 and high / low > 50:
            axis.set_yscale("log")
        elif high > 0:
            axis.set_ylim(bottom=0)
    axes[2].set_ylim(bottom=0)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(outcomes[0].scenario.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.legend(loc="outside lower center", ncols=min(len(outcomes), 5), frameon=False)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(
            f"can't write the plot: {error}", where=str(path), remedy="name a file you may write"
        ) from None


def _extent(axis: Any) -> tuple[float, float]:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=np.float64) for line in axis.get_lines()])
    positive = values[values > 0]
    return (float(np.quantile(positive, 0.02)), float(positive.max())) if len(positive) else (0.0, 0.0)


def _over_time(outcome: Outcome, points: int = 120) -> tuple[Floats, Floats, Floats]:
    """Return for `points` equal intervals the time, mean latency of the highest class, and all results per second."""
    end = max(outcome.counters["now"], 1e-9)
    edges = np.linspace(0.0, end, points + 1)
    results = outcome.results
    top = outcome.class_of_row[results.row] == outcome.class_of_row.max()
    mass, _ = np.histogram(results.time[top], edges, weights=results.mass[top])
    summed, _ = np.histogram(results.time[top], edges, weights=(results.mass * results.latency)[top])
    latency = np.divide(summed, mass, out=np.full(points, np.nan), where=mass > 0)
    output, _ = np.histogram(results.time, edges, weights=results.mass)
    return (edges[1:] + edges[:-1]) / 2.0, latency, output / (end / points)
