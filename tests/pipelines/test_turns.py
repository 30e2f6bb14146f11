"""A hop that comes back from its batch gives its slot back, whatever it says."""

from __future__ import annotations

import threading

import pytest

from treadle.enforce.gate import Gate
from treadle.pipelines.hop import Hop
from treadle.pipelines.turns import Turns


def test_a_report_that_can_not_be_noted_costs_no_slot() -> None:
    gate, hop = Gate(1), Hop("id", "name", "key")
    turns = Turns(gate, threading.Event(), lambda *_: True, None, lambda _: "", threading.RLock(), {"key": hop})
    gate.register("id")
    assert gate.offer("id", lambda: None)
    with pytest.raises(KeyError):
        turns.parked("key", {"seconds": 0.1})
    assert gate.stats.holding == ()
    assert hop.parked
