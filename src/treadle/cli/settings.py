"""Configuration for commands, read only when a command that needs it runs.

So a broken file does not prevent `--help` or `treadle restore`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import click

if TYPE_CHECKING:
    from treadle.config import Config

Options = ParamSpec("Options")
Settings = tuple["Config", str]
"""The configuration and its origin."""


def with_settings(command: Callable[Concatenate[Settings, Options], None]) -> Callable[Options, None]:
    """Pass the configuration to the command as first argument; click's context has the function that reads it."""

    @wraps(command)
    def called(load: Callable[[], Settings], /, *words: Any, **options: Any) -> None:
        command(load(), *words, **options)

    return click.pass_obj(called)
