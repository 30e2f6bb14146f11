"""`treadle run` runs a pipeline file and shows its progress.

Ctrl-C and SIGTERM end a pipeline as cleanly as its time limit does.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from treadle import durations
from treadle.cli import adaptive_lines, workloads
from treadle.cli.settings import with_settings
from treadle.cli.shown import failed, plain_table, shown
from treadle.errors import ConfigError, EngineError, TreadleError

if TYPE_CHECKING:
    from treadle import config as configuration
    from treadle.pipelines.run.run import Run

LOOK = 1.0
"""Seconds between two updates of the live table."""
LONGEST_DRAIN = 3700.0


@click.command()
@click.argument("pipeline", metavar="PIPELINE.py[:NAME]|workload:NAME")
@click.option("--policy", "-p", metavar="P", help="NAME[:key=value,…]; `treadle policies` lists them.")
@click.option(
    "--layout",
    help="hops: a query per operator (default); fused: a query per sink, with all operators before it; realtime: as "
    "fused, in Spark's Real-Time Mode, where `treadle attach` can schedule each operator.",
)
@click.option("--slots", help="How many hops run at once: a number, or auto (default).")
@click.option("--enforce", help="gate (default), pools (Spark's FAIR pools) or none (Spark alone; always in realtime).")
@click.option("--for", "length", metavar="TIME", help="How long to run, as 60s (default: until stopped).")
@click.option("--folder", help="Where channels and checkpoints are kept (default: .treadle/NAME).")
@click.option("--period", metavar="TIME", help="How often the policy decides (default: 100ms).")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="'PATTERN: policy=P, …'",
    help="Another policy for matching sinks, with priority=N and period=TIME; the first match counts.",
)
@click.option(
    "--batch",
    metavar="TIME",
    help="How long a batch should hold its slot, or '1000 rows' (default: 500ms; realtime: 5s).",
)
@click.option(
    "--assign",
    metavar="F",
    help="Slots own hops: none (default), random, round-robin, load-balance, adaptive, MODULE:F.",
)
@click.option("--assign-period", metavar="TIME", help="How often hops are assigned to slots (default: 1s).")
@click.option("--rate", type=click.FloatRange(min=0), help="Rows a second that a workload gets (default: 1000).")
@click.option("--retries", type=click.IntRange(min=0), help="How often in a row a hop may fail (default: 3).")
@click.option("--on-failure", help="When a sink has failed for good: stop (default), continue without it, or retry.")
@click.option("--channels", help="The channels between hops: embedded (default) or kafka.")
@click.option("--kafka", metavar="HOST:PORT", help="The broker for topics and Kafka channels.")
@click.option("--master", help="Spark's master, as spark://host:7077 (default: this process).")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. May be given several times.")
@click.option("--drain", is_flag=True, help="At the end first process all waiting rows.")
@click.option("--json", "as_json", is_flag=True, help="Print the final status as one JSON object.")
@with_settings
def run(
    obj: tuple[configuration.Config, str],
    /,
    pipeline: str,
    length: str | None,
    rate: float | None,
    master: str | None,
    conf: tuple[str, ...],
    drain: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a pipeline: a Python file, or FILE.py:NAME if it has several, or a workload of the papers. Ctrl-C ends it.

    Exit code 1: an operator or a sink failed for good. 2: the pipeline could not start.
    """
    from treadle.cli import _err, _out
    from treadle.pipelines import load

    limit = None if length is None else durations.seconds(length, what="--for")
    options = {name: value for name, value in given.items() if value is not None}
    options["rules"] = _rules(options["rules"], obj[0].rules, options.get("layout"))
    if "policy" in options:
        options["policy"] = obj[0].policy(options["policy"])
    if "slots" in options:
        options["slots"] = _slots(options["slots"])
    workloads.check(pipeline, rate)
    if pipeline.startswith(workloads.PREFIX):
        spark = _session(workloads.named(pipeline).name, master, conf, options)
        loaded = workloads.named(pipeline).pipeline(spark)
        _check(loaded, options)
    else:
        loaded = load(pipeline)
        _check(loaded, options)
        spark = _session(loaded.name, master, conf, options) if master or conf else None
    _quieten()
    with _err.status(f"starting '{escape(loaded.name)}'", spinner="dots"):
        running = loaded.start(spark, **options)
    began = time.monotonic()
    with running, workloads.loaded(running, pipeline, rate) as end_load:
        failure = _watch(running, limit, end_load, drain=drain)
    status = running.status()
    if as_json:
        click.echo(json.dumps(status))
    else:
        _out.print(table(status, None, time.monotonic() - began))
    ended = [EngineError(why, where=f"sink '{sink}'") for sink, why in running.failed.items()]
    for error in [failure] if failure is not None else ended:
        _err.print(failed(error), soft_wrap=True)
    if failure is not None or ended:
        sys.exit(1)


