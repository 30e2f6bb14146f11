"""The setting `priorities` of a gate: by patterns of query names, in place of what the queries were wrapped with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from treadle.control.settings import Setting, numbers, of_name
from treadle.pipelines.gating.gated_query import GatedQuery


class QueryPriorities:
    """The priorities in force. `queries` returns the queries that run now, `changed` is called after each change."""

    def __init__(self, queries: Callable[[], Iterable[GatedQuery]], changed: Callable[[], None], where: str) -> None:
        self._queries = queries
        self._changed = changed
        self._where = where
        self._set: Mapping[str, float] = {}

    def of(self, query: GatedQuery) -> float:
        """Return the priority of a query: that of the first pattern that matches its name, or its own."""
        return of_name(query.name, self._set, query.wish.priority)

    @property
    def setting(self) -> Setting:
        """The setting for the control surface."""
        return Setting(
            lambda: self._shown(self._set),
            lambda value: partial(self._put, self._checked(value)),
            lambda value: self._shown(self._checked(value)),
        )

    def _checked(self, value: Any) -> dict[str, float]:
        return numbers(value, "priorities", self._where)

    def _put(self, priorities: Mapping[str, float]) -> None:
        self._set = priorities
        self._changed()

    def _shown(self, priorities: Mapping[str, float]) -> dict[str, float]:
        """Return the patterns, and then the queries that no pattern is the name of."""
        return dict(priorities) | {
            query.name: of_name(query.name, priorities, query.wish.priority) for query in self._queries()
        }
