from __future__ import annotations

import os
import threading
import time

import pytest

from treadle.engines.spark.queries.rest import Directory, Job, Rest
from treadle.engines.spark.threads.layout import STEADY, Layout
from treadle.jvm import JavaThread

RUN = "b8d16c0f-f63f-4e87-ba8c-591c8a649917"


def test_jobs_of_one_run_side_by_side_share_no_rows_and_break_nothing() -> None:
    """As `foreachBatch` with two writes at once makes them; threads of this process stand in for those of a JVM."""
    directory, pid, tid = Directory(Rest("http://127.0.0.1:1"), patience=0.0), os.getpid(), threading.get_native_id()
    long, short = Job(1, RUN, "q", "id", (1, 2, 3)), Job(4, RUN, "q", "id", (4,))
    directory._note([long, short], {})
    layout = Layout("spark", directory, {})
    stages = (3, 4)
    for order in (stages, stages[::-1]):
        names = [f"Executor task launch worker for task 0.0 in stage {stage}.0 (TID {stage})" for stage in order]
        rows = layout.lay_out({pid: [JavaThread(name, tid, "RUNNABLE", ()) for name in names]}, [], ())
        assert [len(instance.threads) for instance in rows.instances] == [0, 0, 1]
    name = "Executor task launch worker for task 0.0 in stage 4.0 (TID 4)"
    rows = layout.lay_out({pid: [JavaThread(name, tid, "RUNNABLE", ())]}, [], ())
    assert [len(instance.threads) for instance in rows.instances] == [1]


def test_services_may_be_left_out_and_what_no_batch_waits_for_always_is() -> None:
    directory, pid, tid = Directory(Rest("http://127.0.0.1:1"), patience=0.0), os.getpid(), threading.get_native_id()
    names = ("C2 CompilerThread0", "dag-scheduler-event-loop", "rpc-server-4-1", "SparkUI-49", "block-manager-future-1")
    threads = {pid: [JavaThread(name, tid, "RUNNABLE", ()) for name in names]}
    for left_out, services in (
        ((), ["compilers", "scheduler", "network"]),
        (("compilers",), ["scheduler", "network"]),
        (("compilers", "network"), ["scheduler"]),
    ):
        layout = Layout("spark", directory, {}, left_out=left_out)
        assert [each.operators[0] for each in layout.lay_out(threads, [pid], ()).instances] == services


def test_a_task_of_a_micro_batch_has_its_thread_once_it_has_run_for_some_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory, pid, tid = Directory(Rest("http://127.0.0.1:1"), patience=0.0), os.getpid(), threading.get_native_id()
    directory._note([Job(1, RUN, "q", "id", (1,))], {})
    layout = Layout("spark", directory, {})

    def threads(task: int, seconds: float) -> int:
        monkeypatch.setattr(time, "monotonic", lambda: seconds)
        name = f"Executor task launch worker for task {task}.0 in stage 1.0 (TID {task})"
        rows = layout.lay_out({pid: [JavaThread(name, tid, "RUNNABLE", ())]}, [], ())
        return sum(len(instance.threads) for instance in rows.instances)

    assert threads(1, 0.0) == 1, "nobody knows yet that it is in micro-batches"
    layout._runs[RUN].batched = True
    assert threads(2, 1.0) == 0
    assert layout.ripens == 1.0 + STEADY
    assert threads(2, 1.0 + STEADY) == 1
    assert threads(3, 1.1 + STEADY) == 0, "another task on the same thread"
