"""Looks at one engine in each round, and contains what goes wrong there: its own rows become unknown, nothing else.

A failing engine is tried again after pauses that double. Each is asked in a thread of its own, where it is left if it
hangs, unless it says that it answers `in_process`.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue

import numpy as np

from treadle.errors import EngineError
from treadle.loop.engine import Engine
from treadle.loop.trouble import Trouble
from treadle.model import Topology
from treadle.observe import Provider
from treadle.values import Sample, Snapshot


class Watch:
    """One engine as the loop last saw it. `timeout` are the seconds it may take to answer, if there is a limit.

    For `patience` a round waits for the answer; if it comes later, what was last seen holds until the round after.
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
        self.provider = Provider(engine.offers, metrics, tau=tau, forget=forget, engine=engine.name)
        self.trouble = trouble
        self.topology: Topology | None = None
        """None until the engine first answered."""
        self.fresh = False
        """Whether the last look succeeded."""
        self.looks = 0
        """How often it was looked at; a round in which there was no news counts as none."""
        self.took: dict[str, float] = {}
        """Seconds that the parts of the last look took."""
        self._news: Callable[[], bool] | None = getattr(engine, "news", None)
        self._metrics = frozenset(metrics)
        self._timeout = timeout
        self._patience = patience
        self._asker: _Asker | None = None
        self._asked = math.nan
        """When the question was put that is not answered yet."""
        self._hanging: threading.Thread | None = None
        self._snapshot: Snapshot | None = None

    def look(self, now: float) -> None:
        """Ask the engine, unless it has no news, or it is too early after a failure."""
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

    def snapshot(self) -> Snapshot:
        """The last look; if it failed, all unknown, and older than whatever the others saw."""
        if self.fresh and self._snapshot is not None:
            return self._snapshot
        topology = self.topology or Topology((), ())
        unknown = np.full(len(topology), np.nan)
        return Snapshot(topology, -math.inf, dict.fromkeys(self._metrics, unknown))

    def rest(self) -> None:
        """Keep no thread; the next look starts one again."""
        self._asked = math.nan
        if self._asker is not None:
            self._asker.dismiss()
            self._asker = None

    def _may_wait(self) -> bool:
        """Whether it has to be asked in a thread of its own, or is still busy there."""
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
        """The answer, if not to this question then to the last one; None if it may still come in time."""
        if self._hanging is not None and self._hanging.is_alive():
            raise EngineError("has still not answered", where=f"engine '{self.name}'")
        now = time.monotonic()
        asker, self._asker = self._asker or _Asker(f"treadle-look-at-{self.name}"), None
        waits = False
        answer: Answer | None = None
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
            if answer is None and not waits:  # late, or a signal broke in: the thread ends with this question
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


Answer = tuple[Topology, Sample] | BaseException
SIGNALS = 0.2
"""Seconds after which a signal is noticed, whichever thread it went to."""


class _Asker:
    """A thread that asks, again and again. It ends when it is dismissed, or nobody has this object any more."""

    def __init__(self, name: str) -> None:
        self._questions: SimpleQueue[Callable[[], Answer] | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self.thread = threading.Thread(target=_serve, args=(self._questions, self._answers), name=name, daemon=True)
        self.thread.start()
        self.dismiss = weakref.finalize(self, self._questions.put, None)

    def ask(self, question: Callable[[], Answer]) -> None:
        self._questions.put(question)

    def answer(self, timeout: float) -> Answer | None:
        """The answer, or what was raised instead; None if there is none in time.

        A signal that the kernel gives to another thread wakes nobody who waits here, so it is looked for in between.
        """
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                return self._answers.get(timeout=max(0.0, min(left, SIGNALS)))
            except Empty:
                if left <= SIGNALS:
                    return None


def _serve(questions: SimpleQueue[Callable[[], Answer] | None], answers: SimpleQueue[Answer]) -> None:
    while (question := questions.get()) is not None:
        try:
            answers.put(question())
        except BaseException as error:  # whoever asked decides what to do about it
            answers.put(error)
        del question  # not to keep the one alive who asked
