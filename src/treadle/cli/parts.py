"""Commands for software that Treadle needs: `jars` and `kafka`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape

_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the broker's data (default: kafka in Treadle's cache folder).",
)


@click.command()
@click.argument("bundles", nargs=-1, metavar="[BUNDLE]...")
def jars(bundles: tuple[str, ...]) -> None:
    """Fetch bundles of pinned jars, which no Python package contains; without BUNDLE, list the bundles."""
    from treadle import jars as library
    from treadle.cli import _out, _progress, _show

    if not bundles:
        rows = [
            (name, library.bundle(name).title, "fetched" if there.is_dir() else "not fetched", str(there))
            for name, there in ((name, library.folder(name)) for name in library.names())
        ]
        _show(["bundle", "what it is", "state", "folder"], rows)
        return
    for name in bundles:
        library.bundle(name)  # refuse a wrong name before the first download
    with _progress(quiet=False) as told:
        found = library.fetch(*bundles, progress=told)
    for name, folder in found.items():
        _out.print(f"{name}: {len(library.paths(name))} jars in {escape(str(folder))}", soft_wrap=True)


@click.group()
def kafka() -> None:
    """Run a Kafka broker for development and tests: one node, on this host only."""


@kafka.command()
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="The broker's port.")
@_folder
def start(port: int, folder: Path | None) -> None:
    """Start the broker and wait until it answers. It runs until `treadle kafka stop`."""
    from treadle.broker import Broker, default_folder
    from treadle.cli import _out, _progress

    with _progress(quiet=False) as told:
        broker = Broker.start(folder or default_folder(), port, progress=told)
    how = "runs already" if broker.already else "started"
    _out.print(f"Kafka {how}: {broker.bootstrap}, process {broker.pid}, folder {escape(str(broker.folder))}")


@kafka.command()
@_folder
def stop(folder: Path | None) -> None:
    """Stop the broker; its data stays in its folder."""
    from treadle import broker as library
    from treadle.cli import _err, _out

    with _err.status("stopping", spinner="dots"):
        broker = library.stop(folder or library.default_folder())
    _out.print(f"Kafka stopped: process {broker.pid}" if broker else "Kafka does not run here")


@kafka.command()
@_folder
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path | None, as_json: bool) -> None:
    """Show whether the broker runs, and where."""
    from treadle import broker as library
    from treadle.cli import _show

    seen = asdict(library.status(folder or library.default_folder()))
    if as_json:
        click.echo(json.dumps(seen))
    else:
        _show(["kafka", ""], [(key, "-" if value is None else str(value)) for key, value in seen.items()])
