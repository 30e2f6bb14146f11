"""Samples one engine in each round, and contains its failures: only the rows of this engine become unknown.

A failing engine is retried after pauses that double. Unless an engine is `in_process`, it is called in a thread of its
own, which is abandoned if the call hangs.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Collection
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from treadle.errors import EngineError
from treadle.loop.engine import Engine
from treadle.loop.trouble import Trouble
from treadle.model import Topology
from treadle.observe import Provider
from treadle.values import Sample, Snapshot

T = TypeVar("T")
SIGNALS = 0.2
"""Seconds within which a signal is handled, whichever thread the kernel has given it to."""


class Watch:
    """One engine and its last sample. The engine must answer within `timeout` seconds (None: no limit).

    A round waits at most `patience` seconds for the answer and then uses the last sample (None: until `timeout`).
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Collection[str],
        trouble: Trouble,
        timeout: float | None,
        *,
        patience: float | None = None,
        tau: float,
        forget: float,
    ) -> None:
        self.engine = engine
        self.name = engine.name
        self.knobs = engine.knobs()
        self._make_provider = partial(Provider, engine.offers, tau=tau, forget=forget, engine=engine.name)
        self.provider = self._make_provider(metrics)
        self.trouble = trouble
        self.topology: Topology | None = None
        """None until the engine first answered."""
        self.fresh = False
        """Whether the last call succeeded."""
        self.looks = 0
        """The number of samples; a round without news adds none."""
        self.took: dict[str, float] = {}
        """Seconds that the parts of the last sample took."""
        self._news: Callable[[], bool] | None = getattr(engine, "news", None)
        self._metrics = frozenset(metrics)
        self._timeout = timeout
        self._patience = patience
        self._asker: Asker[tuple[Topology, Sample]] | None = None
        self._asked = math.nan
        """The start of the call that is not answered yet; NaN if there is none."""
        self._hanging: threading.Thread | None = None
        self._snapshot: Snapshot | None = None

    def look(self, now: float) -> None:
        """Sample the engine, unless it has no news or pauses after a failure."""
        try:
            if math.isnan(self._asked) and self.fresh and self._news is not None and not self._news():
                return
            if math.isnan(self._asked) and self.trouble.waits(now):
                self.fresh = False
                return
            answer = self._ask_with_patience(self._timeout) if self._timeout and self._may_wait() else self._ask()
            if answer is None:
                return
            self.looks += 1
            topology, sample = answer
            if self.topology is None or topology.version != self.topology.version:
                self.topology = topology
            began = time.perf_counter()
            self._snapshot = self.provider.update(self.topology, sample)
            self.took["metrics"] = time.perf_counter() - began
        except Exception as error:
            self.fresh = False
            self.trouble.failed(now, error)
        else:
            self.trouble.worked()
            self.fresh = True

    def want(self, metrics: Collection[str]) -> None:
        """Compute these metrics too. If one is new, all averages begin again."""
        if not self._metrics.issuperset(metrics):
            self._metrics |= set(metrics)
            self.provider = self._make_provider(self._metrics)

    def snapshot(self) -> Snapshot:
        """Return the last snapshot; if the engine failed, one in which all is unknown and the time is -inf."""
        if self.fresh and self._snapshot is not None:
            return self._snapshot
        topology = self.topology or Topology((), ())
        unknown = np.full(len(topology), np.nan)
        return Snapshot(topology, -math.inf, dict.fromkeys(self._metrics, unknown))

    def rest(self) -> None:
        """End the thread; the next `look` starts a new one."""
        self._asked = math.nan
        if self._asker is not None:
            self._asker.dismiss()
            self._asker = None

    def _may_wait(self) -> bool:
        """Whether the engine must be called in a thread of its own, or such a call still runs."""
        busy = not math.isnan(self._asked) or (self._hanging is not None and self._hanging.is_alive())
        return busy or not getattr(self.engine, "in_process", False)

    def _ask(self) -> tuple[Topology, Sample]:
        began = time.perf_counter()
        topology = self.engine.topology()
        looked = time.perf_counter()
        sample = self.engine.sample(self.provider.base)
        self.took = {"threads": looked - began, "counters": time.perf_counter() - looked}
        return topology, sample

    def _ask_with_patience(self, timeout: float) -> tuple[Topology, Sample] | None:
        """Call the engine, unless a call still runs, and return the answer; None if it may still arrive in time."""
        if self._hanging is not None and self._hanging.is_alive():
            raise EngineError("has still not answered", where=f"engine '{self.name}'")
        now = time.monotonic()
        asker, self._asker = self._asker or Asker(f"treadle-look-at-{self.name}"), None
        waits = False
        answer: tuple[Topology, Sample] | BaseException | None = None
        try:
            if math.isnan(self._asked):
                self._asked = now
                asker.ask(self._ask)
            left = self._asked + timeout - now
            answer = asker.answer(left if self._patience is None else min(left, self._patience))
            waits = answer is None and time.monotonic() < self._asked + timeout
        finally:
            if waits:
                self._asker = asker
            else:
                self._asked = math.nan
            if answer is None and not waits:  # late, or interrupted by a signal: the thread ends after this call
                asker.dismiss()
                self._hanging = asker.thread
        if waits:
            return None
        if answer is None:
            raise EngineError(
                f"did not answer within {timeout:g} s",
                where=f"engine '{self.name}'",
                remedy="see whether it is overloaded",
            )
        self._asker = asker
        if isinstance(answer, BaseException):
            raise answer
        return answer


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