def _quieten() -> None:
    """Without -v, silence py4j and PySpark: their failures are in Spark's log and in our own error too."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        return
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    with suppress(ImportError):  # the session has a better error
        from pyspark.logger import PySparkLogger

        PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def table(status: Mapping[str, Any], before: Mapping[str, Any] | None = None, seconds: float | None = None) -> Group:
    """Return a pipeline's status as a table; rows per second are since the status `before`, taken `seconds` ago.

    Without `before` they are since the start, without `seconds` they are left out.
    """
    title = "{pipeline}: policy {policy}, {slots} slots, {waiting} waiting, {running} running".format(**status)
    grid = plain_table(title)
    grid.add_column("hop", overflow="fold")
    grid.add_column("state")
    sinks = (status.get("quality") or {}).get("sinks", {})
    grouped = bool(status.get("groups"))
    columns = (
        *(["group"] if grouped else []),
        "queue",
        "rank",
        "rows",
        *(["rows/s"] if seconds else []),
        *(["kept"] if sinks else []),
        "batches",
    )
    for name in (*columns, "p50", "p99"):
        grid.add_column(name, justify="right")
    ruled = any(hop.get("rule") for hop in status["hops"].values())
    if ruled:
        grid.add_column("rule", overflow="fold")
    for name, hop in status["hops"].items():
        earlier = before["hops"].get(name, {}).get("rows_in", 0) if before is not None else 0
        rate = [_rate(max(0, hop["rows_in"] - earlier) / seconds)] if seconds else []
        latency = hop.get("latency_seconds") or {}
        cells = [
            hop["state"],
            *([_number(hop.get("group"))] if grouped else []),
            _number(hop["queue"]),
            _number(hop["rank"]),
            _number(hop["rows_in"]),
            *rate,
            *([_part(sinks.get(name, {}).get("kept"))] if sinks else []),
            _number(hop["batches"]),
            _length(latency.get("p50")),
            _length(latency.get("p99")),
            *([hop["rule"] or "-"] if ruled else []),
        ]
        grid.add_row(*map(shown, (name, *cells)))
    return Group(grid, *map(Text, adaptive_lines.lines(status)), *assigned(status), *dropped(status))


def assigned(status: Mapping[str, Any]) -> list[Text]:
    """Return a line with the load of each group of slots, and one if the last assignment was refused."""
    if not status.get("groups"):
        return []
    loads = ", ".join(f"{group['load']:.2f}" for group in status["groups"])
    lines = [shown(f"assign {status['assign']}: load of group 0 and on: {loads}")]
    if status["assign_refused"]:
        lines.append(shown(f"the last assignment was refused: {status['assign_refused']}"))
    return lines


def dropped(status: Mapping[str, Any]) -> list[Text]:
    """Return a line for each sink that drops or dropped rows, and for each sink whose `min_accuracy` can't be kept."""
    quality = status.get("quality") or {}
    lines = []
    for name, sink in quality.get("sinks", {}).items():
        if sink["since"] is None and sink["kept_in_all"] >= 1.0:
            continue
        since = "" if sink["since"] is None else f", dropped since {time.strftime('%X', time.localtime(sink['since']))}"
        now = "" if sink["kept"] is None else f"{_part(sink['kept'])} now, "
        promise = f"promised: {_part(sink['min_accuracy'])}{' accuracy' if sink['own_accuracy'] else ''}"
        lines.append(shown(f"rows kept of {name}: {now}{_part(sink['kept_in_all'])} in all ({promise}){since}"))
    return lines + [shown(each) for each in quality.get("short", ())]


