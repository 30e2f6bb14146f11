"""The command line: reads options, calls the library, shows the results. It has no logic of its own.

Every expected error is one line on standard error and exit code 2.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from treadle import __version__
from treadle import config as configuration
from treadle.cli.attach import attach, restore, top
from treadle.cli.bench import bench, demo
from treadle.cli.ctl import ctl
from treadle.cli.doctor import doctor
from treadle.cli.parts import jars, kafka
from treadle.cli.run import run
from treadle.cli.settings import with_settings
from treadle.cli.show import show
from treadle.cli.shown import failed, shown_lines
from treadle.cli.workloads import workloads
from treadle.errors import ConfigError, TreadleError
from treadle.observe.metric import Kind

if TYPE_CHECKING:
    from treadle.engines.simulator.run import Outcome

_out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
_err = Console(stderr=True, highlight=False)


def main() -> None:
    """Run the command line: every `TreadleError` becomes one line and exit code 2."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        _err.print("interrupted")
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except TreadleError as error:
        _err.print(failed(error), soft_wrap=True)
        sys.exit(2)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--verbose", "-v", is_flag=True, help="Log what the control loop does to standard error.")
@click.option(
    "--config", "config_file", metavar="FILE", help="Configuration file (default: treadle.toml, if there is one)."
)
@click.pass_context
def cli(context: click.Context, verbose: bool, config_file: str | None) -> None:
    """Treadle decides which streaming operators get the CPU, and when."""
    logging.basicConfig(
        format="%(levelname)s %(name)s: %(message)s", level=logging.INFO if verbose else logging.WARNING
    )
    context.obj = partial(configuration.load, config_file)


for _command in (bench, demo, run, ctl, attach, top, restore, show, doctor, jars, kafka, workloads):
    cli.add_command(_command)


