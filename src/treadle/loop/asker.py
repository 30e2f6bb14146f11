"""Asks a question in a thread of its own, so that a slow answer delays nobody else."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
SIGNALS = 0.2
"""Seconds within which a signal is handled, whichever thread the kernel has given it to."""


class Asker(Generic[T]):
    """A thread that calls functions, one at a time. It ends when it is dismissed, or this object is collected."""

    def __init__(self, name: str) -> None:
        self._questions: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._answers: SimpleQueue[T | BaseException] = SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self._questions, self._answers), name=name, daemon=True)
        self.thread.start()
        self.dismiss = weakref.finalize(self, self._questions.put, None)

    def ask(self, question: Callable[[], T]) -> None:
        self._questions.put(question)

    def answer(self, timeout: float) -> T | BaseException | None:
        """Return the answer, or the exception that was raised; None if there is neither in time.

        A signal that the kernel gives to another thread does not interrupt this wait, so the wait is cut into pieces.
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