def _watch(running: Run, limit: float | None, end_load: Callable[[], None], *, drain: bool) -> TreadleError | None:
    """Show a pipeline until it ends or a signal arrives, and stop load and pipeline; return a failed hop's error."""
    from treadle.cli import _err

    over = threading.Event()
    failures: list[TreadleError] = []

    def wait() -> None:
        try:
            running.wait(limit)
        except TreadleError as error:
            failures.append(error)
        finally:
            over.set()

    with running, _ended_by_signals(over.set):
        threading.Thread(target=wait, name="treadle-wait", daemon=True).start()
        if _err.is_terminal:
            _show_live(running, over)
        over.wait()
        end_load()
        if not failures:
            with _err.status("draining" if drain else "stopping", spinner="dots"):
                running.stop(drain=drain, **({"timeout": LONGEST_DRAIN} if drain else {}))
    return failures[0] if failures else None


def _show_live(running: Run, over: threading.Event) -> None:
    from treadle.cli import _err

    before, looked = running.status(), time.monotonic()
    with Live(table(before), console=_err, auto_refresh=False, transient=True) as live:
        while not over.wait(LOOK):
            now, seen = time.monotonic(), running.status()
            live.update(table(seen, before, now - looked), refresh=True)
            before, looked = seen, now


@contextmanager
def _ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """In the block, the first Ctrl-C or SIGTERM calls `end`; the next one interrupts at once.

    Spark's own handler would cancel all jobs, but running batches should finish.
    """
    asked = False

    def handle(_: int, __: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        end()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(loaded: Any, options: Mapping[str, Any]) -> None:
    """Raise an error for a bad policy or pipeline, before a JVM is started."""
    from treadle.decide import query_rules, registry
    from treadle.pipelines.hops.options import LEAST_PERIOD, policy_of

    if "policy" in options:
        registry.create(options["policy"])
    query_rules.read(options["rules"], policy_of, least=LEAST_PERIOD)
    loaded.topology(options.get("layout", "hops"))


def _rules(given: tuple[str, ...], configured: tuple[dict[str, Any], ...], layout: str | None) -> list[dict[str, Any]]:
    """Return the rules of the command line and of the configuration; the latter are not for the layout `realtime`."""
    from treadle.decide import query_rules

    return query_rules.before(given, () if layout == "realtime" else configured)


def _session(name: str, master: str | None, conf: tuple[str, ...], options: Mapping[str, Any]) -> Any:
    from treadle.pipelines.spark.session import session

    pairs = [setting.partition("=") for setting in conf]
    for (key, equals, _), setting in zip(pairs, conf, strict=True):
        if not key or not equals:
            raise ConfigError(f"'{setting}' is not a setting", where="--conf", remedy="write it as key=value")
    config = {key.strip(): value for key, _, value in pairs}
    return session(name, master=master, config=config, fair=options.get("enforce") == "pools")


def _slots(text: str) -> int | str:
    """Return a number if the text is one; the pipeline checks any other text."""
    try:
        return int(text)
    except ValueError:
        return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else f"{value}"


def _part(value: float | None) -> str:
    from treadle.pipelines.quality.drops import percent

    return "-" if value is None else percent(value)


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _length(value: float | None) -> str:
    return "-" if value is None else durations.text(value) if value > 0 else "0"
