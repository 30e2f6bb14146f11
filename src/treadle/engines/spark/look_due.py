"""When to read the threads of an application again: at a sign of a change, and now and then without one.

Reading them is cheap, but not free, and an application at rest has no news for seconds.
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
"""Maximum seconds for which threads are read in every round because some are not assigned to an instance yet."""
RARELY = 10.0
"""Seconds between dumps where agents report threads: only dumps show new threads of the JVM itself."""


class LookDue:
    """Decides when to read one application's threads, from signs of its agents, its UI and its list of processes."""

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
        """When all threads were last assigned to instances."""
        self._seen: list[object] = []
        self._calm: tuple[object, ...] = ()
        self._calm_until = -math.inf

    def signs(self, pids: Sequence[int]) -> list[object]:
        """Return values that differ from those of an earlier call if anything has changed."""
        poller = self._poller
        signs = self._table.signs(pids, self._layout.pooled)
        return [*signs, self._directory.generation, poller.processes, poller.workers]

    def looked(self, signs: list[object]) -> None:
        """Note that threads were read, and the signs that were read just before."""
        self._seen = signs

    def hurry(self) -> None:
        """Read the threads in the next round, whatever the signs."""
        self._seen, self._calm_until = [], -math.inf

    def is_due(self, now: float, signs: list[object], pids: Sequence[int]) -> bool:
        """True if the threads are to be read in this round. Where agents report, a due dump is only started."""
        layout, age = self._layout, now - self._table.dumped
        if not layout.waits:
            self._settled = now
        hurry = not self._directory.told and (layout.hurries or self.waits(now))
        due = age >= (RARELY if self._table.is_told(pids) else self._dump_period)
        waits = due and not self._table.ask_for_dumps(now, pids)
        return hurry or waits or now >= layout.ripens or signs != self._seen

    def waits(self, now: float) -> bool:
        """True if some threads are not assigned to an instance, but for less than `WAITING` seconds."""
        return self._layout.waits and now - self._settled < WAITING

    @property
    def calm_until(self) -> float:
        """Until when there is no news unless an agent reports something."""
        return self._calm_until if self._facets() == self._calm else -math.inf

    def calm_down(self, now: float, pids: Sequence[int]) -> None:
        """Note that there is no news now, and until when there is none unless `_facets` changes."""
        quiet = self._directory.told and self._table.is_quiet(pids) and not self._agents.tries_again
        self._calm = self._facets()
        self._calm_until = self._table.dumped + RARELY if quiet else now

    def _facets(self) -> tuple[object, ...]:
        """Return values that change with any news, and are cheap to compare."""
        agents, poller = self._agents, self._poller
        return (
            agents.generation,
            agents.sampled,
            agents.counted,
            self._directory.generation,
            poller.processes,
            poller.workers,
        )
