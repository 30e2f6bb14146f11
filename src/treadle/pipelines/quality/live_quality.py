"""The setting `quality` of a running pipeline: by sink the least share of its rows that is kept, or true or false."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from treadle.control.settings import Setting, numbers
from treadle.errors import ConfigError
from treadle.pipelines.nodes.by_name import by_name
from treadle.pipelines.nodes.node import Node
from treadle.pipelines.quality.flow import promised
from treadle.pipelines.quality.promises import Promises


def setting(pipeline: str, nodes: Mapping[str, Node], promises: Promises | None) -> Setting:
    """Make the setting. False keeps all rows, true drops rows again; sinks without a number are as declared.

    Where the plans of the hops can't drop rows, every value but false is refused.
    """
    where = f"pipeline '{pipeline}'"

    def read() -> Any:
        if promises is None or not promises.can_shed or promises.suspended:
            return False
        return {name: promise.accuracy for name, promise in promises.flow.promises.items()}

    def minima(value: Any) -> dict[str, float]:
        declared = {name: promise.accuracy for name, promise in promised(nodes).items()}
        if not isinstance(value, Mapping):
            remedy = 'use true, false or {"NAME": share}'
            raise ConfigError(f"quality can't be {value!r}", where=where, remedy=remedy)
        return declared | by_name(numbers(value, "quality", where, 0.0, 1.0), declared, "quality", where)

    def prepare(value: Any) -> Callable[[], None]:
        new = None if isinstance(value, bool) else minima(value)
        if promises is None or not promises.can_shed:
            if value is False:
                return lambda: None
            remedy = "give a sink a min_accuracy below 1, leave shedding on, and start again"
            raise ConfigError("its plans can't drop rows", where=where, remedy=remedy)
        return partial(put, promises, new, bool(value is False))

    def put(promises: Promises, new: Mapping[str, float] | None, suspended: bool) -> None:
        if suspended and not promises.suspended:
            promises.keep_all()
        promises.suspended = suspended
        if new is not None:
            before = promises.flow.promises
            promises.promise({name: before[name]._replace(accuracy=new[name]) for name in before})

    def becomes(value: Any) -> Any:
        if value is False or promises is None:
            return False
        return (
            {name: each.accuracy for name, each in promises.flow.promises.items()} if value is True else minima(value)
        )

    return Setting(read, prepare, becomes)
