"""Which queries there are, which of them were seen at work, and which of the user's patterns match none of them.

A query between two batches has no task threads: only its planner in the driver shows that it is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from treadle.engines.spark.threads.layout import DRIVER, PLANS, of_driver
from treadle.model import Topology


class QueryCoverage:
    """The queries and the unmatched patterns, from all topologies so far."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.unfit = set(patterns) - {"*", DRIVER}
        """Patterns that no query has matched yet."""
        self._at_work: set[str] = set()
        self._planned: set[str] = set()

    @property
    def known(self) -> set[str]:
        return self._at_work | self._planned

    @property
    def seen(self) -> set[str]:
        """Queries that were seen at work."""
        return set(self._at_work)

    @property
    def unseen(self) -> set[str]:
        """Queries that have a planner but were not seen at work."""
        return self._planned - self._at_work

    @property
    def all(self) -> bool:
        """Whether there is a query, and every known query was seen at work."""
        return bool(self._at_work) and self._planned <= self._at_work

    def look(self, topology: Topology) -> None:
        for instance in topology.instances:
            if not of_driver(instance.query):
                if instance.threads:
                    self._at_work.add(instance.query.removeprefix(f"{instance.engine}/"))
            elif instance.operators[0].startswith(PLANS):
                self._planned.add(instance.operators[0].removeprefix(PLANS))
        self.unfit = {each for each in self.unfit if not any(fnmatchcase(name, each) for name in self.known)}
