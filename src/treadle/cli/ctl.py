"""`treadle ctl` shows and changes what runs already: a pipeline, an application with a gate, or an attachment.

Each setting has a short command, made from the table `SHORT`. `get` and `set` work for every setting that the target
offers, also for one that the table does not have.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from treadle.cli import attach_tables
from treadle.cli.run import LONGEST_DRAIN, table
from treadle.cli.shown import say
from treadle.control import control_socket as wire
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.cli.settings import Settings

Load = Callable[[], "Settings"]
"""Reads the configuration."""
_TARGET = "treadle.ctl.target"


class _Ctl(click.Group):
    """A group whose commands may have the name of the target in front: `treadle ctl fraud policy`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if len(args) > 1 and args[0] not in self.commands and args[1] in self.commands:
            ctx.meta[_TARGET], *args = args
        return super().resolve_command(ctx, args)


@click.group(cls=_Ctl, subcommand_metavar="[NAME] COMMAND [VALUE]…")
def ctl() -> None:
    """Control a running pipeline, an application with a gate, or an attachment.

    If several run, NAME chooses one; a NAME that is also a command is given by --pipeline.
    """


_which = click.option("--pipeline", "which", metavar="NAME", help="Name of the target, if several run.")
_dry_run = click.option("--dry-run", is_flag=True, help="Only check the values, and show what would change.")


def _one(words: Sequence[str]) -> Any:
    """Return the value in a single word: JSON, or else text."""
    if len(words) != 1:
        raise ConfigError(f"takes one value, not {len(words)}", remedy="quote a value that has spaces")
    try:
        return json.loads(words[0])
    except ValueError:
        return words[0]


def _text(words: Sequence[str]) -> str:
    return str(_one([json.dumps(word) for word in words]))


def _pairs(words: Sequence[str]) -> Any:
    """Return NAME=VALUE words as a mapping; a single word without a name is the whole value, as `off` or JSON."""
    if len(words) == 1 and ("=" not in words[0] or words[0].startswith("{")):
        return {"on": True, "off": False}.get(words[0], _one(words))
    return _settings(words)


class Short(NamedTuple):
    """A short command: its name and arguments, the setting that it shows and changes, and what `--help` says."""

    name: str
    takes: str
    help: str
    setting: str = ""
    """Its name where the server lists it; the command's own name if empty."""
    parse: Callable[[Sequence[str]], Any] = _one
    shows: str = ""
    """The command of the server that returns what to show; the value of the setting if empty."""


SHORT = (
    Short("policy", "[POLICY]", "Show the current policy, or replace it by POLICY.", parse=_text),
    Short("priority", "[NAME=NUMBER]…", "Show priorities, or replace them: alerts=10; higher is more urgent.",
          "priorities", _pairs),
    Short("slots", "[N|auto]", "Show how many batches may run at once, or set it.", shows="slots"),
    Short("batch", "[TIME]", "Show how long a batch should hold its slot, or set it."),
    Short("period", "[TIME]", "Show the time between two decisions, or set it."),
    Short("patience", "[TIME]", "Show how long a query may wait before it may go ahead of others, or set it."),
    Short("express", "[N]", "Show how many extra slots there are for more urgent queries, or set it."),
    Short("quality", "[on|off|NAME=SHARE]…", "Show the shares of rows that are kept at least, or replace them.",
          parse=_pairs),
    Short("assign", "[FUNCTION]", "Show which slots serve which queries, or set it."),
    Short("objectives", "[OBJECTIVES]", "Show what a learning policy aims at, or set it."),
    Short("candidates", "[POLICIES]", "Show the policies that a learning policy chooses from, or set them."),
    Short("rules", "[RULES]", "Show the policies by sets of queries, or set them."),
)  # fmt: skip


def _add(short: Short) -> None:
    setting = short.setting or short.name

    @ctl.command(short.name, help=short.help)
    @click.argument("words", nargs=-1, metavar=short.takes)
    @_which
    @_dry_run
    @click.pass_obj
    def run(load: Load, words: tuple[str, ...], which: str | None, dry_run: bool) -> None:
        path = _target(which)
        if words:
            changes = _change(path, _spelt_out(load, {setting: short.parse(words)}), dry_run=dry_run)
            if dry_run:
                _say_changes(changes, dry_run=True)
                return
        now = _read(path, setting)
        say(_shown(wire.ask(path, short.shows) if short.shows else now))


for _short in SHORT:
    _add(_short)


@ctl.command("get")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@_which
def get(names: tuple[str, ...], which: str | None) -> None:
    """Show the values of settings, or of all settings."""
    path = _target(which)
    values = {name: _read(path, name) for name in names} or wire.ask(path, "settings")
    for name, value in values.items():
        say(_shown(value) if len(names) == 1 else f"{name}={_shown(value)}")


