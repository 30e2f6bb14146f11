"""The load process: reads orders from its standard input, lets rows flow, and writes reports to its standard output.

Orders and answers are lines of JSON. The first order has the options; later ones set rates. When the input ends, what
is due until then is sent, and the last answer has the totals.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from treadle.errors import ConfigError, EngineError, TreadleError
from treadle.workloads.load.flow import Flow, Sink
from treadle.workloads.load.rates import SECOND, Even, Poisson, Schedule, constant, from_json
from treadle.workloads.load.targets import Channel, Topic

REPORT_INTERVAL = SECOND // 10
"""Microseconds between two reports."""


def main() -> None:
    """Serve the parent process until the standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent process decides when to end, by closing the standard input
    answers = _Answers()
    orders = _Orders()
    try:
        if options := orders.first():
            _Process(options, orders, answers).run()
    except TreadleError as error:
        answers.write("error", [type(error).__name__, error.message, error.where, error.remedy])
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(1)  # the parent has ended, so nobody needs the answers


class _Orders:
    """Lines of JSON from the standard input."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def first(self) -> Any:
        """Wait for the first order; None if there is none."""
        while not self.ended:
            if found := self.read(None):
                return found[0]
        return None

    def read(self, seconds: float | None) -> list[Any]:
        """The orders that have arrived; wait at most so long for the first one."""
        if self.ended:
            time.sleep(seconds or 0.0)
            return []
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return []
        arrived = os.read(sys.stdin.fileno(), 1 << 16)
        self.ended = not arrived
        *lines, self._rest = (self._rest + arrived).split(b"\n")
        return [json.loads(line) for line in lines]


class _Answers:
    """Lines of JSON on what was the standard output. What makers print goes to the standard error instead."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def write(self, kind: str, content: Any) -> None:
        self._file.write(json.dumps([kind, content]) + "\n")
        self._file.flush()


class _Process:
    """All targets of a load, and their common clock: microseconds since the beginning."""

    def __init__(self, options: dict[str, Any], orders: _Orders, answers: _Answers) -> None:
        _pin(options["cores"])
        self._orders = orders
        self._answers = answers
        self._patience = round(options["patience"] * SECOND)
        opened = {name: _opened(target) for name, target in options["targets"].items()}
        gc.freeze()  # lines and encoded lines stay: the collector need not scan them again and again
        self._monotonic = time.monotonic_ns() // 1000
        self._epoch = time.time_ns() // 1000
        limit = round(options["limit"] * SECOND)
        self._flows = {
            name: Flow(schedule, sink, epoch=self._epoch, limit=limit) for name, (schedule, sink) in opened.items()
        }
        self._report_at = REPORT_INTERVAL

    def run(self) -> None:
        self._answers.write("ready", [self._epoch, self._monotonic])
        while not self._orders.ended:
            self._step(self._clock())
            pause = min([self._report_at, *(flow.next for flow in self._flows.values())]) - self._clock()
            for order in self._orders.read(max(0, pause) / SECOND):
                self._change(order)
        self._finish(self._clock())

    def _clock(self) -> int:
        return time.monotonic_ns() // 1000 - self._monotonic

    def _step(self, until: int) -> None:
        """Send the rows that are due at `until` to each target whose next send is due; send a report if it is time."""
        for flow in self._flows.values():
            if flow.next <= self._clock():
                flow.step(until, self._clock)
        if self._clock() >= self._report_at:
            self._report(until)

    def _change(self, rates: dict[str, Any]) -> None:
        now = self._clock()
        for name, flow in self._flows.items():
            flow.schedule.change(now, from_json(rates[name]) if name in rates else constant(0.0))
        self._answers.write("changed", now)

    def _report(self, until: int) -> None:
        rows = {
            name: [flow.schedule.rows(until), flow.sink.sent, flow.take_lag() / SECOND]
            for name, flow in self._flows.items()
        }
        now = self._clock()
        # Before the end, what is due belongs to `until` exactly; after it, only the number of sent rows changes.
        time_of_rows = now if self._orders.ended else until
        self._answers.write("report", [(self._monotonic + time_of_rows) / SECOND, rows])
        self._report_at = (now // REPORT_INTERVAL + 1) * REPORT_INTERVAL

    def _finish(self, end: int) -> None:
        """Send what was due until the end, for as long as the patience lasts; report the totals."""
        while any(flow.sink.sent < flow.schedule.rows(end) for flow in self._flows.values()):
            if self._clock() > end + self._patience:
                break
            self._step(end)
            pause = min(flow.next for flow in self._flows.values()) - self._clock()
            time.sleep(max(0, pause) / SECOND)
        self._report(end)
        whole = max(1, self._clock())
        totals = {
            name: [flow.schedule.rows(end), flow.sink.sent, flow.worst / SECOND, flow.late / whole]
            for name, flow in self._flows.items()
        }
        for name, flow in self._flows.items():
            flow.sink.close()
            if flow.unconfirmed:
                what = f"{flow.unconfirmed} rows were not confirmed within {self._patience / SECOND:g} s"
                raise EngineError(what, where=name, remedy="check the broker; these rows may or may not be there")
        self._answers.write("totals", [end / SECOND, totals])


def _opened(options: dict[str, Any]) -> tuple[Schedule, Sink]:
    """The schedule of a target, and its open sink."""
    rate = from_json(options.pop("rate"))
    schedule = Schedule(rate, Poisson(options["seed"]) if options["poisson"] else Even())
    if "topic" in options:
        from treadle.workloads.load.to_kafka import TopicSink

        return schedule, TopicSink(Topic(**options))
    from treadle.workloads.load.to_channel import ChannelSink

    return schedule, ChannelSink(Channel(**options))


def _pin(cores: Sequence[int]) -> None:
    """Run on these cores only, with all threads that are started from now on."""
    if not cores:
        return
    with suppress(OSError):  # none of them can be used
        os.sched_setaffinity(0, cores)
    if os.sched_getaffinity(0) != {*cores}:
        raise ConfigError(f"cores {sorted(cores)} can't be used", remedy="name cores that this machine has")
