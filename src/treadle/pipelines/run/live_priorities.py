"""The setting `priorities` of a running pipeline: by sink and operator, as declared or as set while it runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from treadle.control.settings import Setting, numbers
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.nodes.by_name import by_name
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.run.parts import Parts


def setting(parts: Parts, follow: Callable[[], None], promises: Promises | None) -> Setting:
    """Make the setting. New priorities rank the hops, and decide of which sinks rows are dropped first.

    `follow` lets policies decide by the priorities in `parts`.
    """
    where = f"pipeline '{parts.definition.name}'"

    def checked(value: Any) -> dict[str, float]:
        known = [node.name for node in parts.nodes.values() if node.kind.runs]
        return by_name(numbers(value, "priorities", where), known, "priorities", where)

    def prepare(value: Any) -> Callable[[], None]:
        own = checked(value)
        if parts.options.enforce == "none" and promises is None:
            remedy = "run treadle attach with --priority beside it"
            raise ConfigError("nothing in this pipeline goes by priorities", where=where, remedy=remedy)
        return partial(put, own)

    def put(own: dict[str, float]) -> None:
        # `between_rounds` is held here, and a change needs it: waiting for the change would be a deadlock.
        if not parts.changing.acquire(blocking=False):
            raise EngineError("another change is under way", where=where, remedy="try again when it is done")
        try:
            parts.priorities = own
            parts.topology = parts.topology_of(parts.definition, parts.topology.version + 1)
            follow()
        finally:
            parts.changing.release()
        if promises is not None:
            flow = promises.flow
            promises.promise(
                {
                    name: promise._replace(priority=own.get(name, parts.nodes[name].priority))
                    for name, promise in flow.promises.items()
                }
            )

    def read() -> dict[str, float]:
        return shown(parts.priorities)

    def shown(own: dict[str, float]) -> dict[str, float]:
        declared = {node.name: node.priority for node in parts.nodes.values() if node.kind.ends}
        return declared | {name: priority for name, priority in own.items() if name in parts.nodes}

    return Setting(read, prepare, lambda value: shown(checked(value)))
