"""Signals end the loop, but not in the middle of a round: they wait for its end, and everything is put back first.

A second signal does not wait for the round, since the round may hang; it does wait while values are put back. Signals
for a fault of the program itself (SIGSEGV and the like) are not handled: nothing can be trusted after them.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Literal

ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
"""The signals with which people and systems end a program."""
_OTHERS = ["USR1", "USR2", "ALRM", "VTALRM", "PROF", "XCPU", "XFSZ", "PIPE", "ABRT", "POLL", "PWR", "STKFLT"]
ENDING: tuple[int, ...] = (
    *ASKING,
    *(getattr(signal, f"SIG{name}") for name in _OTHERS if hasattr(signal, f"SIG{name}")),
    *(range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if hasattr(signal, "SIGRTMIN") else ()),
)
"""Signals that end a program if it does not handle them, except SIGKILL and those for faults (SIGSEGV and the like)."""


class Signals:
    """Handlers for the signals that end a program, while they are installed."""

    def __init__(self, restore: Callable[[], object]) -> None:
        self._restore = restore
        self._before: dict[int, Any] = {}
        self._phase: Literal["", "round", "restore"] = ""
        self._waiting: dict[int, Any] = {}
        """Signal that waits -> the handler that it had before ours."""

    def install(self) -> None:
        """Install our handlers; do nothing outside of the main thread, where Python does not allow it.

        Signals that are ignored (as by nohup) or handled outside of Python keep their handlers. So do signals that the
        program handles itself, except those in `ASKING`: our handler puts everything back, then calls the program's.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        elsewhere = _caught()
        for number in ENDING:
            before = signal.getsignal(number)
            ends = before == signal.SIG_DFL and number not in elsewhere
            asks = callable(before) and (number in ASKING or _is_a_loops(before))
            if number not in self._before and (ends or asks):
                self._before[number] = before
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Remove our handlers. A handler that the program has set in the meantime stays."""
        for number, before in list(self._before.items()):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
            del self._before[number]

    def hold(self, phase: Literal["round", "restore"]) -> _Hold:
        """Return a context in which signals wait until its end."""
        return _Hold(self, phase)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number, signal.SIG_DFL)
        if self._phase == "round" and self._waiting:
            _pass_on(number, before, frame)
            return
        self._waiting[number] = before
        if not self._phase:
            self._release("")

    def _release(self, phase: Literal["", "round", "restore"]) -> None:
        """End a phase: put everything back, then pass on the signals that waited."""
        if self._waiting and phase != "restore":
            self._phase = "restore"
            try:
                self._restore()  # here too: the exception may be caught on its way, or the handler may raise none
            finally:
                self._phase = ""
        for number in tuple(self._waiting):
            before = self._waiting.pop(number, None)
            if before is not None:  # otherwise a further signal has passed this one on already
                _pass_on(number, before, inspect.currentframe())


class _Hold:
    """Context manager in which signals wait. A class, since a generator-based one costs several times as much."""

    def __init__(self, signals: Signals, phase: Literal["round", "restore"]) -> None:
        self._signals = signals
        self._inner = phase
        self._outer = signals._phase

    def __enter__(self) -> None:
        self._signals._phase = self._inner

    def __exit__(self, *_: object) -> None:
        signals = self._signals
        signals._phase = self._outer
        if not self._outer and signals._waiting:
            signals._release(self._inner)


def _pass_on(number: int, before: Any, frame: FrameType | None) -> None:
    """Call the program's own handler; if it has none, end as Python and shells do: exit code 128 + n for signal n."""
    if callable(before):
        before(number, frame)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        raise SystemExit(128 + number)


def _is_a_loops(handler: Any) -> bool:
    return isinstance(getattr(handler, "__self__", None), Signals)


def _caught() -> set[int]:
    """Return the signals that have a handler, even one that Python does not know of, such as faulthandler's."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return set()
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt:")), 0)
    return {number for number in ENDING if mask >> (number - 1) & 1}
