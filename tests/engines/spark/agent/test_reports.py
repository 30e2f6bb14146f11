"""Whatever a JVM sends in the place of the agent, it is understood or an error, at once and in bounded memory."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import FUZZ, WORDS
from treadle.engines.spark.agent.reports import (
    LONGEST_FRAME,
    LONGEST_NAME,
    LONGEST_PLAN,
    MOST,
    MOST_COUNTS,
    MOST_PLANS,
    Reports,
)
from treadle.errors import EngineError, TreadleError

KINDS = [
    *("thread", "gone", "job", "shuffle", "over", "plan", "graph", "batch", "driver", "agent", "trouble", "stack"),
    *("task", "tasks", "other"),
]
LINES = st.lists(st.tuples(st.sampled_from(KINDS), st.lists(WORDS, max_size=4)), max_size=4)
BYTES = st.binary(max_size=30)


def frame(*lines: str) -> bytes:
    text = "".join(f"{line}\n" for line in lines).encode(errors="surrogatepass")
    return struct.pack(">i", len(text)) + text


def framed(lines: list[tuple[str, list[str]]]) -> bytes:
    return frame(*("\t".join((what, *fields)) for what, fields in lines))


def counted(layout: int, values: list[int]) -> bytes:
    """A frame with the values of counters."""
    content = struct.pack(f">bqq{len(values)}q", 0, 1_000_000_000, layout, *values)
    return struct.pack(">i", len(content)) + content


COUNTED = st.builds(counted, st.integers(-1, 3), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))


@FUZZ
@given(st.lists(st.one_of(LINES.map(framed), COUNTED, BYTES), max_size=4).map(b"".join), st.integers(1, 40))
def test_any_bytes_are_survived(sent: bytes, step: int) -> None:
    reports = Reports("process 1")
    with suppress(TreadleError):
        for begin in range(0, len(sent), step):
            reports.take(sent[begin : begin + step])
    assert len(reports._received) <= len(sent)


@pytest.mark.parametrize("length", [-(2**31), -4, -1, 0, LONGEST_FRAME + 1, 2**31 - 1])
def test_a_frame_of_a_length_that_can_not_be_is_refused(length: int) -> None:
    with pytest.raises(EngineError, match=f"a frame of {length} bytes"):
        Reports("process 1").take(struct.pack(">i", length) + b"x" * 10)


def test_values_are_those_of_the_tasks_that_were_described() -> None:
    reports = Reports("process 1")
    reports.take(frame("task\t7\t3\t0\tin,metric:5", "task\t8\t4\t1\tin", "tasks\t1\t7,8"))
    reports.take(counted(1, [10, 20, 30]) + counted(1, [11, 21, 31]))
    first, second = reports.counts
    assert first.tasks is second.tasks
    assert [(task.stage, task.partition, task.columns) for task in first.tasks] == [
        (3, 0, ("in", "metric:5")),
        (4, 1, ("in",)),
    ]
    assert (first.time, first.values.tolist(), second.values.tolist()) == (1.0, [10, 20, 30], [11, 21, 31])
    reports.take(frame("tasks\t2\t8") + counted(2, [32]))
    assert reports.counts[-1].tasks == first.tasks[1:]


@pytest.mark.parametrize("sent", [counted(1, [1, 2]), counted(2, [1]), frame("tasks\t2\t7,9"), counted(1, [])])
def test_values_of_other_tasks_than_those_described_are_refused(sent: bytes) -> None:
    reports = Reports("process 1")
    reports.take(frame("task\t7\t3\t0\tin", "tasks\t1\t7"))
    with pytest.raises(EngineError, match="the agent sent an invalid report"):
        reports.take(sent)


def test_values_that_nobody_takes_are_not_kept_for_ever() -> None:
    reports = Reports("process 1")
    reports.take(frame("task\t7\t3\t0\tin", "tasks\t1\t7"))
    for number in range(10 * MOST_COUNTS):
        reports.take(counted(1, [number]))
    assert len(reports.counts) == MOST_COUNTS


def test_frames_in_pieces_are_put_together() -> None:
    reports = Reports("process 1")
    for byte in frame("agent\t4", "thread\t7\t16\ta\\tb", "driver\t0\tlocal-1\tshop"):
        reports.take(bytes([byte]))
    assert (reports.protocol, reports.threads[7].name, reports.application) == (4, "a\tb", ("local-1", "shop"))


@pytest.mark.parametrize("line", ["thread\t{}\t1\tname", "job\t{}\t1\t1\tid", "shuffle\t{}\t1", "batch\t{}\t1\t1"])
def test_more_than_any_jvm_has_is_refused(line: str) -> None:
    reports = Reports("process 1")

    def take_much() -> None:
        for begin in range(0, 3 * MOST, 8192):
            reports.take(frame(*(line.format(number) for number in range(begin, begin + 8192))))

    with pytest.raises(EngineError, match="the agent sent an invalid report"):
        take_much()
    assert len(reports.threads) + len(reports.jobs) + len(reports.shuffles) <= MOST + 8192


def test_long_texts_and_old_plans_are_not_kept() -> None:
    reports = Reports("process 1")
    reports.take(frame("thread\t1\t1\t" + "x" * 100_000))
    assert len(reports.threads[1].name) == LONGEST_NAME
    for number in range(MOST_PLANS + 20):
        reports.take(frame(f"plan\t{number}\t" + "x" * (LONGEST_PLAN if number < 2 else 1) + "y"))
    assert len(reports.plans) == MOST_PLANS
    assert max(map(len, reports.plans.values())) <= LONGEST_PLAN


def test_an_address_that_can_not_be_is_no_reason_to_fail() -> None:
    reports = Reports("process 1")
    reports.take(frame(f"thread\t1\t{2**70}\tname", "thread\t2\t-8\tname"))
    assert all(0 <= told.address < 2**64 for told in reports.threads.values())
