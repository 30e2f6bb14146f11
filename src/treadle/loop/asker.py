"""Calls functions in a thread of their own, so that a slow call does not delay the caller."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SIGNALS = 0.2
"""Longest single wait in seconds. Python handles a signal that the kernel gave to another thread between two waits."""


class Asker(Generic[T]):
    """A thread that calls functions, one at a time. It ends at `dismiss`, or when this object is garbage-collected."""

    def __init__(self, name: str) -> None:
        self._questions: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._answers: SimpleQueue[T | BaseException] = SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self._questions, self._answers), name=name, daemon=True)
        self.thread.start()
        self.dismiss = weakref.finalize(self, self._questions.put, None)

    def ask(self, question: Callable[[], T]) -> None:
        self._questions.put(question)

    def answer(self, timeout: float) -> T | BaseException | None:
        """Return what the function returned, or the exception that it raised; None if it has not ended in time.

        A signal that the kernel gives to another thread does not interrupt a wait, so no single wait exceeds `SIGNALS`.
        """
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return self._answers.get(timeout=max(0.0, min(left, SIGNALS)))
            except Empty:
                if left <= SIGNALS:
                    return None


def _serve(questions: SimpleQueue[Any], answers: SimpleQueue[Any]) -> None:
    while (question := questions.get()) is not None:
        try:
            answers.put(question())
        except BaseException as error:  # the caller decides what to do about it
            answers.put(error)
        del question  # a reference would keep its owner alive
