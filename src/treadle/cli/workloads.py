"""`treadle workloads` lists the papers' applications, and `treadle run workload:NAME` runs one with load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.shown import failed, shown
from treadle.errors import ConfigError, TreadleError

if TYPE_CHECKING:
    from treadle.pipelines.run.run import Run
    from treadle.workloads.catalogue import Workload

PREFIX = "workload:"
"""How a command that takes a pipeline names a workload."""
RATE = 1000.0


@click.command()
def workloads() -> None:
    """List the papers' applications, which `treadle run workload:NAME` runs."""
    from treadle.cli import _show
    from treadle.workloads.catalogue import WORKLOADS

    rows = [(each.name, each.what, str(each.operators), each.paper) for each in WORKLOADS.values()]
    _show(["workload", "what it does", "operators", "papers"], rows)


def check(pipeline: str, rate: float | None) -> None:
    """Refuse a rate for a pipeline that is no workload."""
    if rate is not None and not pipeline.startswith(PREFIX):
        raise ConfigError("--rate is for workloads", where=pipeline, remedy=f"leave it out, or run {PREFIX}NAME")


def named(pipeline: str) -> Workload:
    """Return the workload that `workload:NAME` names."""
    from treadle.workloads.catalogue import workload

    return workload(pipeline.removeprefix(PREFIX))


@contextmanager
def loaded(running: Run, pipeline: str, rate: float | None) -> Iterator[Callable[[], None]]:
    """In the block, send a workload its lines at this rate, until the function that the block gets is called.

    That function says so if the rate could not be kept.
    """
    if not pipeline.startswith(PREFIX):
        yield lambda: None
        return
    from treadle.cli import _err
    from treadle.pipelines.channels.embedded import Embedded
    from treadle.workloads.load import Channel, Load, Topic
    from treadle.workloads.text_lines import LINES

    channel: Any = running.channels[LINES]
    chosen = named(pipeline)
    # Ids go on where those of an earlier run with this folder ended.
    target: dict[str, Any] = {"lines": chosen.lines, "count": chosen.count, "first": channel.total}
    target["rate"] = RATE if rate is None else rate
    sent = (
        Channel(folder=str(channel.folder), **target)
        if isinstance(channel, Embedded)
        else Topic(servers=channel.cluster.bootstrap, topic=channel.topic, **target)
    )
    with Load({LINES: sent}) as load:

        def end() -> None:
            try:
                outcome = load.stop()
            except TreadleError as error:  # the pipeline's own error, if there is one, is more important
                _err.print(failed(error), soft_wrap=True)
                return
            total = outcome.totals[LINES]
            kept = "" if outcome.kept else f"; the rate was not kept, rows were late in {total.late:.0%} of the time"
            _err.print(shown(f"load: {total.sent} rows sent, {total.due} were due{kept}"))

        yield end
