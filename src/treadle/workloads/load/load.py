"""Starts and controls a load process, and collects its reports."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from treadle import errors
from treadle.errors import ConfigError, EngineError
from treadle.workloads.load.rates import SECOND, Rate, as_rate
from treadle.workloads.load.targets import Channel, Topic

KEPT = 0.01
"""A load is kept if rows are late in at most this share of the time."""
GRACE = 10.0
"""Seconds in which the load process has to answer."""


class Progress(NamedTuple):
    """Rows of a target until now: due, and sent (to Kafka: confirmed). `lag`: the worst since the report before."""

    due: int
    sent: int
    lag: float


class Report(NamedTuple):
    """The progress of all targets at `time` (monotonic, in seconds)."""

    time: float
    targets: Mapping[str, Progress]


class Total(NamedTuple):
    """A target's rows, its worst lag in seconds, and the share of time in which a row was later than the limit."""

    due: int
    sent: int
    worst: float
    late: float


@dataclass(frozen=True)
class Outcome:
    """What a load has done in so many seconds. `limit` is the lag above which a row counts as late."""

    totals: Mapping[str, Total]
    seconds: float
    limit: float

    @property
    def late(self) -> float:
        """The share of time in which rows were late, of the target with the largest share."""
        return max((total.late for total in self.totals.values()), default=0.0)

    @property
    def kept(self) -> bool:
        """Whether the rates were kept: all rows were sent, and rows were late in at most 1 % of the time."""
        return self.late <= KEPT and all(total.sent == total.due for total in self.totals.values())


class Load:
    """A process that fills targets at given rates, from the creation of this object until `stop`.

    The load is open loop: the times at which rows are due depend on nothing but the rates. A row's `created` is the
    time at which it was due, not the time at which it was sent. So if this generator is late, its delay is part of
    every latency that is measured from `created`. Rows that are late are sent as soon as possible. Each row is sent
    once, in order.

    `cores`: run on these cores only. `limit`: seconds of lag above which a row counts as late. `patience`: seconds
    that `stop` gives the targets to take the rows that are due.
    """

    def __init__(
        self,
        targets: Mapping[str, Topic | Channel],
        *,
        cores: Sequence[int] = (),
        limit: float = 0.1,
        patience: float = 30.0,
    ) -> None:
        self._names = frozenset(targets)
        self._limit = limit
        self._patience = patience
        self._reports: list[Report] = []
        self._answers: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self._failure: errors.TreadleError | None = None
        self._outcome: Outcome | None = None
        self._stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "treadle.workloads.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # makers are found as in this process
        )
        self._reader = threading.Thread(target=self._read, name="treadle-load", daemon=True)
        self._reader.start()
        try:
            made = {name: asdict(replace(target, rate=as_rate(target.rate))) for name, target in targets.items()}
            self._order({"targets": made, "cores": list(cores), "limit": limit, "patience": patience})
            began = self._answer("ready", None)
        except BaseException:
            self._end(at_once=True)
            raise
        self.epoch: int = began[0]
        """The beginning, in microseconds since 1970: a row that is due after d microseconds is created at epoch + d."""
        self.monotonic: float = began[1] / SECOND
        """The same moment by `time.monotonic()`."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and not self._stopped:  # an error of `stop` was raised already
            self.stop()
        else:
            self._end(at_once=True)

    def rates(self, rates: Mapping[str, float | Rate]) -> float:
        """Set the rate of each target; other targets get none. Return when this took effect, in monotonic seconds."""
        if unknown := sorted({*rates} - self._names):
            known = ", ".join(sorted(self._names))
            raise ConfigError(f"there is no target '{unknown[0]}'", remedy=f"use one of {known}")
        self._order({name: asdict(as_rate(rate)) for name, rate in rates.items()})
        changed: int = self._answer("changed", GRACE)
        return self.monotonic + changed / SECOND

    def report(self) -> list[Report]:
        """All reports until now; there is one every tenth of a second."""
        if self._failure is not None:
            raise self._failure
        return self._reports[:]

    def stop(self) -> Outcome:
        """End the process, and return what it has done."""
        self._stopped = True
        if self._outcome is None:
            self._close_input()
            try:
                seconds, totals = self._answer("totals", self._patience + GRACE)
            finally:
                self._end()
            made = {name: Total(*total) for name, total in totals.items()}
            self._outcome = Outcome(made, seconds, self._limit)
        return self._outcome

    def _end(self, *, at_once: bool = False) -> None:
        """Wait for the end of the process, and kill it if it does not end in time."""
        if at_once:
            self._process.kill()
        self._close_input()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, and says why in its answers
            self._process.stdin.close()

    def _order(self, order: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise EngineError("the load has ended", remedy="start another one")
        with suppress(BrokenPipeError):  # the process has ended, and says why in its answers
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def _answer(self, kind: str, seconds: float | None) -> Any:
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise EngineError(
                f"the load process does not answer within {seconds:g} s", remedy="check whether it is stopped"
            ) from None
        if answer is None:
            self._answers.put(None)  # for the next call
            assert self._failure is not None
            raise self._failure
        return answer[1] if answer[0] == kind else self._answer(kind, seconds)  # a late answer to an earlier call

    def _read(self) -> None:
        """Read the answers until the process ends."""
        assert self._process.stdout is not None
        ended = False
        with self._process.stdout as said:
            for line in said:
                kind, content = json.loads(line)
                if kind == "report":
                    time, rows = content
                    self._reports.append(Report(time, {name: Progress(*row) for name, row in rows.items()}))
                elif kind == "error":
                    name, message, where, remedy = content
                    self._failure = getattr(errors, name)(message, where=where, remedy=remedy)
                else:
                    ended = kind == "totals"
                    self._answers.put((kind, content))
        if self._failure is None and not ended:
            code = self._process.wait()
            self._failure = EngineError(f"the load process ended with code {code}", remedy="see its message above")
        self._answers.put(None)
