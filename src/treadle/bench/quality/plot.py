"""The picture of a scenario, as in Stream-Economics' Figures 3 to 5: CPU, accuracy, throughput and lag over time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle.bench import figures

if TYPE_CHECKING:
    from treadle.bench.quality.figures import Course
    from treadle.bench.quality.scenarios import Scenario

COLOURS = ("#cc3311", "#4477aa", "#228833", "#aa3377")
GREY = "#8c8c8c"


def draw(scenario: Scenario, without: Course, with_: Course, path: Path) -> None:
    """Draw four charts that share the axis of time; dotted lines mark where phases begin."""
    figure = figures.figure(9, 9)
    cpu, accuracy, rate, lag = charts = figure.subplots(4, 1, sharex=True, height_ratios=(1, 2, 2, 2))
    figure.suptitle(scenario.what)
    _cpu(cpu, with_)
    _accuracy(accuracy, with_)
    _throughput(rate, with_)
    for course, name, colour in ((without, "without shedding", GREY), (with_, "with shedding", COLOURS[0])):
        times, rows = course.waiting()
        lag.plot(times - course.began, rows / 1e3, color=colour, label=name)
    lag.set_ylabel("waiting rows, thousands")
    lag.set_xlabel("seconds")
    for axes in charts:
        for begin, _, _ in with_.phases[1:]:
            axes.axvline(begin - with_.began, color=GREY, linewidth=0.6, linestyle=":")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", ncols=4, frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)


def _cpu(axes: Any, course: Course) -> None:
    """Draw the cores used by Spark with its Python workers, and by others, broker and injector among them.

    On a cluster, draw instead for each worker the cores that the pipeline uses, and all cores in use (dotted).
    """
    looks = course.looks[::4]
    for name, colour in zip(sorted({name for look in looks for name in look.workers}), COLOURS, strict=False):
        times = [look.time - course.began for look in looks]
        used = [look.workers.get(name, (np.nan, np.nan)) for look in looks]
        axes.plot(times, [own for own, _ in used], color=colour, label=name)
        axes.plot(times, [sum(both) for both in used], color=colour, linestyle=":")
    axes.set_ylabel("cores")
    if looks and looks[-1].workers:
        return
    middle = [(a.time + b.time) / 2 - course.began for a, b in pairwise(looks)]
    spark = [(b.spark - a.spark) / (b.time - a.time) for a, b in pairwise(looks)]
    others = [(b.others - a.others) / (b.time - a.time) for a, b in pairwise(looks)]
    axes.stackplot(middle, spark, others, colors=(COLOURS[1], GREY), labels=("Spark", "others"), alpha=0.6)


def _accuracy(axes: Any, course: Course) -> None:
    """Draw the accuracy of each sink in each cycle, its target (dotted), and its minimum (thin)."""
    times = [cycle.time - course.began for cycle in course.cycles]
    for (name, promise), colour in zip(course.promises.items(), COLOURS, strict=False):
        had = [100 * cycle.accuracy[name] for cycle in course.cycles]
        wanted = [100 * cycle.promised[name] for cycle in course.cycles]
        axes.plot(times, had, color=colour, label=f"{name} (priority {promise['priority']:g})")
        axes.step(times, wanted, color=colour, linestyle=":", where="post")
        axes.axhline(100 * promise["min_accuracy"], color=colour, linewidth=0.6)
    axes.set_ylim(0, 115)
    axes.set_ylabel("accuracy, %")


def _throughput(axes: Any, course: Course) -> None:
    """Draw by source the rows per second that were taken, the estimated input rate, and the true one (dashed)."""
    ends = [begin for begin, _, _ in course.phases[1:]] + [course.ended]
    for source, colour in zip(course.topics, COLOURS, strict=False):
        looks = course.looks[::4]
        middle = [(a.time + b.time) / 2 - course.began for a, b in pairwise(looks)]
        taken = [(b.taken[source] - a.taken[source]) / (b.time - a.time) for a, b in pairwise(looks)]
        axes.plot(middle, np.array(taken) / 1e3, color=colour, alpha=0.4, label=f"{source} taken")
        thought = [cycle.rates[source] / 1e3 for cycle in course.cycles]
        axes.plot([cycle.time - course.began for cycle in course.cycles], thought, color=colour, label="estimated")
        for (begin, _, rates), end in zip(course.phases, ends, strict=True):
            stretch = [begin - course.began, end - course.began]
            axes.plot(stretch, [rates[source] / 1e3] * 2, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylabel("rows/s, thousands")
