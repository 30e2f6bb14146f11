from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engines.spark.threads.idle_queues import LONGEST, Doing, Estimate, doing
from treadle.jvm import JavaThread
from treadle.model import Floats, Ints

PARK = ("jdk.internal.misc.Unsafe.park", "java.util.concurrent.locks.LockSupport.parkNanos")
READER = "org.apache.spark.shuffle.streaming.StreamingShuffleReaderIteratorFactory$$anon$1.getNext"
WRITER = "org.apache.spark.shuffle.streaming.StreamingShuffleWriter.newBuffer"
NO_EDGES: tuple[Ints, Ints, Floats] = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
ONE_EDGE: tuple[Ints, Ints, Floats] = (np.array([0]), np.array([1]), np.array([1.0]))


@pytest.mark.parametrize(
    ("state", "stack", "what"),
    [
        ("TIMED_WAITING", (*PARK, "java.util.concurrent.LinkedBlockingQueue.poll", READER), Doing.WAITING),
        ("RUNNABLE", ("sun.nio.ch.EPoll.wait", "org.apache.kafka.common.network.Selector.select"), Doing.WAITING),
        ("TIMED_WAITING", (*PARK, "java.util.concurrent.Semaphore.tryAcquire", WRITER), Doing.BLOCKED),
        ("WAITING", (*PARK, "org.apache.kafka.clients.producer.internals.BufferPool.allocate"), Doing.BLOCKED),
        ("RUNNABLE", ("sun.security.provider.SHA5.implCompress0",), Doing.RUNNING),
        ("RUNNABLE", (WRITER,), Doing.RUNNING),
        ("BLOCKED", (), Doing.RUNNING),
        ("", (), Doing.UNKNOWN),
    ],
)
def test_a_stack_says_what_a_stage_does(state: str, stack: tuple[str, ...], what: Doing) -> None:
    assert doing(JavaThread("a task", 1, state, stack)) is what


def estimate(rows: int) -> Estimate:
    made = Estimate()
    made.realign(np.full(rows, -1, dtype=np.int64))
    return made


@given(st.lists(st.sampled_from([Doing.WAITING, Doing.RUNNING, Doing.BLOCKED]), min_size=1, max_size=60))
def test_an_estimate_stays_within_its_limits(looks: list[Doing]) -> None:
    made = estimate(1)
    for number, look in enumerate(looks):
        queue = made.update(number * 0.05, [look], NO_EDGES)
        assert 0.0 <= queue[0] <= LONGEST


def test_who_is_never_idle_falls_behind_more_and_more() -> None:
    made, before = estimate(2), 0.0
    for number in range(100):
        queue = made.update(number * 0.05, [Doing.RUNNING, Doing.WAITING], NO_EDGES)
        assert queue[0] > before
        before = queue[0]
    assert before > 100.0
    assert queue[1] < 0.1


def test_a_busier_stage_has_the_longer_queue() -> None:
    made = estimate(2)
    for number in range(200):
        often = Doing.WAITING if number % 4 == 0 else Doing.RUNNING
        seldom = Doing.WAITING if number % 2 == 0 else Doing.RUNNING
        queue = made.update(number * 0.05, [often, seldom], NO_EDGES)
    assert queue[0] == pytest.approx(3.0, rel=0.2)  # busy for three quarters of the time
    assert queue[1] == pytest.approx(1.0, rel=0.2)


def test_the_queue_behind_a_blocked_stage_is_full() -> None:
    queue = estimate(2).update(0.0, [Doing.BLOCKED, Doing.RUNNING], ONE_EDGE)
    assert queue[1] == LONGEST


def test_without_a_thread_nothing_is_known_and_history_stays() -> None:
    made = estimate(1)
    for number in range(100):
        made.update(number * 0.05, [Doing.RUNNING], NO_EDGES)
    assert np.isnan(made.update(5.0, [Doing.UNKNOWN], NO_EDGES)[0])
    assert made.update(5.05, [Doing.RUNNING], NO_EDGES)[0] > 50.0


def test_what_the_kernel_counts_is_more_than_a_look_tells() -> None:
    made = estimate(3)
    looks = [Doing.RUNNING, Doing.WAITING, Doing.BLOCKED]
    for number in range(100):
        queue = made.update(number * 1.0, looks, NO_EDGES, np.array([0.5, 0.2, 0.9]))
    assert queue[:2].tolist() == pytest.approx([1.0, 4.0], rel=0.01)
    assert queue[2] == LONGEST
