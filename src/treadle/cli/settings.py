"""How commands get the configuration: read when a command runs that needs it.

So a broken file is in the way of neither `--help` nor `treadle restore`.
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
"""The configuration and where it came from."""


def with_settings(command: Callable[Concatenate[Settings, Options], None]) -> Callable[Options, None]:
    """Call the command with the configuration first. The context's object is what reads it."""

    @wraps(command)
    def called(load: Callable[[], Settings], /, *words: Any, **options: Any) -> None:
        command(load(), *words, **options)

    return click.pass_obj(called)
