"""The difference of two versions of a pipeline: which nodes stay, start, end or get other code, and what is refused.

Functions on definitions only: nothing runs. `run.change` carries a difference out, `run.rehearsal` checks its plans.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.errors import ConfigError
from treadle.pipelines.nodes import ddl
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.nodes.node import Node
from treadle.pipelines.nodes.same_code import same


class Difference(NamedTuple):
    """What differs between the version that runs and the wanted one, as names of nodes in the order of their data."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """Nodes with the same inputs but with other code or options of a writer: their queries start again."""
    adjusted: tuple[str, ...] = ()
    """Sinks with another priority, latency goal or behaviour on failures: their queries go on."""
    kept: tuple[str, ...] = ()
    """All nodes that are neither added nor removed."""
    refused: tuple[str, ...] = ()
    """Why nodes can't be changed in this way, one line for each."""

    @property
    def nothing(self) -> bool:
        """Whether both versions are the same."""
        return not (self.added or self.removed or self.changed or self.adjusted or self.refused)

    def lines(self) -> list[str]:
        """What would happen, one line for each node that differs."""
        return [
            *(f"+ {name}: starts" for name in self.added),
            *(f"- {name}: works off its rows and ends" for name in self.removed),
            *(f"~ {name}: starts again with its new code" for name in self.changed),
            *(f"~ {name}: goes on with its new priority, goal or on_failure" for name in self.adjusted),
        ]

    def check(self, where: str) -> None:
        """Raise a ConfigError if anything is refused."""
        if self.refused:
            raise ConfigError("; ".join(self.refused), where=where, remedy="nothing was changed; see docs/pipelines.md")


def difference(before: Definition, after: Definition) -> Difference:
    """Compare the version that runs with the wanted one."""
    after.check()
    old, new = ({node.name: node for node in each.nodes} for each in (before, after))
    kept = [name for name in new if name in old]
    refused = [] if before.name == after.name else [f"it is pipeline '{after.name}', not '{before.name}'"]
    refused += [f"{new[name].where} {why}" for name in kept if (why := _refused(old[name], new[name]))]
    return Difference(
        tuple(name for name in new if name not in old),
        tuple(name for name in old if name not in new),
        tuple(name for name in kept if not _same_work(old[name], new[name])),
        tuple(name for name in kept if not _same_wishes(old[name], new[name])),
        tuple(kept),
        tuple(refused),
    )


def union(before: Definition, after: Definition) -> Definition:
    """All nodes of both versions, in the new version where they are in both. Nodes that stay must have their inputs."""
    return Definition.of(before.name, {node.name: node for each in (before, after) for node in each.nodes})


def _refused(old: Node, new: Node) -> str:
    """Why a node of this name can't be continued; empty if it can."""
    name = "give the new one another name"
    if old.kind is not new.kind:
        return f"was a {old.kind}: {name}"
    if old.inputs != new.inputs:
        return f"reads {', '.join(new.inputs)} and no longer {', '.join(old.inputs)}: {name}"
    if old.kind.starts and not _same_source(old, new):
        return f"is another source than before: {name}"
    if old.format != new.format:
        return f"writes {new.format} and no longer {old.format}: {name}"
    return ""


def _same_source(old: Node, new: Node) -> bool:
    """Whether a node without inputs reads the same rows as before."""
    plain = [(node.topic, node.format, dict(node.options), node.arrival) for node in (old, new)]
    return plain[0] == plain[1] and _columns(old.schema) == _columns(new.schema) and same(old.function, new.function)


def _columns(schema: object) -> object:
    """A schema in one form, whether it is text or a StructType."""
    if not isinstance(schema, str):
        return schema
    try:
        return ddl.parse(schema)
    except ConfigError:  # a type that only Spark knows
        return schema


def _same_work(old: Node, new: Node) -> bool:
    if old.kind.starts:
        return True
    plain = [(dict(node.options), node.stateful, node.takes_batch_id) for node in (old, new)]
    return plain[0] == plain[1] and same(old.function, new.function)


def _same_wishes(old: Node, new: Node) -> bool:
    ours, theirs = ((node.priority, node.latency_goal, node.on_failure) for node in (old, new))
    return ours == theirs
