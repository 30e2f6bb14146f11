"""`treadle attach` schedules running Spark applications, `treadle top` shows them, `treadle restore` cleans up.

Ctrl-C and SIGTERM end them after everything is restored.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.live import Live

from treadle import durations
from treadle.cli.attach_options import before, goals_of, pairs, slots_of, targets
from treadle.cli.attach_tables import changes, table, title
from treadle.cli.settings import with_settings
from treadle.cli.shown import say
from treadle.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from treadle import config as configuration
    from treadle.attachment import Attachment
    from treadle.loop import DecisionBatch

LOOKS = 1.0
"""Seconds for which a dry run, `--once` and `top --once` observe before they print, counted from the time when all
queries have been active."""
PER_SECOND = 2
"""Updates of the table per second."""


@click.command()
@targets
@click.option("--policy", "-p", metavar="P", help="NAME[:key=value,…]; `treadle policies` lists them.")
@click.option("--enforce", "-e", metavar="E", help="nice, cgroup, rt, slice or quota; combined as in cgroup+nice.")
@click.option("--period", metavar="TIME", help="Time between two decisions (default: 50ms).")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    metavar="PATTERN=N",
    help="Share of the CPU of matching queries (default: 1).",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Use only the order of priorities; the highest has about 100 times the weight of the lowest.",
)
@click.option(
    "--latency-goal",
    "goals",
    multiple=True,
    metavar="PATTERN=TIME",
    help="How old rows of matching queries may be (policy min-latency).",
)
@click.option(
    "--quota", "quotas", multiple=True, metavar="PATTERN=CPUS", help="The most CPUs that each matching query may use."
)
@click.option(
    "--query", "queries", multiple=True, metavar="PATTERN", help="Schedule only matching queries (default: all)."
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="'PATTERN: policy=P, …'",
    help="Another policy for matching queries, with priority=N and period=TIME; the first match counts.",
)
@click.option(
    "--qod",
    metavar="FILE",
    help="File of promises: the least part of its rows that each query keeps (docs/quality.md).",
)
@click.option(
    "--slots",
    metavar="N|auto",
    help="How many micro-batches of an application run at once (default: no limit; auto: one for each core).",
)
@click.option("--for", "length", metavar="TIME", help="How long to run, as 60s (default: until stopped).")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be changed.")
@click.option(
    "--once", is_flag=True, help="Decide for a second, keep the changes and end; `treadle restore` undoes them."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object for each change, and one for the final state."
)
@with_settings
def attach(
    obj: tuple[configuration.Config, str],
    /,
    target: list[Any],
    user: str | None,
    agent: bool | None,
    policy: str | None,
    enforce: str | None,
    period: str | None,
    priorities: tuple[str, ...],
    strict: bool,
    goals: tuple[str, ...],
    quotas: tuple[str, ...],
    queries: tuple[str, ...],
    rules: tuple[str, ...],
    qod: str | None,
    slots: str | None,
    length: str | None,
    dry_run: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Schedule the threads of running, unchanged Spark applications by a policy, through the Linux kernel.

    Name one or more by --pid, --name or --ui. Ctrl-C ends the command and restores all changed values.
    """
    from treadle.attachment import attach as library
    from treadle.decide import query_rules

    settings, policy_of = obj[0].attach, obj[0].policy
    limit = _limit(length, brief=dry_run or once)
    turns = settings.slots if slots is None else slots_of(slots)
    enforce, chosen = enforce or settings.enforce, policy or settings.policy
    _check_once(*(enforce, qod, turns) if once else (None, None, None))
    with _signals() as ask:
        attachment = library(
            target,
            policy=None if chosen is None else policy_of(chosen),
            enforce=enforce,
            period=period or settings.period,
            priorities=before(pairs("--priority", priorities), settings.priorities),
            strict=strict or settings.strict,
            latency_goals=goals_of(goals),
            quotas=before(pairs("--quota", quotas), settings.quotas),
            queries=queries or ("*",),
            rules=query_rules.before(rules, obj[0].rules),
            user=settings.user if user is None else user,
            qod=qod,
            slots=turns,
            dry_run=dry_run,
            agent=agent,
            background=False,
        )
        ask.append(attachment.ask_to_stop)
        _run(attachment, limit, as_json=as_json, leave=once, live=not dry_run and not once)
    _tell_the_end(attachment, once=once, qod=qod)


def _limit(length: str | None, *, brief: bool) -> float | None:
    return durations.seconds(length, what="--for") if length is not None else LOOKS if brief else None


def _check_once(enforce: str | None, qod: str | None, slots: int | str | None) -> None:
    """Refuse what needs a running process."""
    if enforce is not None and enforce.partition(":")[0].strip() == "rt":
        remedy = "leave out --once, or use another enforcer"
        raise ConfigError("real-time priorities need a running watchdog", where="--once", remedy=remedy)
    if qod is not None:
        raise ConfigError("promises need a running controller", where="--once", remedy="leave out --once, or --qod")
    if slots is not None:
        raise ConfigError("turns need a running agent", where="--once", remedy="leave out --once, or --slots")


