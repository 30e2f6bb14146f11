"""Queries are stopped side by side, and only for so long."""

from __future__ import annotations

import threading
import time

import pytest

from support import LONG
from treadle.pipelines.spark.ending import Stops


def test_who_is_not_done_in_time_is_named_and_the_others_are_not_held_up() -> None:
    stops, go, done = Stops(), threading.Event(), threading.Event()
    stops.begin("blocks", lambda: go.wait(LONG))
    stops.begin("stops", done.set)
    assert done.wait(LONG)
    assert stops.wait(time.monotonic() + 0.1) == ["blocks"]
    go.set()
    assert stops.wait() == []


def test_each_is_stopped_once() -> None:
    stops, calls = Stops(), list[int]()
    for _ in range(2):
        stops.begin("hop", lambda: calls.append(1))
    assert stops.wait() == []
    assert calls == [1]


def test_what_one_fails_with_is_raised_when_it_is_asked_for() -> None:
    stops = Stops()
    stops.begin("hop", lambda: 1 / 0)
    assert stops.wait() == []
    with pytest.raises(ZeroDivisionError):
        stops.check()
