"""Where threads of tasks belong: places in the stages of a query's run, and all threads of one moment by their use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.engines.spark.queries.plan import Plan, Stage
from treadle.engines.spark.queries.rest import Job
from treadle.engines.spark.threads.naming import Named
from treadle.model import Instance, Operator, Query, ThreadRef

WHOLE = "micro-batch"
"""The one operator of a query in micro-batches, which are scheduled as a whole."""


class Place(NamedTuple):
    """Where a task stands: a partition of a stage of a query's run, or a whole run in micro-batches (`whole`)."""

    run: str
    position: int
    partition: int

    @classmethod
    def whole(cls, run: str) -> Place:
        """All tasks of a query in micro-batches."""
        return cls(run, 0, 0)


class Rows(NamedTuple):
    """A laid out application: queries and instances, and for each instance what it is."""

    queries: tuple[Query, ...]
    instances: tuple[Instance, ...]
    places: tuple[Place | None, ...]
    """None for what is no task of a streaming query."""


@dataclass
class QueryRun:
    """A streaming query that runs."""

    job: Job
    plan: Plan
    name: str = ""
    partitions: dict[int, set[int]] = field(default_factory=dict)
    batched: bool = False
    """Whether it runs in micro-batches; False also while its plan is not known."""

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (Operator(WHOLE),) if self.batched else self.plan.operators

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Those that are scheduled apart."""
        stages = self.plan.stages
        if not self.batched:
            return stages
        return (
            Stage(
                (WHOLE,),
                kafka_in=any(stage.kafka_in for stage in stages),
                kafka_out=any(stage.kafka_out for stage in stages),
                python=any(stage.python for stage in stages),
            ),
        )


@dataclass
class SortedThreads:
    """The threads of one moment, by what they are for."""

    running: list[tuple[Job, Named, ThreadRef]] = field(default_factory=list)
    """The threads of all tasks of streaming queries."""
    tasks: dict[Place, list[ThreadRef]] = field(default_factory=dict)
    other_tasks: list[ThreadRef] = field(default_factory=list)
    helpers: list[tuple[Named, ThreadRef]] = field(default_factory=list)
    planners: dict[str, tuple[Named, ThreadRef]] = field(default_factory=dict)
    services: dict[tuple[str, int], list[ThreadRef]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Stages of which nobody knows yet whose they are."""
