"""Who the threads are, where an agent and dumps disagree for a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.engines.spark.agent.reports import Stack, Told
from treadle.engines.spark.threads import thread_table as module
from treadle.engines.spark.threads.thread_table import ThreadTable
from treadle.jvm import JavaThread

PID = os.getpid()
TASK, IDLE = "Executor task launch worker for task 0.0 in stage 1.0 (TID 1)", "Executor task idle worker#1"


class Agents:
    """A stand-in: what one agent says is set by the test."""

    def __init__(self) -> None:
        self.generation = self.sampled = 0
        self.agent = SimpleNamespace(threads={}, stacks={}, changes=0, sampled=0)

    def of(self, pid: int) -> Any:
        return self.agent

    def say(self, **threads: str) -> None:
        """All threads, by number."""
        self.agent.threads = {int(number[1:]): Told(name, 0) for number, name in threads.items()}
        self.agent.changes += 1
        self.generation += 1


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def dumped() -> list[JavaThread]:
    """What a dump finds."""
    return [JavaThread(TASK, 11, "RUNNABLE", (), 1, 0)]


@pytest.fixture
def roster(agents: Agents, dumped: list[JavaThread], monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadTable]:
    monkeypatch.setattr(module, "_dump", lambda _: list(dumped))
    made = ThreadTable(agents)  # type: ignore[arg-type]
    agents.say(_1=TASK)
    made.look(0.0, [PID])
    yield made
    made.close()


def names(roster: ThreadTable) -> dict[int, str]:
    return {thread.number: thread.name for thread in roster.look(0.0, [PID])[PID]}


def test_a_dump_that_is_older_than_what_the_agent_has_said_does_not_last(
    roster: ThreadTable, agents: Agents, dumped: list[JavaThread]
) -> None:
    dumped.append(JavaThread("new", 12, "RUNNABLE", (), 2, 0))
    agents.say(_1=IDLE, _2="new")  # which takes a dump, since nobody knows its kernel id
    names(roster)
    assert names(roster) == {1: IDLE, 2: "new"}


def test_names_and_threads_that_change_are_a_new_version_and_stacks_are_not(
    roster: ThreadTable, agents: Agents
) -> None:
    names(roster)
    version, stacks = roster.version, roster.stacks
    agents.agent.stacks, agents.agent.sampled = {1: Stack("WAITING", ("a.B.c",))}, 1
    assert roster.look(0.0, [PID])[PID] == [JavaThread(TASK, 11, "WAITING", ("a.B.c",), 1, 0)]
    assert (roster.version, roster.stacks) == (version, stacks + 1)
    agents.say(_1=IDLE)
    assert names(roster) == {1: IDLE}
    assert (roster.version, roster.stacks) == (version + 1, stacks + 1)


def test_a_sign_of_each_of_them_is_seen(roster: ThreadTable, agents: Agents) -> None:
    names(roster)
    before = roster.signs([PID], ())
    assert roster.signs([PID], ()) == before
    agents.sampled += 1
    sampled = roster.signs([PID], ())
    assert sampled != before
    agents.say(_1=IDLE)
    assert roster.signs([PID], ()) != sampled
