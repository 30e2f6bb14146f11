"""What an agent reports from inside of a JVM, as far as it is known: threads, running jobs, plans, batches.

It knows the frames that `java/treadle/Agent.java` sends, not how they come here. The JVM may be anybody's, so each
frame, each text and the number of things that are kept are bounded; whatever is none of the agent's is an error.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from treadle.engines.spark.rest import Job, job
from treadle.errors import EngineError
from treadle.text import excerpt

TROUBLES = 20
"""Answers in a row that say that Spark can't be read, after which that is believed: a few come of its own changes."""
LONGEST_FRAME = 1 << 23
"""Bytes: 5,000 threads and a hundred plans need one."""
LONGEST_NAME, LONGEST_PLAN = 1 << 12, 1 << 18
"""Characters of a name or description, and of a plan, that are kept."""
MOST, MOST_PLANS = 1 << 15, 1 << 8
"""Threads, jobs, shuffles, batches of each, and plans that are kept."""
_LENGTH = struct.Struct(">i")
_ADDRESSES = 1 << 64


class Told(NamedTuple):
    """A thread as Java knows it."""

    name: str
    address: int
    """Where the JVM keeps its record of it; 0 if unknown."""


class Stack(NamedTuple):
    """What the thread of a task was found doing."""

    state: str
    frames: tuple[str, ...]
    """Innermost first, as `package.Class.method`."""


class Reports:
    """What was reported up to now."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.threads: dict[int, Told] = {}
        """All Java threads, by the number that Java gives them."""
        self.jobs: dict[int, Job] = {}
        """Those that run, by Spark's number of them: in a driver."""
        self.shuffles: dict[int, int] = {}
        """By number, the stage that writes it."""
        self.plans: dict[int, str] = {}
        """By number of the SQL execution, as Spark describes them."""
        self.batches: dict[int, tuple[float, float]] = {}
        """By number of a streaming query's thread, rows that its last batch took a second, and put into Kafka for each.

        The latter is -1 where that is not known, as before the first batch."""
        self.application = ("", "")
        """In a driver: Spark's id of it, and its name."""
        self.stacks: dict[int, Stack] = {}
        """Of the threads of tasks, by the numbers of these, at the last look at them."""
        self.changes = 0
        """How many frames have had something new."""
        self.sampled = 0
        """How many have had stacks."""
        self.protocol = 0
        self._trouble: list[str] = []
        self._received = bytearray()

    @property
    def drives(self) -> bool:
        """Whether it is in a driver."""
        return bool(self.application[0])

    @property
    def selectivity(self) -> float:
        """Rows put into Kafka for each taken from there, over the last batches of all queries; NaN if not all tell."""
        taken = sum(rate for rate, _ in self.batches.values())
        known = taken > 0.0 and all(each >= 0.0 for _, each in self.batches.values())
        return sum(rate * each for rate, each in self.batches.values()) / taken if known else math.nan

    def take(self, some: bytes) -> None:
        """Take the bytes that came next, and all frames that are complete with them."""
        received = self._received
        received += some
        while len(received) >= _LENGTH.size:
            length = _LENGTH.unpack_from(received)[0]
            if not 0 < length <= LONGEST_FRAME:
                raise self._nonsense(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(received) < end:
                return
            text = received[_LENGTH.size : end - 1].decode(errors="replace")
            del received[:end]
            self._take(text)

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
        self.changes += text.count("\n") + 1 > len(stacks)
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
            case "batch", (rate, each):
                self.batches[key] = float(rate), float(each)
            case "driver", (identity, name):
                self.application = identity[:LONGEST_NAME], _plain(name[:LONGEST_NAME])
            case "agent", _:
                self.protocol = key
            case "trouble", (why,):
                self._trouble.append(excerpt(why))

    def _end(self, over: Job | None) -> None:
        if over is not None:
            self.plans.pop(over.execution, None)
            gone = set(over.stages)
            self.shuffles = {number: stage for number, stage in self.shuffles.items() if stage not in gone}

    def _check_bounds(self) -> None:
        for kept in (self.threads, self.jobs, self.shuffles, self.batches, self.stacks):
            if len(kept) > MOST:
                raise self._nonsense(f"{len(kept)} things of a kind")
        if sum(len(each.stages) for each in self.jobs.values()) > MOST:
            raise self._nonsense("more stages than any driver runs")

    def _nonsense(self, what: str) -> EngineError:
        remedy = "attach with --no-agent, and find out what runs in that JVM"
        return EngineError(f"the agent reports what no agent of Treadle does: {what}", where=self.where, remedy=remedy)


def _plain(text: str) -> str:
    if "\\" not in text:
        return text
    parts = [part.replace("\\n", "\n").replace("\\t", "\t").replace("\\r", "\r") for part in text.split("\\\\")]
    return "\\".join(parts)
