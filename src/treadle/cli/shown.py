"""Output of text that others wrote, such as query names: never as markup or control sequences of the terminal."""

from __future__ import annotations

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from treadle.text import visible, visible_lines


def shown(text: str) -> Text:
    """Return a text as a table cell or title of one line, with control characters escaped."""
    return Text(visible(text))


def shown_lines(text: str) -> Text:
    """Return a text as a table cell or title that keeps its line breaks; other control characters are escaped."""
    return Text(visible_lines(text))


def plain_table(title: str) -> Table:
    """Return a table without lines between its columns."""
    table = Table(title=shown(title), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    table.collapse_padding, table.pad_edge = True, False
    return table


def failed(error: BaseException) -> Text:
    """Return an error as one line."""
    return Text.assemble(("error:", "bold red"), " ", visible(" ".join(str(error).split())))


def say(text: object, *, err: bool = False) -> None:
    """Print a line, with control characters escaped."""
    click.echo(visible(str(text)), err=err)
