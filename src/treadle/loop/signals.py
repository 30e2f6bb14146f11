"""Signals end the loop, but not in the middle of a round: they wait for its end, and everything is put back first.

A second one does not wait for a round, since that may hang; it does wait while things are put back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Signals:
    """Handlers for the signals that end a program, while they are installed."""

    def __init__(self, restore: Callable[[], object]) -> None:
        self._restore = restore
        self._before: dict[signal.Signals, Any] = {}
        self._phase: Literal["", "round", "restore"] = ""
        self._waiting: int | None = None

    def install(self) -> None:
        """Python lets only the main thread do so. What is ignored (as by nohup) or not Python's stays as it is."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDING:
            before = signal.getsignal(number)
            if number not in self._before and before is not None and before != signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)

    def remove(self) -> None:
        for number in list(self._before):
            signal.signal(number, self._before.pop(number))

    def hold(self, phase: Literal["round", "restore"]) -> _Hold:
        """A signal within waits until the end."""
        return _Hold(self, phase)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._phase == "restore" or (self._phase == "round" and self._waiting is None):
            self._waiting = number
            return
        if not self._phase:
            self._restore()  # here too, should the exception get lost on its way
        raise _ending(number)


class _Hold:
    """A phase in which signals wait. Not a generator, which costs each round several times as much."""

    def __init__(self, signals: Signals, phase: Literal["round", "restore"]) -> None:
        self._signals = signals
        self._inner = phase
        self._outer = signals._phase

    def __enter__(self) -> None:
        self._signals._phase = self._inner

    def __exit__(self, *_: object) -> None:
        signals = self._signals
        signals._phase = self._outer
        if not self._outer and signals._waiting is not None:
            number, signals._waiting = signals._waiting, None
            raise _ending(number)


def _ending(number: int) -> BaseException:
    """As Python and shells have it: 128 + n for a program that a signal ended."""
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
