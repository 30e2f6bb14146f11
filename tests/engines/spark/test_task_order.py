"""Which query's tasks get the next free slot, in Spark's own scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support import until
from treadle.engines.spark.agent.agents import Agents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_LONG = 10.0
SLEEP = "java_method('java.lang.Thread', 'sleep', 20L + value * 0)"


def test_tasks_start_in_the_order_that_is_set_and_in_sparks_own_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    with sleeping(spark, tmp_path, "one") as one, sleeping(spark, tmp_path, "two") as two:
        with loaded(spark) as agents:
            until(lambda: waiting(spark).keys() == {one, two} and own(spark))
            for order in ((two, one), (one, two)):
                agents.task_order = order
                until(lambda order=order: is_so(spark, agents, order))  # type: ignore[misc]
        until(lambda: waiting(spark).keys() == {one, two} and own(spark))


def test_with_an_order_the_first_gets_the_slots(spark: SparkSession, tmp_path: Path) -> None:
    """As long as a task of the first query waits, no task of the second starts."""
    with (
        sleeping(spark, tmp_path, "one") as one,
        sleeping(spark, tmp_path, "two") as two,
        loaded(spark) as agents,
    ):
        agents.task_order = (two, one)
        before: dict[str, TaskSet] = {}
        after: dict[str, TaskSet] = {}

        def the_first_went_on() -> bool:
            """Both have the stage they had, and the first has begun twenty tasks more and still has some that wait."""
            nonlocal before, after
            after = task_sets(spark, (one, two))
            same = before and after and all(after[run].stage == before[run].stage for run in after)
            if same and after[two].waiting > 0:
                return after[two].started > before[two].started + 20
            before = task_sets(spark, (two, one)) if is_so(spark, agents, (two, one)) else {}
            if before and (
                before[two].priority >= before[one].priority or 0 in {each.waiting for each in before.values()}
            ):
                before = {}
            return False

        until(the_first_went_on)
        assert after[one].started == before[one].started


@contextmanager
def loaded(spark: SparkSession) -> Iterator[Agents]:
    agents = Agents()
    try:
        agents.keep([jvm(spark)])
        agents.settle(HOW_LONG)
        yield agents
    finally:
        agents.close()


@contextmanager
def sleeping(spark: SparkSession, folder: Path, name: str) -> Iterator[str]:
    """A query whose batches have hundreds of tasks that sleep; its run."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1000).option("numPartitions", 1).load()
    rows = rows.repartition(500, "value").selectExpr(f"{SLEEP} as slept")
    sink = rows.writeStream.queryName(name).format("noop").option("checkpointLocation", str(folder / name))
    query = sink.start()
    try:
        yield str(query.runId)
    finally:
        query.stop()


def scheduler(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().taskScheduler()


def managers(spark: SparkSession) -> list[tuple[str, Any]]:
    """By run the task sets that Spark has not finished."""
    found = list(scheduler(spark).rootPool().schedulableQueue().toArray())
    return [(str(each.taskSet().properties().getProperty("spark.jobGroup.id")), each) for each in found]


def waiting(spark: SparkSession) -> dict[str, int]:
    return {run: int(each.priority()) for run, each in managers(spark)}


class TaskSet(NamedTuple):
    stage: int
    priority: int
    tasks: int
    started: int

    @property
    def waiting(self) -> int:
        return self.tasks - self.started


def task_sets(spark: SparkSession, runs: tuple[str, ...]) -> dict[str, TaskSet]:
    """The task set of each run, read in the order of `runs`; empty if one of the runs has no task set."""
    found = dict(managers(spark))
    if not found.keys() >= set(runs):
        return {}
    return {run: task_set(found[run]) for run in runs}


def task_set(manager: Any) -> TaskSet:
    counts = (manager.stageId(), manager.priority(), manager.numTasks(), manager.taskInfos().size())
    return TaskSet(*map(int, counts))


def own(spark: SparkSession) -> bool:
    return all(each.priority() == each.taskSet().priority() for _, each in managers(spark))


def is_so(spark: SparkSession, agents: Agents, order: tuple[str, ...]) -> bool:
    agents.look()
    found = waiting(spark)
    return found.keys() == set(order) and not own(spark) and tuple(sorted(found, key=lambda run: found[run])) == order


def jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
