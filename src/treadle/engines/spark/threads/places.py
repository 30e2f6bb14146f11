"""Data of `layout`: places of tasks in a query's stages, the layout of an application, its threads by purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.engines.spark.queries.plan import Plan, Stage
from treadle.engines.spark.queries.rest import Job
from treadle.engines.spark.threads.thread_names import Named
from treadle.model import Instance, Operator, Query, ThreadRef

WHOLE = "micro-batch"
"""The one operator of a query in micro-batches: such a query is scheduled as a whole."""


class Place(NamedTuple):
    """The place of a task: a partition of a stage of a query's run, or a whole run in micro-batches (`whole`)."""

    run: str
    position: int
    partition: int

    @classmethod
    def whole(cls, run: str) -> Place:
        """All tasks of a query in micro-batches."""
        return cls(run, 0, 0)


class Rows(NamedTuple):
    """The layout of an application: queries, instances, and the place of each instance."""

    queries: tuple[Query, ...]
    instances: tuple[Instance, ...]
    places: tuple[Place | None, ...]
    """None for an instance that is no task of a streaming query."""


@dataclass
class QueryRun:
    """A run of a streaming query: its newest job, its plan, and the partitions of each stage (by position)."""

    job: Job
    plan: Plan
    name: str = ""
    partitions: dict[int, set[int]] = field(default_factory=dict)
    batched: bool = False
    """Whether the query runs in micro-batches; False also while its plan is unknown."""

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (Operator(WHOLE),) if self.batched else self.plan.operators

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that are scheduled separately: those of the plan, or one for the whole query in micro-batches."""
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
    """The threads of an application at one time, by purpose."""

    running: list[tuple[Job, Named, ThreadRef]] = field(default_factory=list)
    """All tasks of streaming queries: job, parsed thread name, thread."""
    tasks: dict[Place, list[ThreadRef]] = field(default_factory=dict)
    other_tasks: list[ThreadRef] = field(default_factory=list)
    helpers: list[tuple[Named, ThreadRef]] = field(default_factory=list)
    planners: dict[str, tuple[Named, ThreadRef]] = field(default_factory=dict)
    services: dict[tuple[str, int], list[ThreadRef]] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    """Running stages without a known job."""
