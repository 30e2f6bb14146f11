"""`treadle bench …` and `treadle demo`: measure the cost and the benefit of Treadle on this machine."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from treadle import durations
from treadle.errors import ConfigError
from treadle.text import visible

ATTACH_PARTS = ("contention", "chain", "policies", "uneven", "batches", "slots", "rules")
ADAPTIVE_PARTS = ("gate", "kernel", "switch")
PIPELINES_PARTS = ("classes", "policies", "assign", "rules")


def _output(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for output, which the command passes on to `_measure`."""
    saved = click.Path(dir_okay=False, path_type=Path)
    for option in (
        click.option("--save", type=saved, metavar="FILE", help="Write a result file, for `treadle bench results`."),
        click.option("--report-only", is_flag=True, help="Exit code 0 also where a claim does not hold."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    ):
        command = option(command)
    return command


@click.group()
def bench() -> None:
    """Measure Treadle and check claims about its default settings. Exit code 1: a claim does not hold."""


@bench.command("core")
@_output
def bench_core(**output: Any) -> None:
    """Measure the cost of a control round, and the speed of the simulator."""
    from treadle.bench import core

    _measure(lambda told: core.run(progress=lambda what: told(what, 0.0)), **output)


@bench.command("pipelines")
@_output
@click.option("--repetitions", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=5), default=20.0, show_default=True, help="Seconds of each run.")
@click.option(
    "--load",
    type=click.FloatRange(min=0.05),
    default=1.3,
    show_default=True,
    help="Share of all cores, in part classes.",
)
@click.option("--part", "parts", type=click.Choice(PIPELINES_PARTS), multiple=True, help="Run only this part.")
def bench_pipelines(repetitions: int, seconds: float, load: float, parts: tuple[str, ...], **output: Any) -> None:
    """Compare Spark's FIFO and FAIR with Treadle and its policies, on queries that fill the machine (45 minutes)."""
    from treadle.bench.pipelines import schedulers

    chosen = parts or PIPELINES_PARTS
    _measure(
        lambda told: schedulers.run(chosen, repetitions=repetitions, seconds=seconds, load=load, progress=told),
        **output,
    )


@bench.command("hops")
@_output
def bench_hops(**output: Any) -> None:
    """Measure the cost of a small batch on Spark's default set-up and on Treadle's (5 minutes)."""
    from treadle.bench.pipelines import hops

    _measure(lambda told: hops.run(progress=told), **output)


@bench.command("channels")
@_output
def bench_channels(**output: Any) -> None:
    """Measure the speed of rows through the embedded channel, files and Kafka (3 minutes)."""
    from treadle.bench.pipelines import channels

    _measure(lambda told: channels.run(progress=told), **output)


@bench.command("attach")
@_output
@click.option("--part", "parts", type=click.Choice(ATTACH_PARTS), multiple=True, help="Run only this part.")
@click.option("--repetitions", type=click.IntRange(min=1), default=1, show_default=True)
def bench_attach(parts: tuple[str, ...], repetitions: int, **output: Any) -> None:
    """Compare running applications under the OS alone and under treadle attach, on one core (45 minutes)."""
    from treadle.bench.attach import comparisons

    chosen = parts or ATTACH_PARTS
    _measure(lambda told: comparisons.run(chosen, repetitions=repetitions, progress=told), **output)


@bench.command("adaptive")
@_output
@click.option("--part", "parts", type=click.Choice(ADAPTIVE_PARTS), multiple=True, help="Run only this part.")
@click.option("--minute", metavar="TIME", default="60s", show_default=True, help="How long the load stays the same.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="How often each kind of load is run."
)
@click.option("--repetitions", type=click.IntRange(min=1), default=1, show_default=True)
def bench_adaptive(parts: tuple[str, ...], minute: str, rounds: int, repetitions: int, **output: Any) -> None:
    """Compare learners with each policy alone, and an oracle, on a load that changes every minute (an hour)."""
    from treadle.bench import adaptive

    chosen, length = parts or ADAPTIVE_PARTS, durations.seconds(minute, what="--minute")
    _measure(
        lambda told: adaptive.run(chosen, minute=length, rounds=rounds, repetitions=repetitions, progress=told),
        **output,
    )


@bench.command("loop")
@_output
def bench_loop(**output: Any) -> None:
    """Measure the cost of treadle attach at 50 ms, on 100 and on 1,000 threads (9 minutes)."""
    from treadle.bench.attach import loop

    _measure(lambda told: loop.run(progress=told), **output)


