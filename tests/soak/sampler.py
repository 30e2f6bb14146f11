"""The nice of every thread of some processes, asked of the kernel a hundred times a second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

INTERVAL = 0.01


class Held(NamedTuple):
    """A thread had this nice in all samples from the first to the last of these times."""

    first: float
    last: float
    nice: int


class Sampler:
    """Looks for as long as its block lasts. `processes` says anew, each second, which there are."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self._processes = processes
        self._found: dict[tuple[int, int], list[Held]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")
        self.samples = 0
        self.longest_pause = 0.0
        """Between two samples, in seconds."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    @property
    def found(self) -> dict[tuple[int, int], list[Held]]:
        """By process and thread, in order of time, up to now."""
        return {thread: list(held) for thread, held in list(self._found.items())}

    def values(self) -> set[int]:
        """Every nice that a thread has now."""
        return {held[-1].nice for held in list(self._found.values())}

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)  # it is not to be late itself
        pids: list[int] = []
        listed = last = 0.0
        while not self._done.is_set():
            began = time.monotonic()
            if began - listed > 1.0:
                pids, listed = list(self._processes()), began
            for pid in pids:
                self._look(pid)
            if last:
                self.longest_pause = max(self.longest_pause, began - last)
            self.samples, last = self.samples + 1, began
            self._done.wait(max(0.0, began + INTERVAL - time.monotonic()))

    def _look(self, pid: int) -> None:
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return
        for tid in map(int, tids):
            try:
                nice = os.getpriority(os.PRIO_PROCESS, tid)
            except OSError:
                continue
            now = time.monotonic()
            held = self._found.setdefault((pid, tid), [])
            if held and held[-1].nice == nice:
                held[-1] = Held(held[-1].first, now, nice)
            else:
                held.append(Held(now, now, nice))
