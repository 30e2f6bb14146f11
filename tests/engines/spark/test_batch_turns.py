"""How many micro-batches run at once, and whose begins next, in Spark's own driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from support import until
from treadle.engines.spark.agent.agents import Agents
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_LONG = 10.0
SLEEP = "java_method('java.lang.Thread', 'sleep', 10L + value * 0)"
NAMES = ("one", "two", "three")


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Three queries whose batches last for some tenths of a second and follow each other without a pause."""
    with ExitStack() as stopping:
        started = {}
        for name in NAMES:
            source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).option("numPartitions", 1)
            rows = source.load().selectExpr(f"{SLEEP} as slept")
            sink = rows.writeStream.queryName(name).format("noop").option("checkpointLocation", str(tmp_path / name))
            started[name] = sink.start()
            stopping.callback(started[name].stop)
        until(lambda: all(batches(query) > 0 for query in started.values()))
        yield started


def test_as_many_batches_run_at_once_as_there_are_slots_and_all_queries_go_on(
    spark: SparkSession, queries: dict[str, Any]
) -> None:
    with loaded(spark) as agents:
        hold(agents, queries)
        before = {name: batches(query) for name, query in queries.items()}
        most = 0

        def all_went_on() -> bool:
            nonlocal most
            look(agents)
            most = max(most, len(running(spark, queries)))
            return all(batches(query) > before[name] + 1 for name, query in queries.items())

        until(all_went_on)
        assert most == 1


def test_the_first_in_the_order_gets_the_turns_until_it_has_had_its_batch(
    spark: SparkSession, queries: dict[str, Any]
) -> None:
    """With the spacing, others get their turns too, but not within it."""
    with loaded(spark) as agents:
        hold(agents, queries)
        agents.task_order = tuple(str(queries[name].runId) for name in ("two", "three", "one"))
        before = {name: batches(query) for name, query in queries.items()}
        until(lambda: look(agents) and batches(queries["two"]) > before["two"] + 10)
        done = {name: batches(query) - before[name] for name, query in queries.items()}
        assert done["two"] > 2 * max(done["one"], done["three"])
        agents.turns = (1, 2.0)
        before = {name: batches(query) for name, query in queries.items()}
        until(lambda: look(agents) and all(batches(query) > before[name] + 1 for name, query in queries.items()))


def test_a_query_that_waits_for_its_turn_can_be_stopped(spark: SparkSession, queries: dict[str, Any]) -> None:
    with loaded(spark) as agents:
        hold(agents, queries)
        queries["two"].stop()
        assert not queries["two"].isActive
        assert queries["two"].exception() is None


def test_afterwards_triggers_are_as_they_were_and_batches_run_side_by_side(
    spark: SparkSession, queries: dict[str, Any]
) -> None:
    found = {name: triggers(query) for name, query in queries.items()}
    with loaded(spark) as agents:
        hold(agents, queries)
    until(lambda: {name: triggers(query) for name, query in queries.items()} == found)
    until(lambda: len(running(spark, queries)) > 1)


def test_a_query_with_a_trigger_interval_of_its_own_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rows.option("checkpointLocation", str(tmp_path)).trigger(processingTime="100 milliseconds").start()
    try:
        until(lambda: batches(query) >= 0)
        found, done = triggers(query), batches(query)
        with loaded(spark) as agents:
            agents.turns = (1, 0.0)
            until(lambda: look(agents) and batches(query) > done + 3)
            assert triggers(query) == found
    finally:
        query.stop()


def test_an_attachment_changes_slots_while_it_runs_and_puts_triggers_back(
    spark: SparkSession, queries: dict[str, Any]
) -> None:
    found = {name: triggers(query) for name, query in queries.items()}

    def are_held() -> bool:
        return all(triggers(query)[0] == 1 for query in queries.values())

    def are_as_found() -> bool:
        return {name: triggers(query) for name, query in queries.items()} == found

    with treadle.attach(spark, policy="fcfs", slots=1) as attachment:
        until(are_held)
        with pytest.raises(ConfigError, match="slots can't be 0"):
            attachment.set(slots=0)
        assert attachment.settings.read()["slots"] == 1
        attachment.set(slots=None)
        until(are_as_found)
        attachment.set(slots="auto")
        until(are_held)
        attachment.set(paused=True)
        until(are_as_found)
        attachment.set(paused=False)
        until(are_held)
    until(are_as_found)


@contextmanager
def loaded(spark: SparkSession) -> Iterator[Agents]:
    agents = Agents()
    try:
        agents.keep([int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())])  # type: ignore[union-attr]
        agents.settle(HOW_LONG)
        yield agents
    finally:
        agents.close()


def look(agents: Agents) -> bool:
    agents.look()
    return True


def trigger(query: Any) -> Any:
    return query._jsq.streamingQuery().triggerExecutor()


def triggers(query: Any) -> tuple[int, str]:
    """The interval of a query's trigger in milliseconds, and the class of its clock."""
    kind = trigger(query).getClass()
    values = []
    for name in ("intervalMs", "clock"):
        field = kind.getDeclaredField(name)
        field.setAccessible(True)
        values.append(field.get(trigger(query)))
    return int(values[0]), str(values[1].getClass().getName())


def hold(agents: Agents, queries: dict[str, Any], spacing: float = 0.0) -> None:
    """Let one batch run at a time, and wait until the batches that ran before have ended."""
    agents.turns = (1, spacing)
    until(lambda: look(agents) and all(triggers(query)[0] == 1 for query in queries.values()))
    before = {name: batches(query) for name, query in queries.items()}
    until(lambda: look(agents) and all(batches(query) > before[name] for name, query in queries.items()))


def batches(query: Any) -> int:
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def running(spark: SparkSession, queries: dict[str, Any]) -> list[str]:
    """The queries that have a job now."""
    tracker = spark.sparkContext.statusTracker()
    active = set(tracker.getActiveJobsIds())
    return [name for name, query in queries.items() if active & set(tracker.getJobIdsForGroup(str(query.runId)))]
