"""How the command line shows text in which others have a part: as text, not as markup or orders to the terminal."""

from __future__ import annotations

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from treadle.text import visible, visible_lines


def shown(text: str) -> Text:
    """For a cell or a title of a table: one line."""
    return Text(visible(text))


def shown_lines(text: str) -> Text:
    """For a cell or a title of a table: lines of our own making."""
    return Text(visible_lines(text))


def plain_table(title: str) -> Table:
    """A table without lines between its columns, as all of the command line's are."""
    table = Table(title=shown(title), title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    table.collapse_padding, table.pad_edge = True, False
    return table


def failed(error: BaseException) -> Text:
    """An error in one line."""
    return Text.assemble(("error:", "bold red"), " ", visible(" ".join(str(error).split())))


def say(text: object, *, err: bool = False) -> None:
    """Print a line."""
    click.echo(visible(str(text)), err=err)