@click.command()
@targets
@click.option("--for", "length", metavar="TIME", help="How long to run, as 60s (default: until stopped).")
@click.option("--once", is_flag=True, help="Observe for a second, show the table, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@with_settings
def top(
    obj: tuple[configuration.Config, str],
    /,
    target: list[Any],
    user: str | None,
    agent: bool | None,
    length: str | None,
    once: bool,
    as_json: bool,
) -> None:
    """Show queries, operators and threads of running Spark applications, and what `treadle attach` does to them.

    It changes nothing.
    """
    from treadle.attachment import look_on, watch
    from treadle.cli import _out

    limit = None if length is None else durations.seconds(length, what="--for")
    owner = obj[0].attach.user if user is None else user
    if (status := look_on(target, agent=bool(agent), user=owner)) is not None:
        _look_on(status, limit, once=once or not _out.is_terminal, as_json=as_json)
        return
    with _signals() as ask:
        attachment = watch(target, agent=agent, user=owner)
        ask.append(attachment.ask_to_stop)
        once = once or not _out.is_terminal  # one table, where updates can't be shown
        _run(attachment, LOOKS if once and limit is None else limit, as_json=as_json, live=not once)
    _tell_the_end(attachment)


@click.command()
def restore() -> None:
    """Restore priorities that a killed treadle process, or `attach --once`, left behind."""
    from treadle.attachment.checks import settle_leftovers
    from treadle.cli import _err

    with _err.status("putting back", spinner="dots"):
        done = settle_leftovers()
    failures = [failure for outcomes in done for failure in outcomes.failures]
    values = sum(len(outcomes.applied) for outcomes in done)
    click.echo(f"put back {values} values" if done else "there is nothing to put back")
    if failures:
        raise EngineError(
            f"{len(failures)} values could not be put back, the first is {failures[0]}", remedy="run it as root"
        )


def _run(attachment: Attachment, limit: float | None, *, as_json: bool, leave: bool = False, live: bool = True) -> None:
    """Run an attachment in this thread and show it: live, as a line per change, or as a table at the end."""
    from treadle.cli import _out

    if live and not as_json and _out.is_terminal:
        with Live(
            get_renderable=lambda: table(attachment.status()),
            console=_out,
            refresh_per_second=PER_SECOND,
            vertical_overflow="ellipsis",
        ):
            attachment.run(limit)
        return

    def end() -> None:
        if as_json:
            click.echo(json.dumps(attachment.status()))
        elif not live:
            seen = attachment.plan.policy.name == "none"
            _out.print(table(attachment.status()) if seen else changes(attachment))

    if live and not as_json:
        say(f"{title(attachment.status()).rpartition(',')[0]}; Ctrl-C ends it and puts everything back", err=True)
    told = _tell_json if as_json else _tell if live else None
    attachment.run(limit, told=told, before_end=end, leave=leave, patient=not live)


def _look_on(status: Callable[[], dict[str, Any] | None], limit: float | None, *, once: bool, as_json: bool) -> None:
    """Show the attachment of another process while that process runs."""
    from treadle.cli import _out

    shown = status()
    if shown is not None and as_json:
        click.echo(json.dumps(shown))
        return
    if shown is not None and once:
        _out.print(table(shown))
        return
    end = math.inf if limit is None else time.monotonic() + limit
    stopping: list[bool] = []
    with _signals() as asked, Live(console=_out, auto_refresh=False, vertical_overflow="ellipsis") as live:
        asked.append(lambda: stopping.append(True))
        while shown is not None and not stopping and time.monotonic() < end:
            live.update(table(shown), refresh=True)
            time.sleep(1.0 / PER_SECOND)
            shown = status()
    if shown is None:
        click.echo("the treadle process that scheduled the application has ended", err=True)


def _tell_the_end(attachment: Attachment, *, once: bool = False, qod: str | None = None) -> None:
    if attachment.dry_run and qod is not None:
        click.echo(
            "a dry run can't show which rows would be dropped: it does not load the agent that measures them",
            err=True,
        )
    if once and not attachment.dry_run:
        click.echo("the changes stay until `treadle restore`, or the next attach to the same application", err=True)
    if (values := attachment.loop.stats.restored) and not attachment.dry_run:
        click.echo(f"put back {values} values", err=True)
    if attachment.ended:
        say(f"{', '.join(attachment.applications)}: ended", err=True)


def _tell(batches: Iterable[DecisionBatch]) -> None:
    for batch in batches:
        for decision in batch:
            say(decision)


def _tell_json(batches: Iterable[DecisionBatch]) -> None:
    from treadle.attachment.shown import report

    for batch in batches:
        for decision in batch:
            click.echo(json.dumps(report.record(decision)))


@contextmanager
def _signals() -> Iterator[list[Callable[[], None]]]:
    """In the block, the first Ctrl-C or SIGTERM calls the function that the caller has put into the list.

    If the list is empty, as after the first signal, signals act as usual.
    """
    ask: list[Callable[[], None]] = []

    def handle(number: int, _: FrameType | None) -> None:
        if not ask:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        ask.pop()()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ask
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
