"""Builds the plans of a changed pipeline without running them, so that what can't be carried out is refused beforehand.

User functions are called with streams that have the right columns and no rows, from channels in a temporary folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.channels.segment import arrow_schema
from treadle.pipelines.hops import build
from treadle.pipelines.nodes.node import Kind, Node
from treadle.pipelines.run.parts import Parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KAFKA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
"""The columns of a raw topic."""


def rehearse(parts: Parts, spark: SparkSession, nodes: Mapping[str, Node], hops: Collection[str]) -> None:
    """Build the plans of some hops of a changed pipeline; raise an error if one can't follow what runs.

    `nodes` are all nodes of the new version, each after those that it reads. `hops` are those that start, or start
    again with other code. The latter must not be stateful, since state of other code may not fit, and must keep their
    columns.
    """
    with tempfile.TemporaryDirectory(prefix="treadle-reload-") as folder, _channels(Path(folder)) as made:
        for node in nodes.values():
            plan = None
            if node.name in hops and parts.options.layout == "hops":
                plan = build.hop(node, spark, made.channels, "")
            elif node.name in hops:
                plan = build.fused(node, nodes, spark, made.channels, "")
            if plan is not None and node.name in parts.hops:
                _check_change(parts, node, plan)
            if node.kind.ends:
                continue
            if node.kind.runs and parts.options.layout != "hops":
                continue
            made.add(node.name, _schema(parts, node, plan))
            if plan is not None:
                _check_folder(parts, node, plan.rows.schema)


class _Scratch:
    """Channels without rows, by the name of the node that would fill each."""

    def __init__(self, folder: Path) -> None:
        self.channels: dict[str, Embedded] = {}
        self._folder = folder

    def add(self, name: str, schema: Any) -> None:
        self.channels[name] = Embedded(self._folder / name, schema, limit_rows=1)


@contextmanager
def _channels(folder: Path) -> Iterator[_Scratch]:
    made = _Scratch(folder)
    try:
        yield made
    finally:
        for channel in made.channels.values():
            channel.close()


def _schema(parts: Parts, node: Node, plan: build.Plan | None) -> Any:
    if plan is not None:
        return plan.rows.schema
    if node.kind is Kind.TOPIC and node.schema is None:
        return _KAFKA
    return node.schema if not node.kind.runs else parts.channel_set.sources[node.name].schema


def _check_change(parts: Parts, node: Node, plan: build.Plan) -> None:
    """Refuse other code for a hop that runs, unless its state and its columns allow that."""
    if plan.stateful or parts.hops[node.name].stateful:
        raise ConfigError(
            "has other code, but it keeps state, which may not fit",
            where=node.where,
            remedy="give the new version another name; then it begins without state",
        )
    running = parts.hops[node.name].output
    if running is None:
        return
    before, after = ({each.name: each.type for each in arrow_schema(of)} for of in (running.schema, plan.rows.schema))
    if before != after:
        name = next(name for name in (*after, *before) if before.get(name) != after.get(name))
        raise ConfigError(
            f"its column '{name}' was {before.get(name, 'missing')} and would be {after.get(name, 'missing')}",
            where=node.where,
            remedy="its readers and its channel have the old columns: give the new version another name",
        )


def _check_folder(parts: Parts, node: Node, schema: Any) -> None:
    """Refuse an operator whose channel is left from an earlier one of this name with other columns."""
    folder = parts.folder.channel(node.name)
    if parts.options.channels == "embedded" and node.name not in parts.channel_set.sources and folder.is_dir():
        log.check_schema(folder, schema)