@ctl.command("set")
@click.argument("wanted", nargs=-1, metavar="[NAME=VALUE]…")
@_which
@_dry_run
@click.pass_obj
def set_(load: Load, wanted: tuple[str, ...], which: str | None, dry_run: bool) -> None:
    """Change settings, all of them or none; without arguments show all current values.

    A value is JSON or text: `treadle ctl set policy=fcfs period=200ms slots=auto`.
    """
    path = _target(which)
    if not wanted:
        for name, value in wire.ask(path, "settings").items():
            say(f"{name}={_shown(value)}")
        return
    _say_changes(_change(path, _spelt_out(load, _settings(wanted)), dry_run=dry_run), dry_run=dry_run)


@ctl.command()
@click.argument("file", metavar="FILE.py[:NAME]")
@_which
@click.option("--dry-run", is_flag=True, help="Only check the new version, and show what would change.")
def reload(file: str, which: str | None, dry_run: bool) -> None:
    """Let a running pipeline become the version in FILE.py, after showing what differs.

    New sinks start, sinks that are gone work off their rows and end, changed code starts again, the rest goes on.
    """
    path, file = _target(which), os.path.abspath(file)
    lines = wire.ask(path, "reload", file=file, dry_run=True)
    for line in lines or ["nothing differs"]:
        say(line)
    if lines and not dry_run:
        wire.ask(path, "reload", file=file, timeout=LONGEST_DRAIN)
        say("done")


@ctl.command()
@_which
@_dry_run
def pause(which: str | None, dry_run: bool) -> None:
    """Restore all changed values and hold nothing back, until `resume`."""
    _set_paused(which, paused=True, dry_run=dry_run)


@ctl.command()
@_which
@_dry_run
def resume(which: str | None, dry_run: bool) -> None:
    """Decide again after a pause."""
    _set_paused(which, paused=False, dry_run=dry_run)


@ctl.command()
@_which
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each change.")
def history(which: str | None, as_json: bool) -> None:
    """Show the changes of settings: when, from what to what, and by whom."""
    for change in wire.ask(_target(which), "history"):
        when = time.strftime("%F %T", time.localtime(change["time"]))
        say(json.dumps(change) if as_json else f"{when}  {_from_to(change)}  ({change['who']})")


@ctl.command()
@_which
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(which: str | None, as_json: bool) -> None:
    """Show the current status."""
    from treadle.cli import _out

    seen = wire.ask(_target(which), "status")
    if as_json:
        click.echo(json.dumps(seen))
    else:
        _out.print(table(seen) if "hops" in seen else attach_tables.table(seen))


@ctl.command()
@_which
@click.option("--drain", is_flag=True, help="First process all waiting rows.")
def stop(which: str | None, drain: bool) -> None:
    """Stop the pipeline after the running batches, or after all waiting rows."""
    path = _target(which)
    wire.ask(path, "stop", drain=drain, timeout=LONGEST_DRAIN if drain else 60.0)
    say(f"stopping '{wire.name_of(path)}'")


def _target(which: str | None) -> Path:
    """Return the socket of the target, whose name stands in front of the command or after --pipeline."""
    named = click.get_current_context().meta.get(_TARGET)
    if named is not None and which is not None and named != which:
        raise ConfigError(f"names two targets, '{named}' and '{which}'", where="ctl", remedy="name one of them")
    return wire.pick(named if which is None else which)


def _read(path: Path, name: str) -> Any:
    """Return the value of a setting of the target, or refuse a setting that the target does not have."""
    there = wire.ask(path, "settings")
    if name not in there:
        remedy = f"it has {', '.join(there)}"
        raise ConfigError(f"has no setting '{name}'", where=f"'{wire.name_of(path)}'", remedy=remedy)
    return there[name]


def _change(path: Path, wanted: Mapping[str, Any], *, dry_run: bool) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = wire.ask(path, "set", settings=wanted, dry_run=dry_run)
    return changes


def _set_paused(which: str | None, *, paused: bool, dry_run: bool) -> None:
    changes = _change(_target(which), {"paused": paused}, dry_run=dry_run)
    if dry_run:
        _say_changes(changes, dry_run=True)


def _say_changes(changes: Iterable[Mapping[str, Any]], *, dry_run: bool) -> None:
    lines = [f"{'would change' if dry_run else 'changed'} {_from_to(change)}" for change in changes]
    for line in lines or (["nothing would change"] if dry_run else []):
        say(line)


def _from_to(change: Mapping[str, Any]) -> str:
    before, after = (
        json.dumps(value) if isinstance(value, dict | list) else str(value)
        for value in (change["before"], change["after"])
    )
    return f"{change['setting']} from {before} to {after}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _spelt_out(load: Load, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the same settings; a policy gets the options that the configuration has for it."""
    if isinstance(wanted.get("policy"), str):
        wanted["policy"] = load()[0].policy(wanted["policy"])
    return wanted


def _settings(words: Iterable[str]) -> dict[str, Any]:
    """Parse NAME=VALUE; a value that is not JSON is text."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or name in found:
            problem = f"'{word}' is given twice" if name in found else f"'{word}' is not a setting with a value"
            raise ConfigError(problem, where="set", remedy="write each once, as period=200ms")
        found[name] = _one([value])
    return found