@bench.command("truth")
@_output
def bench_truth(**output: Any) -> None:
    """Compare the figures of treadle attach with the application's own counts (3 minutes)."""
    from treadle.bench.truth import stages

    _measure(lambda told: stages.run(progress=told), **output)


@bench.command("quality")
@_output
@click.option("--scenario", type=click.Choice(["1", "2", "3", "4", "5"]), default="2", show_default=True)
@click.option(
    "--cycle", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds between decisions."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the run into this file.")
def bench_quality(scenario: str, cycle: float, plot: Path | None, **output: Any) -> None:
    """Measure whether promises are kept at about 1.5 times the machine's capacity, with Kafka (5 minutes)."""
    from treadle.bench import figures
    from treadle.bench.quality import scenario_run
    from treadle.bench.quality.scenarios import SCENARIOS

    if plot is not None:
        figures.check()
    _measure(lambda told: scenario_run.run(SCENARIOS[scenario], cycle=cycle, plot=plot, progress=told), **output)


@bench.command("results")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default="benchmarks/results")
def bench_results(folder: Path) -> None:
    """Print the page of all result files in FOLDER (default: benchmarks/results), as in docs/results.md."""
    from treadle.bench import results

    click.echo(results.page(results.read(folder)), nl=False)


@click.command()
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default="out", show_default=True)
@click.option("--simulator", is_flag=True, help="Three comparisons in virtual time instead; needs no Spark.")
def demo(folder: Path, simulator: bool) -> None:
    """Show the effect of scheduling: 13 queries on Spark under FIFO, FAIR and Treadle, with a table and a picture."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't make it: {error.strerror}", where=str(folder), remedy="name another folder") from None
    from treadle.cli import _progress

    shown: list[tuple[str, Any]]
    with _progress(quiet=False) as told:
        if simulator:
            from treadle.bench.simulator import orderings

            shown = [(part.name, part) for part in orderings.run(progress=told)]
        else:
            from treadle.bench import demo as on_spark

            shown = [("urgent-queries", on_spark.run(progress=told))]
    for name, part in shown:
        _tell(part.table, part.claims)
        part.draw(folder / f"{name}.png")
        click.echo(f"  picture: {folder / name}.png\n")


def _tell(table: Table, claims: Sequence[Any]) -> None:
    from treadle.cli import _out

    _out.print(table)
    for claim in claims:
        mark = "[green]yes[/]" if claim.holds else "[red]NO[/]"
        _out.print(f"  {mark}  {escape(claim.text)}")


def _measure(run: Callable[[Any], dict[str, Any]], *, as_json: bool, report_only: bool, save: Path | None) -> None:
    """Run a benchmark and show its figures. Exit code 1 if a claim does not hold, or a variant died."""
    from treadle.bench import claims, results
    from treadle.cli import _err, _progress, _show

    with _progress(quiet=False) as told:
        found = run(told)
    if save is not None:
        results.save(save, shlex.join(["treadle", *_arguments()]), found)
    if as_json:
        click.echo(json.dumps(found))
    else:
        figures = {key: value for key, value in found.items() if key not in ("claims", claims.DIED)}
        _show(["figure", "value"], [(key, _shown(value)) for key, value in figures.items()])
        _show(["", "claim", "aim", "measured"], [_row(each) for each in found["claims"]])
    for variant, why in found.get(claims.DIED, {}).items():
        _err.print(f"[bold red]died:[/] {escape(visible(f'{variant}: {why}'))}", soft_wrap=True)
    if claims.fails(found) and not report_only:
        sys.exit(1)


def _arguments() -> list[str]:
    """Return the arguments of the command line, without the options for output."""
    words = iter(sys.argv[1:])
    shown = []
    for word in words:
        if word in ("--save", "--plot"):
            next(words, None)
        elif word not in ("--json", "--report-only") and not word.startswith(("--save=", "--plot=")):
            shown.append(word)
    return shown


def _row(claim: dict[str, Any]) -> tuple[str, ...]:
    measured = "not measured" if claim["measured"] is None else f"{claim['measured']:g}"
    return "held" if claim["holds"] else "FAILED", claim["claim"], claim["aim"], measured


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(_shown(each) for each in value)
    return ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else f"{value}"
