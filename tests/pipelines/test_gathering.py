"""How long a query that reads Kafka waits for its next batch while rows are dropped.

The hop, its topic and Spark's side are stand-ins: what is tested is only when the wait ends. `bench quality` has the
real ones.
"""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from treadle.decide.batch import BatchSizer
from treadle.pipelines.channels.topic import Topic
from treadle.pipelines.gating import foreach_batch_gate
from treadle.pipelines.gating.foreach_batch_gate import ForeachBatchGate
from treadle.pipelines.hops.hop import State
from treadle.pipelines.spark.queries import Stopped

FULL = 1000
"""Rows of a first batch."""
FOR_EVER = 3600.0


class GrowingTopic(Topic):
    """More rows wait at each look."""

    def __init__(self, step: int) -> None:
        self.looks, self._step = 0, step

    def backlog(self, consumer: str) -> Any:
        assert consumer == "sink"
        self.looks += 1
        return SimpleNamespace(rows=self.looks * self._step)


def gather(topic: Topic, *, rest: float, stopping: threading.Event | None = None) -> Any:
    sizer = BatchSizer(first=FULL)
    turns: Any = SimpleNamespace(
        sizer=sizer, sized=True, stopping=stopping or threading.Event(), rest_of=lambda *_: rest, gate=None
    )
    hop: Any = SimpleNamespace(id="sink", name="sink", inputs=[topic], state=State.RUNNING, query=SimpleNamespace())
    hop.query.isActive = False
    ForeachBatchGate(turns, lambda: True, lambda *_: None)._gather(hop, time.monotonic())
    return hop


def test_it_ends_when_the_batch_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach_batch_gate, "LONGEST_LOOK", 0.001)
    topic = GrowingTopic(FULL // 4)
    assert gather(topic, rest=FOR_EVER).state is State.IDLE
    assert topic.looks == 4


def test_it_ends_with_the_rest_where_few_rows_come() -> None:
    topic = GrowingTopic(0)
    assert gather(topic, rest=0.0).state is State.IDLE
    assert topic.looks == 0


def test_it_ends_with_the_run() -> None:
    over = threading.Event()
    over.set()
    with pytest.raises(Stopped):
        gather(GrowingTopic(0), rest=math.inf, stopping=over)
