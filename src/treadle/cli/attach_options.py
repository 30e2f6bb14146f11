"""Options of `treadle attach` and `treadle top`, and their conversion to arguments of the library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from treadle.errors import ConfigError


def targets(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select applications; the command gets the selected ones as `target`."""

    @functools.wraps(command)
    def found(*args: Any, pids: Iterable[int], names: Iterable[str], uis: Iterable[str], **given: Any) -> None:
        command(*args, target=named(pids, names, uis), **given)

    options = (
        click.option(
            "--pid",
            "-P",
            "pids",
            type=int,
            multiple=True,
            help="Process id of the driver, the Python program, or an executor.",
        ),
        click.option("--name", "-n", "names", multiple=True, metavar="NAME", help="The name of the application."),
        click.option("--ui", "uis", multiple=True, metavar="URL", help="The address of the application's Spark UI."),
        click.option(
            "--user",
            metavar="NAME|UID",
            help="The user whose applications --name selects (default: you, also under sudo).",
        ),
        click.option(
            "--agent/--no-agent",
            default=None,
            help="Load agents into its JVMs (default: Treadle's own, and Jolokia if the policy or `rt` needs it).",
        ),
    )
    made: Callable[..., None] = found
    for option in reversed(options):
        made = option(made)
    return made


def named(pids: Iterable[int], names: Iterable[str], uis: Iterable[str]) -> list[Any]:
    """Return the selected applications; `--name 4242` is a name although it is a number."""
    from treadle.attachment.targets import Name, Ui

    return [*pids, *map(Name, names), *map(Ui, uis)]


def pairs(option: str, given: Iterable[str]) -> dict[str, float]:
    """Parse PATTERN=NUMBER of an option that may be repeated."""
    found: dict[str, float] = {}
    for text in given:
        pattern, equals, number = text.rpartition("=")
        try:
            found[pattern] = float(number)
        except ValueError:
            equals = ""
        if not equals or not pattern:
            example = "reports=0.5" if option == "--quota" else "alerts-*=10"
            raise ConfigError(
                f"'{text}' is not a pattern with a number", where=option, remedy=f"write it as '{example}'"
            )
    return found


def goals_of(given: Iterable[str]) -> dict[str, str]:
    """Parse PATTERN=TIME of an option that may be repeated."""
    found: dict[str, str] = {}
    for text in given:
        pattern, equals, goal = text.rpartition("=")
        if not equals or not pattern:
            raise ConfigError(
                f"'{text}' is not a pattern with a time", where="--latency-goal", remedy="write it as 'alerts-*=200ms'"
            )
        found[pattern] = goal
    return found


def slots_of(text: str) -> Any:
    """Return a number if the text is one, and None for "none"; `attach` checks any other text."""
    if text == "none":
        return None
    return int(text) if text.isdecimal() else text


def before(given: Mapping[str, float], configured: Mapping[str, float]) -> dict[str, float]:
    """Merge options and configuration, options first: if several patterns match a query, the first one counts."""
    return {**given, **{pattern: number for pattern, number in configured.items() if pattern not in given}}
