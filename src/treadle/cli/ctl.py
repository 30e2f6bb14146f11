"""`treadle ctl` shows and changes what runs already: a pipeline, or an application with a gate."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from treadle.cli import attach_tables
from treadle.cli.run import LONGEST_DRAIN, table
from treadle.cli.settings import with_settings
from treadle.cli.shown import say
from treadle.control import control_socket as wire
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle import config as configuration


@click.group()
def ctl() -> None:
    """Control a running pipeline, an application with a gate, or an attachment."""


_which = click.option("--pipeline", "which", metavar="NAME", help="Name of the pipeline, if several run.")


@ctl.command()
@click.argument("name", required=False)
@_which
@with_settings
def policy(obj: tuple[configuration.Config, str], name: str | None, which: str | None) -> None:
    """Show the current policy, or replace it by NAME."""
    say(wire.ask(wire.pick(which), "policy", name=None if name is None else obj[0].policy(name)))


@ctl.command()
@click.argument("count", type=int, required=False, metavar="[N]")
@_which
def slots(count: int | None, which: str | None) -> None:
    """Show how many hops may run at once, or set it."""
    say(wire.ask(wire.pick(which), "slots", count=count))


@ctl.command("set")
@click.argument("wanted", nargs=-1, metavar="[NAME=VALUE]…")
@_which
@click.option("--dry-run", is_flag=True, help="Only check the values, and show what would change.")
def set_(wanted: tuple[str, ...], which: str | None, dry_run: bool) -> None:
    """Change settings, all of them or none; without arguments show all current values.

    A value is JSON or text: `treadle ctl set policy=fcfs period=200ms slots=auto`.
    """
    path = wire.pick(which)
    if not wanted:
        for name, value in wire.ask(path, "settings").items():
            say(f"{name}={json.dumps(value) if not isinstance(value, str) else value}")
        return
    for change in wire.ask(path, "set", settings=_settings(wanted), dry_run=dry_run):
        done = "would change" if dry_run else "changed"
        say(f"{done} {change['setting']} from {change['before']} to {change['after']}")


@ctl.command()
@_which
def pause(which: str | None) -> None:
    """Restore all changed values and hold nothing back, until `resume`."""
    wire.ask(wire.pick(which), "set", settings={"paused": True})


@ctl.command()
@_which
def resume(which: str | None) -> None:
    """Decide again after a pause."""
    wire.ask(wire.pick(which), "set", settings={"paused": False})


@ctl.command()
@_which
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each change.")
def history(which: str | None, as_json: bool) -> None:
    """Show the changes of settings: when, from what to what, and by whom."""
    for change in wire.ask(wire.pick(which), "history"):
        when = time.strftime("%F %T", time.localtime(change["time"]))
        text = f"{when}  {change['setting']} from {change['before']} to {change['after']}  ({change['who']})"
        say(json.dumps(change) if as_json else text)


@ctl.command()
@_which
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(which: str | None, as_json: bool) -> None:
    """Show the current status."""
    from treadle.cli import _out

    seen = wire.ask(wire.pick(which), "status")
    if as_json:
        click.echo(json.dumps(seen))
    else:
        _out.print(table(seen) if "hops" in seen else attach_tables.table(seen))


@ctl.command()
@_which
@click.option("--drain", is_flag=True, help="First process all waiting rows.")
def stop(which: str | None, drain: bool) -> None:
    """Stop the pipeline after the running batches, or after all waiting rows."""
    path = wire.pick(which)
    wire.ask(path, "stop", drain=drain, timeout=LONGEST_DRAIN if drain else 60.0)
    say(f"stopping '{wire.name_of(path)}'")


def _settings(words: Iterable[str]) -> dict[str, Any]:
    """Parse NAME=VALUE; a value that is not JSON is text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            problem = f"'{word}' is given twice" if name in found else f"'{word}' is not a setting with a value"
            raise ConfigError(problem, where="set", remedy="write each setting once, as period=200ms")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
