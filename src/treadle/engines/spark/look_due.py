"""When to look at the threads of an application anew: at a sign of a change, and at times without.

Looking is cheap, but not free, and an application at rest has no news for seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from treadle.engines.spark.agent.agents import Agents
from treadle.engines.spark.queries.rest import Directory
from treadle.engines.spark.slow_poller import SlowPoller
from treadle.engines.spark.threads.layout import Layout
from treadle.engines.spark.threads.thread_table import ThreadTable

WAITING = 2.0
"""Seconds for which threads that have no place yet are looked at in every round."""
RARELY = 10.0
"""Seconds after which threads are dumped where agents tell of them, and of what tasks do: the JVM's own may be new."""


class LookDue:
    """Of one application, from what its agents, its UI and its list of processes say."""

    def __init__(
        self,
        agents: Agents,
        directory: Directory,
        poller: SlowPoller,
        layout: Layout,
        table: ThreadTable,
        dump_period: float,
    ) -> None:
        self._agents, self._directory, self._poller = agents, directory, poller
        self._layout, self._table, self._dump_period = layout, table, dump_period
        self._settled = -math.inf
        """When it was last so that all threads had a place."""
        self._seen: list[object] = []
        self._calm: tuple[object, ...] = ()
        self._calm_until = -math.inf

    def signs(self, pids: Sequence[int]) -> list[object]:
        """What differs after a change."""
        poller = self._poller
        signs = self._table.signs(pids, self._layout.pooled)
        return [*signs, self._directory.generation, poller.processes, poller.workers]

    def looked(self, signs: list[object]) -> None:
        """It was looked, and these were the signs before."""
        self._seen = signs

    def is_due(self, now: float, signs: list[object], pids: Sequence[int]) -> bool:
        """Whether to look. Threads that have no place yet are looked at in every round, but not for ever."""
        layout, age = self._layout, now - self._table.dumped
        if not layout.waits:
            self._settled = now
        hurry = not self._directory.told and (layout.hurries or self.waits(now))
        due = age >= (RARELY if self._table.is_told(pids) else self._dump_period)
        waits = due and not self._table.ask_for_dumps(now, pids)
        return hurry or waits or now >= layout.ripens or signs != self._seen

    def waits(self, now: float) -> bool:
        """Whether threads have no place yet, and not for long."""
        return self._layout.waits and now - self._settled < WAITING

    @property
    def calm_until(self) -> float:
        """Until when there can be no news unless an agent speaks."""
        return self._calm_until if self._facets() == self._calm else -math.inf

    def calm_down(self, now: float, pids: Sequence[int]) -> None:
        """There is no news: until when there can be none but those that the facets tell of."""
        quiet = self._directory.told and self._table.is_quiet(pids) and not self._agents.tries_again
        self._calm = self._facets()
        self._calm_until = self._table.dumped + RARELY if quiet else now

    def _facets(self) -> tuple[object, ...]:
        """What tells of all news that come by themselves, and is quickly compared."""
        agents, poller = self._agents, self._poller
        return (
            agents.generation,
            agents.sampled,
            agents.counted,
            self._directory.generation,
            poller.processes,
            poller.workers,
        )
