"""The benchmark of `make demo`: urgent queries among many on Spark, under Spark's own schedulers and under Treadle.

Three runs on one session with the same input: Spark's FIFO, Spark's FAIR pools, Treadle's gate. It shows a table, the
claims and whether they hold, and a picture of the urgent queries' latency over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.table import Table

from treadle.bench import figures
from treadle.bench.pipelines.multi_class import Measured, measure
from treadle.bench.simulator.orderings import Claim
from treadle.enforce.gate.slots import usable_cores
from treadle.workloads import multi_class
from treadle.workloads.burn import calibrate

Progress = Callable[[str, float], None]
SHOWN = {"fifo": "Spark's FIFO", "fair": "Spark's FAIR pools", "treadle": "Treadle"}
COLOURS = {"fifo": "#8c8c8c", "fair": "#4477aa", "treadle": "#cc3311"}


@dataclass(frozen=True)
class Shown:
    """The results: the runs in the order of `SHOWN`, a table of them, and the claims."""

    runs: tuple[Measured, ...]
    table: Table
    claims: tuple[Claim, ...]

    def draw(self, path: Path) -> None:
        draw(self.runs, path)


def run(progress: Progress | None = None, *, seconds: float = 24.0, warm: float = 6.0) -> Shown:
    """Run the three variants of `SHOWN`, one after another, in less than three minutes."""
    from treadle.pipelines.spark.session import session

    tell = progress or (lambda *_: None)
    tell("starting Spark", 0.0)
    spark = session("demo", fair=True)
    spark.sparkContext.setLogLevel("OFF")  # a batch that is stopped half-way is no error here
    try:
        tell("measuring the machine", 0.03)
        queries = multi_class.chains(calibrate(spark))
        tell("warming up", 0.06)
        measure(spark, queries, "fifo", seconds=1.0, warm=warm)
        runs = []
        for number, variant in enumerate(SHOWN):

            def told(_: str, part: float, number: int = number, variant: str = variant) -> None:
                tell(SHOWN[variant], 0.15 + 0.85 * (number + part) / len(SHOWN))

            runs.append(measure(spark, queries, variant, seconds=seconds, warm=warm, progress=told))
    finally:
        spark.stop()
    return Shown(tuple(runs), table(runs, len(queries)), claims(runs))


def table(runs: Sequence[Measured], queries: int) -> Table:
    """Return a table of the latency of both classes, and the rows per second."""
    cores = usable_cores()
    grid = Table(title=f"{queries} streaming queries on {cores} cores: 3 urgent ones with bursts, the others fill them")
    for title in ("", "urgent: mean", "p99", "max", "others: mean", "p99", "rows/s"):
        grid.add_column(title, justify="right" if title else "left")
    for each in runs:
        figures = each.figures()
        names = ("high_mean_ms", "high_p99_ms", "high_max_ms", "low_mean_ms", "low_p99_ms")
        style = "bold" if each.variant == "treadle" else ""
        grid.add_row(
            SHOWN[each.variant],
            *(_time(figures[name]) for name in names),
            f"{figures['rows_per_s']:,.0f}",
            style=style,
        )
    return grid


def claims(runs: Sequence[Measured]) -> tuple[Claim, ...]:
    """Return the claims of the demo, with numbers."""
    fifo, fair, treadle = (each.figures() for each in runs)
    to_fifo = fifo["high_p99_ms"] / treadle["high_p99_ms"]
    to_fair = fair["high_p99_ms"] / treadle["high_p99_ms"]
    done = treadle["rows_per_s"] / fifo["rows_per_s"]
    return (
        Claim(f"the urgent queries' p99 latency is {to_fifo:.1f} times lower than under Spark's FIFO", to_fifo >= 3.0),
        Claim(f"and {to_fair:.1f} times lower than with Spark's FAIR pools", to_fair >= 1.5),
        Claim(f"all queries together get {done:.2f} times as many rows done as under FIFO", done >= 1.0),
    )


def draw(runs: Sequence[Measured], path: Path) -> None:
    """Draw over time the mean latency of the urgent rows that came out in each second, and the waiting rows."""
    figure = figures.figure(9, 5.5)
    latency, queued = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for each in runs:
        style = {"color": COLOURS[each.variant], "label": SHOWN[each.variant]}
        if each.high:
            parts = np.array([(part.time - each.began, part.mean, part.rows) for part in each.high])
            at = np.floor(parts[:, 0])
            seconds = np.unique(at)
            means = [np.average(parts[at == s, 1], weights=parts[at == s, 2]) for s in seconds]
            latency.plot(seconds + 0.5, means, marker="o", markersize=3, **style)
        waiting = np.array(each.queued)
        queued.plot(waiting[:, 0], waiting[:, 1] / 1000, **style)
    figures.durations_on(latency.yaxis)
    latency.set_ylabel("latency of urgent rows")
    latency.legend(loc="upper left", ncols=3, frameon=False)
    queued.set_ylabel("waiting rows, thousands")
    queued.set_xlabel("seconds")
    for axes in (latency, queued):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < 9999.5 else f"{milliseconds / 1e3:,.1f} s"
