"""A hop that comes back from its batch gives its slot back, whatever it says; and it does not run for nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

from treadle.decide.batch import BatchSizer
from treadle.enforce.gate.gate import Gate
from treadle.pipelines.channels.view import Backlog
from treadle.pipelines.gating.parked_hops import ALL_ROWS, ParkedHops
from treadle.pipelines.hops.hop import Hop, State


def test_a_report_that_can_not_be_noted_costs_no_slot() -> None:
    gate, hop = Gate(1), Hop("id", "name", "key", has_slot=True)
    sizer, lock = BatchSizer(), threading.RLock()
    turns = ParkedHops(gate, threading.Event(), lambda *_: True, sizer, lambda _: "", lock, {"key": hop})
    gate.register("id")
    assert gate.offer("id", lambda: None)
    with pytest.raises(KeyError):
        turns.parked("key", {"seconds": 0.1})
    assert gate.stats.holding == ()
    assert hop.parked


def test_a_report_that_ends_no_grant_does_not_give_back_the_slot_of_one_that_comes_meanwhile() -> None:
    """A hop that parks for the first time holds no slot, but another thread may grant it one meanwhile."""
    gate, sizer = Gate(1), BatchSizer()
    gate.register("id")

    class Racing(_Waiting):
        raced = False

        def backlog(self, consumer: str) -> Backlog:
            if hop.parked and not self.raced:
                self.raced = True
                turns.consider_all()  # as the control thread may, between any two steps
            return super().backlog(consumer)

    hop = Hop("id", "name", "key", [Racing(1)])  # type: ignore[list-item]
    turns = ParkedHops(gate, threading.Event(), lambda *_: True, sizer, lambda _: "", threading.RLock(), {"key": hop})
    turns.parked("key", {"seconds": 0.0, "time": 0.0, "written": 0, "read": {}, "at": {}})
    assert hop.state is State.RUNNING
    assert gate.stats.holding == ("id",)


@dataclass
class _Waiting:
    """A channel of which only the backlog counts here."""

    rows: int
    name: str = "in"
    asks: bool = True

    def backlog(self, consumer: str) -> Backlog:
        return Backlog(self.rows, 0, time.time(), time.time())


class _Crowd:
    """Two hops and one slot, which somebody else holds. A batch of theirs costs 40 ms and 0.1 ms for each row."""

    def __init__(self) -> None:
        self.gate = Gate(1)
        self.granted: list[tuple[str, str]] = []
        sizer = BatchSizer(period=0.5)
        for name in ("a", "b", "other"):
            self.gate.register(name)
            for rows in (100, 1000, 100, 2000, 400):
                sizer.observe(name, rows, 0.04 + 1e-4 * rows)
        self.channels = {name: _Waiting(0) for name in ("a", "b")}
        self.hops = {name: Hop(name, name, name, [self.channels[name]]) for name in ("a", "b")}  # type: ignore[list-item]
        self.turns = ParkedHops(
            self.gate,
            threading.Event(),
            self._admit,
            sizer,
            lambda _: "",
            threading.RLock(),
            self.hops,
        )
        self.gate.offer("other", lambda: None)
        for hop in self.hops.values():
            hop.parked, hop.state, hop.well = True, State.IDLE, time.monotonic()

    def _admit(self, key: str, rows: str, pool: str) -> bool:
        self.granted.append((key, rows))
        return True

    def come(self, **rows: int) -> dict[str, State]:
        for name, more in rows.items():
            self.channels[name].rows += more
            self.turns.look()
            self.turns.consider_all()
        return {name: hop.state for name, hop in self.hops.items()}


def test_with_few_rows_a_hop_lingers_while_another_one_waits() -> None:
    crowd = _Crowd()
    crowd.turns.pause = 60.0
    assert crowd.come(a=10) == {"a": State.WAITING, "b": State.IDLE}, "nobody else waits"
    crowd.turns.pause = 60.0
    crowd.channels["b"].rows = 10
    crowd.turns.consider_all()
    assert crowd.hops["b"].state is State.LINGERING
    assert crowd.gate.stats.waiting == ("a",)


def test_a_backlog_that_is_worth_a_batch_does_not_linger() -> None:
    crowd = _Crowd()
    crowd.come(a=10)
    crowd.turns.pause = 60.0
    crowd.channels["b"].rows = 2000
    crowd.turns.consider_all()
    assert crowd.hops["b"].state is State.WAITING


def test_a_hop_that_has_not_run_for_long_does_not_linger() -> None:
    crowd = _Crowd()
    crowd.come(a=10)
    crowd.hops["b"].well -= 100.0
    assert crowd.come(b=1)["b"] is State.WAITING


def test_the_more_a_hop_matters_the_shorter_it_lingers() -> None:
    for matters, state in ((False, State.LINGERING), (True, State.WAITING)):
        crowd = _Crowd()
        crowd.come(a=10)
        crowd.turns.pause = 60.0
        crowd.hops["b"].well -= 30.0
        crowd.hops["b"].urgent = matters
        crowd.channels["b"].rows = 1
        crowd.turns.consider_all()
        assert crowd.hops["b"].state is state
    crowd = _Crowd()
    crowd.come(a=10)
    crowd.turns.pause = 60.0
    crowd.hops["b"].well -= 30.0
    crowd.hops["b"].latency_goal = 100.0
    crowd.channels["b"].rows = 1
    crowd.turns.consider_all()
    assert crowd.hops["b"].state is State.WAITING


def test_who_lingers_is_looked_at_again_when_nobody_waits_any_more() -> None:
    crowd = _Crowd()
    crowd.come(a=10)
    crowd.turns.pause = 60.0
    crowd.channels["b"].rows = 1
    crowd.turns.consider_all()
    crowd.gate.release("other")
    assert crowd.granted == [("a", f"in={ALL_ROWS}")]
    crowd.turns.look()
    crowd.gate.release("a")
    assert [key for key, _ in crowd.granted] == ["a", "b"]


def test_the_pause_grows_with_the_fixed_parts_of_those_that_have_rows() -> None:
    crowd = _Crowd()
    crowd.turns.look()
    assert crowd.turns.pause == 0.0
    crowd.come(a=10)
    crowd.turns.look()
    alone = crowd.turns.pause
    assert alone > 0
    crowd.come(b=10)
    crowd.turns.look()
    assert crowd.turns.pause == pytest.approx(2 * alone, rel=0.2)


def test_where_the_cpu_is_short_hops_rest_as_long_as_fixed_parts_need_but_not_for_ever() -> None:
    crowd = _Crowd()
    hop = crowd.hops["a"]
    crowd.turns.rest = 0.5
    assert crowd.turns.rest_of(hop, 2.0) == 0.5
    crowd.turns.rest = 60.0
    assert crowd.turns.rest_of(hop, 2.0) == 2.0
    hop.urgent = True
    assert crowd.turns.rest_of(hop, 2.0) == 0.5
    hop.latency_goal = 1.0
    assert crowd.turns.rest_of(hop, 2.0) == 0.25


def test_the_cost_of_a_row_is_without_the_fixed_part_of_a_batch() -> None:
    crowd, hop = _Crowd(), Hop("new", "new", "new")
    for hop.batches, rows in enumerate((50, 100, 1000, 100, 2000, 400, 100), 1):
        crowd.turns.observe(hop, rows, 0.04 + 1e-4 * rows + (5.0 if hop.batches == 1 else 0.0))
    assert hop.cost == pytest.approx(1e-4, rel=0.1)
