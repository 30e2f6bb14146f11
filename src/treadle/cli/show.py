"""`treadle show`: shows a pipeline file as a tree in the terminal and as a picture, without running it."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.errors import ConfigError


@click.command()
@click.argument("pipeline", metavar="PIPELINE.py")
@click.option(
    "--svg",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the graph into this SVG file.",
)
def show(pipeline: str, picture: Path | None) -> None:
    """Show the graph of a pipeline: a Python file, or FILE.py:NAME if it has several."""
    from treadle.pipelines import load
    from treadle.pipelines.api import show as drawing

    loaded = load(pipeline)
    click.echo(drawing.text(loaded), nl=False)
    if picture is None:
        return
    try:
        picture.write_text(drawing.svg(loaded), encoding="utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
        raise ConfigError(f"can't be written: {problem}", where=str(picture), remedy="choose another file") from error
    click.echo(f"picture: {picture}", err=True)
