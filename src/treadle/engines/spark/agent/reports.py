"""What an agent has reported from inside a JVM so far: threads, jobs, plans, batches, counters of tasks.

This module parses the frames of `java/treadle/Agent.java`; `agents` receives them. The JVM may belong to any user, so
frames, texts and the number of kept entries are limited, and anything that no agent sends is an error.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import NamedTuple

import numpy as np

from treadle.engines.spark.queries.rest import Job, job
from treadle.errors import EngineError
from treadle.model import Ints
from treadle.text import excerpt

TROUBLES = 20
"""Number of consecutive reports of a failure to read Spark that make an error. A few failures occur while Spark changes
its state."""
LONGEST_FRAME = 1 << 23
"""Maximum bytes of a frame: enough for 5,000 threads and 100 plans."""
LONGEST_NAME, LONGEST_PLAN = 1 << 12, 1 << 18
"""Maximum characters of a name or description, and of a plan; the rest is cut off."""
MOST, MOST_PLANS = 1 << 15, 1 << 8
"""Maximum number of threads, jobs, shuffles, batches, stacks or tasks: more of one kind are an error. Maximum number of
plans: older ones are dropped."""
MOST_COLUMNS, MOST_COUNTS = 1 << 12, 1 << 6
"""Maximum number of counter columns of a task, and of readings that are kept until they are taken."""
_LENGTH, _TIME_AND_LAYOUT = struct.Struct(">i"), struct.Struct(">qq")
_ADDRESSES = 1 << 64
_NO_NEWS = ("stack\t", "task\t", "tasks\t")
"""How lines without news of threads, jobs or plans begin."""


class Told(NamedTuple):
    """A thread as Java knows it."""

    name: str
    address: int
    """The address of the JVM's record of the thread; 0 if unknown."""


class Stack(NamedTuple):
    """A stack sample of a task's thread."""

    state: str
    frames: tuple[str, ...]
    """Innermost first, as `package.Class.method`."""


class Task(NamedTuple):
    """A task that runs in the JVM, and its counter columns (see `java/treadle/Counters.java`).

    For a query in micro-batches: stage -1, and the number of its thread as partition.
    """

    stage: int
    partition: int
    columns: tuple[str, ...]


class Counts(NamedTuple):
    """The counters of all tasks of the JVM at a time of the monotonic clock."""

    time: float
    tasks: tuple[Task, ...]
    """The same tuple object in all readings for as long as the tasks are the same."""
    values: Ints
    """All columns of the first task, then all of the second, and so on; -1: unknown."""