@cli.command()
@click.argument("scenario")
@click.option(
    "--policy",
    "-p",
    "policies",
    multiple=True,
    metavar="P",
    help="NAME[:key=value,…][@KNOB], KNOB one of rank, nice, shares[/GROUPING], slice, rt. May be given several times.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), help="Virtual seconds (default: the scenario's)."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of all random numbers (default: the scenario's).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, policy -> figures and series.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw latency, memory and throughput.")
@click.option(
    "--decisions",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was changed and why, one JSON object a line.",
)
@with_settings
def simulate(
    obj: tuple[configuration.Config, str],
    scenario: str,
    policies: tuple[str, ...],
    seconds: float | None,
    seed: int | None,
    as_json: bool,
    plot: Path | None,
    decisions: Path | None,
) -> None:
    """Run SCENARIO, a shipped name or a TOML file, in virtual time and compare policies on it.

    `treadle scenarios` lists the shipped ones, `treadle policies` the policies.
    """
    from treadle.bench.simulator import compare
    from treadle.engines.simulator import scenario as scenarios

    settings = obj[0]
    loaded = scenarios.load(scenario)
    if plot is not None:
        compare.check_plot(plot)
    with _progress(quiet=as_json) as told, _without_warnings():
        outcomes = compare.compare(
            loaded,
            list(dict.fromkeys(policies or loaded.policies)),
            duration=seconds or settings.simulate.seconds,
            seed=settings.simulate.seed if seed is None else seed,
            resolve=partial(settings.policy, simulated=True),
            progress=told,
        )
    if as_json:
        click.echo(json.dumps(compare.as_json(outcomes)))
    else:
        _out.print(compare.table(outcomes, loaded.title))
    if decisions is not None:
        _write_decisions(outcomes, decisions)
    if plot is not None:
        compare.plot(outcomes, plot)
        _err.print(f"plot: {escape(str(plot))}")


@cli.command()
def scenarios() -> None:
    """List the scenarios that come with Treadle."""
    from treadle.engines.simulator import scenario

    _show(["scenario", "what it is"], [(name, scenario.load(name).title) for name in scenario.shipped()])


@cli.command()
def policies() -> None:
    """List the policies, their goals and the metrics they need."""
    from treadle.decide import registry

    rows = [
        (", ".join([d.name, *d.aliases]), d.optimises, ", ".join(d.needs) or "-", d.paper) for d in registry.describe()
    ]
    _show(["policy", "good for", "needs", "paper"], rows)


@cli.command()
@click.option(
    "--explain",
    "policy",
    metavar="POLICY",
    help="Show how the engine provides each metric that POLICY uses, and their kinds. Your own class is module:Class.",
)
@click.option(
    "--engine",
    default="simulator",
    show_default=True,
    help="The engine, for --explain; pipeline for hops and the gate.",
)
def metrics(policy: str | None, engine: str) -> None:
    """List the metrics, or explain how an engine provides those that a policy needs."""
    from treadle.decide import registry
    from treadle.engines import registry as engines
    from treadle.observe import METRICS, explain, plannable
    from treadle.pipelines.hops import hop_engine

    if policy is None:
        rows = [(m.name, m.unit, "derived" if m.ways else "base", _kind(m.kind), m.help) for m in METRICS.values()]
        _show(["metric", "unit", "from", "changes", "what it is"], rows)
        return
    offers = hop_engine.OFFERS if engine == "pipeline" else engines.get(engine).offers
    made = registry.create_or_import(policy)
    wanted = [name for name in made.wants if plannable(name, offers)]
    click.echo(explain([*made.needs, *wanted], offers, engine, policy=made.name))


@cli.group("config")
def config_group() -> None:
    """Show the configuration."""


@config_group.command("show")
@with_settings
def config_show(obj: tuple[configuration.Config, str]) -> None:
    """Print the configuration in force as TOML, and its origin."""
    settings, source = obj
    click.echo(f"# from: {source}\n{configuration.as_toml(settings)}", nl=False)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings of the loop: a failure ends a simulation with an error, which says the same."""
    loop = logging.getLogger("treadle.loop")
    before = loop.level
    if not loop.isEnabledFor(logging.INFO):
        loop.setLevel(logging.ERROR)
    try:
        yield
    finally:
        loop.setLevel(before)


def _write_decisions(outcomes: Sequence[Outcome], path: Path) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for outcome in outcomes:
                for d in outcome.decisions:
                    record = {"run": outcome.label, "time": round(d.time, 9), "instance": d.instance, "knob": d.knob}
                    file.write(json.dumps({**record, "from": d.before, "to": d.after, "why": d.why}) + "\n")
    except OSError as error:
        raise ConfigError(
            f"can't write: {error.strerror}", where=str(path), remedy="name a file you may write"
        ) from None
    _err.print(f"decisions: {escape(str(path))}")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Any]:
    """Show a progress bar on standard error, unless that is no terminal or the output is JSON."""
    columns = (
        TextColumn("{task.description:<36}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=_err, transient=True, disable=quiet or not _err.is_terminal) as bar:
        task = bar.add_task("starting (the first time: compiling)", total=1.0)
        yield lambda what, part: bar.update(task, description=escape(what[:36]), completed=part)


def _show(titles: list[str], rows: Sequence[tuple[str, ...]]) -> None:
    grid = Table(header_style="bold")
    for title in titles:
        grid.add_column(title, overflow="fold")
    for row in rows:
        grid.add_row(*map(shown_lines, row))
    _out.print(grid)


def _kind(kind: Kind) -> str:
    """Describe in words when a metric changes; `kind` is one of Haren's kinds of features."""
    if kind == Kind.STATIC:
        return "never"
    dependent = Kind.ON_UPSTREAM in kind or Kind.ON_DOWNSTREAM in kind
    return ("with its neighbours" if dependent else "with its operator") + (
        ", measured only while it runs" if Kind.INTRINSIC in kind else ""
    )
