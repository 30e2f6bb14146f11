from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.threads.thread_names import SERVICES, Kind, parse_thread_name, stable_thread_name
from treadle.model import Role

SMALL = st.integers(0, 10_000)


@given(SMALL, SMALL, SMALL, st.integers(0, 9))
def test_a_task_thread_says_its_stage_and_partition(partition: int, stage: int, task: int, attempt: int) -> None:
    name = f"Executor task launch worker for task {partition}.{attempt} in stage {stage}.{attempt} (TID {task})"
    named = parse_thread_name(name)
    assert (named.kind, named.stage, named.partition, named.task) == (Kind.TASK, stage, partition, task)
    assert named.role is Role.MAIN


@given(SMALL, SMALL)
def test_the_threads_of_a_shuffle_say_which_and_are_helpers(shuffle: int, partition: int) -> None:
    names = {
        f"streaming-shuffle-writer-{shuffle}-{partition}-server-10-1": Kind.WRITER,
        f"streaming-shuffle-writer-{shuffle}-{partition}-boss-9-1": Kind.WRITER,
        f"streaming-shuffle-reader-{shuffle}-{partition}-client-11-1": Kind.READER,
        f"streaming-shuffle-task-discovery-thread-{shuffle}-{partition}": Kind.READER,
        f"time-based-flush-for-shuffle-writer-{shuffle}-{partition}": Kind.FLUSHER,
    }
    for name, kind in names.items():
        named = parse_thread_name(name)
        assert (named.kind, named.shuffle, named.partition, named.role) == (kind, shuffle, partition, Role.HELPER)


def test_a_planner_says_its_query_and_run() -> None:
    ids = "[id = 342fa94a-aff5-46c6-9993-bac14d0e79d1, runId = b8d16c0f-f63f-4e87-ba8c-591c8a649917]"
    named = parse_thread_name(f"stream execution thread for my [odd] query {ids}")
    assert (named.kind, named.query) == (Kind.PLANNER, "my [odd] query")
    assert (named.query_id[:8], named.run[:8]) == ("342fa94a", "b8d16c0f")
    assert parse_thread_name(f"stream execution thread for {ids}").query == ""


@pytest.mark.parametrize(
    ("name", "kind", "service"),
    [
        ("Executor task launch worker-3", Kind.IDLE, ""),
        ("kafka-producer-network-thread | producer-1", Kind.PRODUCER, ""),
        ("dag-scheduler-event-loop", Kind.SERVICE, "scheduler"),
        ("task-result-getter-0", Kind.SERVICE, "scheduler"),
        ("dispatcher-event-loop-15", Kind.SERVICE, "scheduler"),
        ("streaming-shuffle-location-dispatcher-2", Kind.SERVICE, "scheduler"),
        ("dispatcher-HeartbeatReceiver", Kind.BACKGROUND, ""),
        ("executor-heartbeater", Kind.BACKGROUND, ""),
        ("state-store-maintenance-task", Kind.BACKGROUND, ""),
        ("ForkJoinPool.commonPool-worker-1", Kind.BACKGROUND, ""),
        ("async-log-write", Kind.SERVICE, "checkpoint"),
        ("async-log-purge", Kind.BACKGROUND, ""),
        ("block-manager-ask-thread-pool-17", Kind.BACKGROUND, ""),
        ("map-output-dispatcher-3", Kind.SERVICE, "network"),
        ("rpc-server-4-1", Kind.SERVICE, "network"),
        ("shuffle-boss-7-1", Kind.SERVICE, "network"),
        ("kafka-admin-client-thread | adminclient-1", Kind.SERVICE, "scheduler"),
        ("kafka-coordinator-heartbeat-thread | a", Kind.BACKGROUND, ""),
        ("spark-listener-group-appStatus", Kind.BACKGROUND, ""),
        ("SparkUI-49", Kind.BACKGROUND, ""),
        ("Thread-4", Kind.SERVICE, "python gateway"),
        ("Spark Context Cleaner", Kind.BACKGROUND, ""),
        ("somebody's own pool", Kind.BACKGROUND, ""),
        ("GC Thread#1", Kind.RUNTIME, ""),
        ("G1 Conc#0", Kind.RUNTIME, ""),
        ("C2 CompilerThread0", Kind.SERVICE, "compilers"),
        ("C1 CompilerThread0", Kind.SERVICE, "compilers"),
        ("VM Periodic Task Thread", Kind.RUNTIME, ""),
        ("Attach Listener", Kind.SERVICE, "jvm"),
        ("VM Thread", Kind.SERVICE, "jvm"),
    ],
)
def test_all_others_are_told_apart(name: str, kind: Kind, service: str) -> None:
    named = parse_thread_name(name)
    assert (named.kind, named.service) == (kind, service)
    assert not service or service in SERVICES


def test_a_pooled_thread_has_one_name_whatever_it_works_on() -> None:
    names = [
        "Executor task launch worker for task 0.0 in stage 4.0 (TID 4)",
        "Executor task launch worker for task 1.0 in stage 9.0 (TID 77)",
        "Executor task launch worker-3",
    ]
    assert len({stable_thread_name(name, parse_thread_name(name)) for name in names}) == 1
    assert stable_thread_name("rpc-server-4-1", parse_thread_name("rpc-server-4-1")) == "rpc-server-4-1"


@given(st.text())
def test_any_name_is_of_some_kind(name: str) -> None:
    assert parse_thread_name(name).kind in Kind