class Reports:
    """The current state of a JVM, from all that its agent has reported."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.threads: dict[int, Told] = {}
        """All Java threads, by Java's number of the thread."""
        self.jobs: dict[int, Job] = {}
        """Running jobs by job id; only a driver has them."""
        self.shuffles: dict[int, int] = {}
        """By shuffle id, the stage that writes it."""
        self.plans: dict[int, str] = {}
        """By id of the SQL execution, its plan as Spark describes it."""
        self.graphs: dict[int, str] = {}
        """By id of the SQL execution, its operators with their counters, as `operators.parse` reads them."""
        self.counts: deque[Counts] = deque(maxlen=MOST_COUNTS)
        """Counter readings that nobody has taken yet, oldest first."""
        self.batches: dict[int, tuple[float, float]] = {}
        """By Java's number of a streaming query's thread: rows in per second of the last batch, and rows sent to Kafka
        per row in; the latter is -1 while unknown, as before the first batch."""
        self.application = ("", "")
        """In a driver, the id and the name of its application."""
        self.stacks: dict[int, Stack] = {}
        """The last stacks of tasks' threads, by Java's number of the thread."""
        self.changes = 0
        """Number of received frames that had news of threads, jobs or plans."""
        self.sampled = 0
        """Number of received frames that had stacks."""
        self.counted = 0
        """Number of received frames that had counters of tasks."""
        self.protocol = 0
        self._trouble: list[str] = []
        self._received = bytearray()
        self._tasks: dict[int, Task] = {}
        self._layout: tuple[int, tuple[Task, ...], int] = (-1, (), 0)
        """Id of the current layout, its tasks in the order of their values, and the number of values."""

    @property
    def drives(self) -> bool:
        """Whether the agent is in a driver."""
        return bool(self.application[0])

    @property
    def selectivity(self) -> float:
        """Rows sent to Kafka per row read from it, over the last batches of all queries; NaN unless all are known."""
        taken = sum(rate for rate, _ in self.batches.values())
        known = taken > 0.0 and all(each >= 0.0 for _, each in self.batches.values())
        return sum(rate * each for rate, each in self.batches.values()) / taken if known else math.nan

    def take(self, some: bytes) -> None:
        """Add received bytes, and parse all frames that are now complete."""
        received = self._received
        received += some
        while len(received) >= _LENGTH.size:
            length = _LENGTH.unpack_from(received)[0]
            if not 0 < length <= LONGEST_FRAME:
                raise self._nonsense(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(received) < end:
                return
            content = bytes(received[_LENGTH.size : end])
            del received[:end]
            if content[0]:
                self._take(content[:-1].decode(errors="replace"))
            else:
                self._count(content)

    def _count(self, content: bytes) -> None:
        """Parse a frame of all tasks' counters, which begins with a zero byte."""
        number, tasks, count = self._layout
        if len(content) != 1 + 8 * (2 + count):
            raise self._nonsense(f"{len(content)} bytes of {count} counters")
        time, layout = _TIME_AND_LAYOUT.unpack_from(content, 1)
        if layout != number:
            raise self._nonsense(f"counters of tasks in order {layout}, not {number}")
        values = np.frombuffer(content, ">i8", count, 17).astype(np.int64)
        self.counted += 1
        self.counts.append(Counts(time / 1e9, tasks, values))

    def _take(self, text: str) -> None:
        stacks: dict[int, Stack] = {}
        for line in text.split("\n"):
            what, *fields = line.split("\t")
            try:
                if what == "stack":
                    stacks[int(fields[0])] = Stack(fields[1], tuple(fields[2].split(",")))
                else:
                    self._note(what, *fields)
            except (ValueError, IndexError) as error:
                raise self._nonsense(excerpt(line)) from error
        if stacks:
            self.stacks = stacks
            self.sampled += 1
        self._check_bounds()
        self.changes += any(not line.startswith(_NO_NEWS) for line in text.split("\n"))
        self._trouble = self._trouble[-TROUBLES:] if "\ntrouble\t" in f"\n{text}" else []
        if len(self._trouble) == TROUBLES:
            raise EngineError(f"the agent can't read Spark: {self._trouble[-1]}", where=self.where)

    def _note(self, what: str, number: str = "0", *fields: str) -> None:
        key = int(number)
        match what, fields:
            case "thread", (address, name):
                self.threads[key] = Told(_plain(name[:LONGEST_NAME]), int(address) % _ADDRESSES)
            case "gone", _:
                self.threads.pop(key, None)
                self.batches.pop(key, None)
            case "job", (execution, stages, description):
                numbers = [int(stage) for stage in stages.split(",", MOST)[:MOST] if stage]
                self.jobs[key] = job(_plain(description[:LONGEST_NAME]), numbers, int(execution))
            case "shuffle", (stage,):
                self.shuffles[key] = int(stage)
            case "over", _:
                self._end(self.jobs.pop(key, None))
            case "plan", (text,):
                self.plans[key] = _plain(text[:LONGEST_PLAN])
                if len(self.plans) > MOST_PLANS:
                    del self.plans[next(iter(self.plans))]
            case "graph", (text,):
                self.graphs[key] = _plain(text[:LONGEST_PLAN])
                if len(self.graphs) > MOST_PLANS:
                    del self.graphs[next(iter(self.graphs))]
            case "batch", (rate, each):
                self.batches[key] = float(rate), float(each)
            case "driver", (identity, name):
                self.application = identity[:LONGEST_NAME], _plain(name[:LONGEST_NAME])
            case "agent", _:
                self.protocol = key
            case "trouble", (why,):
                self._trouble.append(excerpt(why))
            case _:
                self._note_task(key, what, fields)

    def _note_task(self, key: int, what: str, fields: tuple[str, ...]) -> None:
        match what, fields:
            case "task", (stage, partition, columns):
                names = columns.split(",", MOST_COLUMNS)[:MOST_COLUMNS] if columns else ()
                self._tasks[key] = Task(int(stage), int(partition), tuple(names))
            case "tasks", (order,):
                self._arrange(key, [int(each) for each in order.split(",", MOST)[:MOST] if each])

    def _arrange(self, number: int, order: list[int]) -> None:
        """Set the tasks of the next counter frames, in order; all others have ended."""
        self._tasks = {each: self._tasks[each] for each in order if each in self._tasks}
        if len(self._tasks) != len(order):
            raise self._nonsense("counters of a task that it has not described")
        tasks = tuple(self._tasks[each] for each in order)
        self._layout = number, tasks, sum(len(task.columns) for task in tasks)

    def _end(self, over: Job | None) -> None:
        if over is not None:
            self.plans.pop(over.execution, None)
            self.graphs.pop(over.execution, None)
            gone = set(over.stages)
            self.shuffles = {number: stage for number, stage in self.shuffles.items() if stage not in gone}

    def _check_bounds(self) -> None:
        for kept in (self.threads, self.jobs, self.shuffles, self.batches, self.stacks, self._tasks):
            if len(kept) > MOST:
                raise self._nonsense(f"{len(kept)} entries of one kind")
        if sum(len(each.stages) for each in self.jobs.values()) > MOST:
            raise self._nonsense("more stages than any driver runs")

    def _nonsense(self, what: str) -> EngineError:
        remedy = "attach with --no-agent, and find out what runs in that JVM"
        return EngineError(f"the agent sent an invalid report: {what}", where=self.where, remedy=remedy)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    parts = [part.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for part in text.split("\\\\")]
    return "\\".join(parts)
