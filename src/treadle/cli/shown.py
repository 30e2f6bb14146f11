"""How the command line shows text in which others have a part: as text, not as markup or orders to the terminal."""

from __future__ import annotations

import click
from rich.text import Text

from treadle.text import visible, visible_lines


def shown(text: str) -> Text:
    """For a cell or a title of a table: one line."""
    return Text(visible(text))


def shown_lines(text: str) -> Text:
    """For a cell or a title of a table: lines of our own making."""
    return Text(visible_lines(text))


def failed(error: BaseException) -> Text:
    """An error in one line."""
    return Text.assemble(("error:", "bold red"), " ", visible(" ".join(str(error).split())))


def say(text: object, *, err: bool = False) -> None:
    """Print a line."""
    click.echo(visible(str(text)), err=err)
