"""The gate grants the best rank first, loses no grant, starves nobody, and never leaves a slot idle."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from treadle.enforce import Enforcer
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.rank_knob import GateKnob
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.testing import check_knob


class Hall:
    """A gate with a clock of its own, hops that note when they are granted."""

    def __init__(self, slots: int = 1, *, hops: str = "abcde", patience: float = 5.0, express: int = 0) -> None:
        self.time = 0.0
        self.gate = Gate(slots, patience=patience, express=express, now=lambda: self.time)
        self.granted: list[str] = []
        for hop in hops:
            self.gate.register(hop)

    def offer(self, *hops: str) -> bool:
        taken = [self.gate.offer(hop, partial(self.granted.append, hop)) for hop in hops]
        return all(taken)

    def rank(self, **ranks: float) -> None:
        for hop, rank in ranks.items():
            self.gate.set_rank(hop, rank)

    def drain(self) -> str:
        """Release until nobody holds a slot; the order in which all were granted."""
        while holding := self.gate.stats.holding:
            self.gate.release(holding[0])
        return "".join(self.granted)


def eventually(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.001)


def test_a_free_slot_is_granted_at_once() -> None:
    hall = Hall(2)
    assert hall.offer("a", "b", "c")
    assert hall.granted == ["a", "b"]
    assert hall.gate.stats.waiting == ("c",)


def test_the_highest_rank_is_next_and_of_equal_ones_the_longest_wait() -> None:
    hall = Hall()
    hall.rank(a=0, b=1, c=2, d=1, e=1)
    hall.offer("a", "d", "b", "c", "e")
    assert hall.drain() == "acdbe"


def test_a_rank_counts_from_the_next_choice_on() -> None:
    hall = Hall()
    hall.rank(a=0, b=1, c=2)
    hall.offer("a", "b", "c")
    hall.rank(b=3)
    assert hall.drain() == "abc"


def test_a_hop_without_a_rank_is_first_once_and_then_as_the_lowest() -> None:
    hall = Hall()
    hall.rank(a=5, b=9)
    hall.offer("a", "b", "c")
    assert hall.drain() == "acb"
    hall.granted.clear()
    hall.offer("b", "c", "a")
    assert hall.drain() == "bca"  # c waits as long as others of rank 5 do


def test_a_second_offer_while_waiting_or_holding_changes_nothing() -> None:
    hall = Hall()
    assert hall.offer("a", "b")
    assert not hall.offer("a")
    assert not hall.offer("b")
    assert hall.drain() == "ab"


def test_release_tells_how_long_the_slot_was_held_and_is_harmless_otherwise() -> None:
    hall = Hall()
    hall.offer("a", "b")
    hall.time = 2.5
    assert hall.gate.release("b") is None  # it only waits
    assert hall.gate.release("a") == 2.5
    assert hall.gate.release("a") is None
    assert hall.gate.release("never seen") is None
    assert hall.granted == ["a", "b"]


def test_a_hop_that_releases_and_goes_on_is_among_those_to_choose_from() -> None:
    hall = Hall()
    hall.rank(a=1, b=0)
    hall.offer("a", "b")
    hall.time = 1.0
    assert hall.gate.release("a", again=lambda: hall.granted.append("a again")) == 1.0
    assert hall.granted == ["a", "a again"]
    hall.rank(b=2)
    hall.gate.release("a", again=lambda: hall.granted.append("a late"))
    assert hall.drain() == "aa againba late"
    assert hall.gate.release("a", again=lambda: pytest.fail("it held nothing")) is None


def test_a_withdrawn_hop_waits_no_more_frees_its_slot_and_is_unknown() -> None:
    hall = Hall()
    hall.rank(a=1, b=2, c=0)
    hall.offer("a", "b", "c")
    hall.gate.withdraw("b")
    hall.gate.withdraw("a")
    hall.gate.withdraw("never seen")
    assert hall.granted == ["a", "c"]
    assert not hall.offer("a")
    with pytest.raises(TargetGone, match="not registered"):
        hall.gate.rank("a")
    hall.gate.register("a")
    assert math.isnan(hall.gate.rank("a"))
    assert hall.gate.stats.grants == 2


def test_more_slots_are_granted_at_once_and_fewer_as_they_are_released() -> None:
    hall = Hall(1)
    hall.offer("a", "b", "c", "d", "e")
    hall.gate.slots = 3
    assert hall.granted == ["a", "b", "c"]
    hall.gate.slots = 1
    hall.gate.release("a")
    hall.gate.release("b")
    assert hall.granted == ["a", "b", "c"]
    hall.gate.release("c")
    assert hall.granted == ["a", "b", "c", "d"]
    assert hall.gate.slots == 1


@pytest.mark.parametrize("slots", [0, -1, 1.5, 2.0, "auto", None, True])
def test_slots_are_a_whole_number_above_nothing(slots: int) -> None:
    with pytest.raises(ConfigError, match="slots can't be"):
        Gate(slots)
    gate = Gate(2)
    with pytest.raises(ConfigError, match="slots can't be"):
        gate.slots = slots
    assert gate.slots == 2


@pytest.mark.parametrize(
    ("patience", "share", "express"), [(-1, 0.1, 0), (math.nan, 0.1, 0), (5, 1.1, 0), (5, 0.1, -1)]
)
def test_a_patience_a_share_or_an_express_that_can_not_be_is_refused(
    patience: float, share: float, express: int
) -> None:
    with pytest.raises(ConfigError, match="gate"):
        Gate(1, patience=patience, aged_share=share, express=express)


def test_a_grant_that_raises_gives_its_slot_to_the_next_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    hall = Hall()

    def fail() -> None:
        raise OSError("no JVM there")

    hall.offer("a")
    with caplog.at_level(logging.WARNING, "treadle.gate"):
        for _ in range(3):
            hall.gate.offer("b", fail)
            hall.offer("c")
            hall.gate.release("a")
            assert hall.gate.stats.holding == ("c",)
            hall.gate.release("c")
            hall.offer("a")
    assert [record.getMessage() for record in caplog.records] == ["hop 'b' could not start its batch: no JVM there"]


def test_an_interrupt_within_a_grant_still_grants_the_next_and_goes_on() -> None:
    hall = Hall()

    def interrupt() -> None:
        raise KeyboardInterrupt

    hall.offer("a")
    hall.gate.offer("b", interrupt)
    hall.offer("c")
    with pytest.raises(KeyboardInterrupt):
        hall.gate.release("a")
    assert hall.gate.stats.holding == ("c",)


def test_thousands_of_hops_that_release_within_their_grant_are_no_depth() -> None:
    gate = Gate(1)
    done: list[str] = []

    def run(name: str) -> None:
        done.append(name)
        gate.release(name)

    names = [f"hop{i}" for i in range(3000)]
    for name in ["first", *names]:
        gate.register(name)
    gate.offer("first", lambda: None)
    for name in names:
        gate.offer(name, partial(run, name))
    gate.release("first")
    assert done == names


def test_a_grant_may_call_the_gate_from_another_thread_too() -> None:
    hall = Hall()

    def ask() -> None:
        thread = threading.Thread(target=lambda: hall.granted.append(hall.gate.stats.holding[0]))
        thread.start()
        thread.join()

    hall.gate.offer("a", ask)
    assert hall.granted == ["a"]


def test_an_urgent_hop_goes_beyond_the_slots_and_the_next_free_slot_makes_up_for_it() -> None:
    hall = Hall(1, express=1)
    hall.rank(a=1, b=1, c=2, d=3, e=0)
    hall.offer("a", "b", "e")
    assert hall.granted == ["a"]  # no higher than what runs
    hall.offer("c", "d")
    assert hall.granted == ["a", "c"]  # the most express there may be
    hall.gate.release("a")
    assert hall.granted == ["a", "c", "d"]
    hall.gate.release("d")
    assert hall.granted == ["a", "c", "d"]  # c has the only slot now
    assert hall.drain() == "acdbe"


def test_a_neglected_hop_goes_ahead_once_in_ten_grants() -> None:
    hall = Hall(hops="abcz", patience=5.0)
    hall.rank(a=3, b=2, c=1, z=0)
    hall.offer("a", "z")
    for _ in range(30):
        hall.time += 1.0
        hall.offer("b", "a")
        hall.gate.release(hall.gate.stats.holding[0])
        hall.offer("z")
    assert [i for i, hop in enumerate(hall.granted) if hop == "z"] == [9, 19, 29]
    assert hall.gate.stats.hops["z"].aged == hall.gate.stats.aged == 3


def test_urgent_hops_beyond_the_slots_can_not_put_off_a_neglected_one_for_ever() -> None:
    hall = Hall(hops="abz", express=1)
    hall.rank(a=1, b=2, z=0)
    hall.offer("a")
    beside: list[tuple[str, ...]] = []
    hall.gate.offer("z", lambda: beside.append(hall.gate.stats.holding))
    runs, comes = "a", "b"
    for _ in range(20):
        hall.time += 1.0
        hall.rank(**{runs: 1, comes: 2})  # there is always one that is more urgent than what runs
        hall.offer(comes)
        hall.gate.release(runs)
        runs, comes = comes, runs
    assert beside == [("z",)]  # and it is not granted beyond the slots itself


def test_ahead_of_time_nobody_is_neglected() -> None:
    hall = Hall(patience=math.inf)
    hall.rank(a=1, b=2, c=0)
    hall.offer("a", "c")
    for _ in range(100):
        hall.time += 1000
        hall.offer("a", "b")
        hall.gate.release(hall.gate.stats.holding[0])
    assert "c" not in hall.granted


def test_stats_count_grants_and_seconds_what_is_under_way_included() -> None:
    hall = Hall()
    hall.rank(b=7)
    hall.offer("a", "b")
    hall.time = 2.0
    stats = hall.gate.stats
    assert (stats.holding, stats.waiting) == (("a",), ("b",))
    assert (stats.hops["a"].held, stats.hops["b"].waited) == (2.0, 2.0)
    hall.gate.release("a")
    hall.time = 3.0
    hall.gate.withdraw("a")
    stats = hall.gate.stats
    assert (stats.grants, stats.waited, stats.held, stats.idle) == (2, 2.0, 3.0, 0.0)
    assert (stats.hops["b"].rank, stats.hops["b"].grants) == (7.0, 1)
    assert "a" not in stats.hops


def test_handing_over_counts_as_idle() -> None:
    hall = Hall()

    def slow() -> None:
        hall.time += 0.25

    hall.gate.offer("a", slow)
    assert hall.gate.stats.idle == 0.25


def test_a_turn_is_held_for_the_body_and_released_however_that_ends() -> None:
    hall = Hall()
    with hall.gate.turn("a"):
        assert hall.gate.stats.holding == ("a",)
    with pytest.raises(ValueError, match="bad row"), hall.gate.turn("a"):
        raise ValueError("bad row")
    assert not hall.gate.stats.holding


def test_a_turn_that_does_not_come_in_time_is_an_error_and_leaves_nothing() -> None:
    hall = Hall()
    hall.offer("a")
    with pytest.raises(EngineError, match="no turn within"), hall.gate.turn("b", timeout=0.0):
        pytest.fail("it has no slot")
    assert hall.gate.stats.waiting == ()
    assert hall.drain() == "a"


def test_two_turns_of_one_name_and_one_of_no_name_are_refused() -> None:
    hall = Hall(2)
    with hall.gate.turn("a"), pytest.raises(EngineError, match="name of its own"), hall.gate.turn("a"):
        pytest.fail("it has one already")
    with pytest.raises(TargetGone, match="not registered"), hall.gate.turn("never seen"):
        pytest.fail("it has none")


def test_a_turn_that_waits_ends_when_its_hop_is_withdrawn() -> None:
    hall = Hall()
    hall.offer("a")
    errors: list[Exception] = []

    def wait() -> None:
        try:
            with hall.gate.turn("b"):
                pass
        except TargetGone as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: hall.gate.stats.waiting == ("b",), "b waits")
    hall.gate.withdraw("b")
    thread.join(30)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_turn_that_was_withdrawn_does_not_release_its_successors_slot() -> None:
    hall = Hall()
    with hall.gate.turn("a"):
        hall.gate.withdraw("a")
        hall.gate.register("a")
        hall.offer("a", "b")
    assert hall.gate.stats.holding == ("a",)
    assert hall.gate.stats.waiting == ("b",)


def test_the_knob_keeps_to_what_every_knob_must() -> None:
    hall = Hall()
    hall.rank(a=3.0)
    check_knob(lambda: GateKnob(hall.gate), ["a", "b", "c"], [0.0, 1.0, 2.0])
    assert hall.gate.rank("a") == 3.0
    assert math.isnan(hall.gate.ranks["b"])


@pytest.mark.parametrize("value", [math.inf, -math.inf, "high"])
def test_a_rank_is_a_finite_number(value: float | str) -> None:
    with pytest.raises(ConfigError, match="rank of"):
        GateKnob(Hall().gate).write("a", value)


def test_a_hop_that_ends_between_two_rounds_is_gone_for_the_enforcer() -> None:
    hall = Hall()
    enforcer = Enforcer(GateKnob(hall.gate))
    enforcer.apply(enforcer.diff(("a", "b"), np.array([1.0, 2.0])))
    hall.gate.withdraw("a")
    outcomes = enforcer.apply(enforcer.diff(("a", "b"), np.array([5.0, 6.0])))
    assert outcomes.gone == ("a",)
    assert not outcomes.failures
    assert hall.gate.ranks["b"] == 6.0


NAMES = st.sampled_from("abcdef")
RANKS = st.one_of(st.just(math.nan), st.integers(0, 3).map(float))


class Laws(RuleBasedStateMachine):
    """Whatever is called in whatever order: nobody beyond the slots, none idle, none lost, none starved, few aged."""

    @initialize(
        slots=st.integers(1, 3),
        share=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
        express=st.integers(0, 2),
        eager=st.booleans(),
    )
    def start(self, slots: int, share: float, express: int, eager: bool) -> None:
        self.time = 0.0
        self.share = share
        self.gate = Gate(
            slots, patience=0.0 if eager else 3.0, aged_share=share, express=express, now=lambda: self.time
        )
        self.most = slots
        self.calls: dict[str, int] = dict.fromkeys("abcdef", 0)
        self.offers: dict[str, int] = dict.fromkeys("abcdef", 0)
        self.offered: dict[str, float] = {}
        self.latest: dict[str, int] = {}
        """The grant by which a hop that is out of patience must have been granted."""
        for name in self.calls:
            self.gate.register(name)

    def note(self, name: str) -> None:
        self.calls[name] += 1

    @rule(name=NAMES)
    def offer(self, name: str) -> None:
        stats = self.gate.stats
        taken = self.gate.offer(name, lambda: self.note(name))
        assert taken == (name in stats.hops and name not in stats.waiting + stats.holding)
        self.offers[name] += taken
        if taken:
            self.offered[name] = self.time
            self.latest.pop(name, None)

    @rule(name=NAMES, rank=RANKS)
    def rank(self, name: str, rank: float) -> None:
        if name in self.gate.ranks:
            self.gate.set_rank(name, rank)

    @precondition(lambda self: self.gate.stats.holding)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.gate.stats.holding))
        assert self.gate.release(name) is not None

    @rule(name=NAMES)
    def leave_and_come_back(self, name: str) -> None:
        if name in self.gate.stats.waiting:
            self.offers[name] -= 1
        self.gate.withdraw(name)
        self.gate.register(name)

    @rule(slots=st.integers(1, 3))
    def resize(self, slots: int) -> None:
        self.most = max(slots, len(self.gate.stats.holding) - self.gate.express)
        self.gate.slots = slots

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def passes(self, seconds: float) -> None:
        self.time += seconds

    @invariant()
    def at_most_so_many_hold_a_slot_and_none_is_idle(self) -> None:
        stats = self.gate.stats
        assert len(stats.holding) <= max(self.most, stats.slots) + self.gate.express
        assert not stats.waiting or len(stats.holding) >= stats.slots
        assert stats.idle == 0.0

    @invariant()
    def every_offer_was_granted_once_or_waits(self) -> None:
        waiting = self.gate.stats.waiting
        for name, count in self.offers.items():
            assert self.calls[name] == count - (name in waiting)

    @invariant()
    def grants_out_of_turn_are_few(self) -> None:
        stats = self.gate.stats
        assert stats.aged <= self.share * stats.grants + 1e-9

    @invariant()
    def whoever_is_out_of_patience_is_granted_within_the_bound(self) -> None:
        stats, every = self.gate.stats, math.ceil(1 / self.share)
        for place, name in enumerate(stats.waiting):
            if self.time - self.offered[name] > self.gate.patience:
                latest = self.latest.setdefault(name, stats.grants + (place + 1) * every)
                assert stats.grants < latest


TestLaws = Laws.TestCase
TestLaws.settings = settings(max_examples=60, stateful_step_count=60)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=10),
    st.integers(1, 3),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.integers(0, 1),
)
def test_under_overload_every_hop_is_granted_within_a_bounded_number_of_grants(
    ranks: list[list[int]], slots: int, share: float, express: int
) -> None:
    """All six hops want to run all the time; ranks change as they like."""
    clock = [0.0]
    gate = Gate(slots, patience=10.0, aged_share=share, express=express, now=lambda: clock[0])
    granted: list[str] = []
    bound = 10 * (slots + express) + 6 * math.ceil(1 / share) + 6

    def offer(name: str) -> None:
        gate.offer(name, lambda: granted.append(name))

    for name in "abcdef":
        gate.register(name)
        offer(name)
    for step in range(4 * bound):
        for name, rank in zip("abcdef", ranks[step % len(ranks)], strict=True):
            gate.set_rank(name, float(rank))
        clock[0] += 1.0
        done = gate.stats.holding[0]
        gate.release(done)
        offer(done)
    for name in "abcdef":
        times = [-1, *(i for i, hop in enumerate(granted) if hop == name), len(granted)]
        assert max(b - a for a, b in pairwise(times)) <= bound
    assert gate.stats.aged <= share * gate.stats.grants


@pytest.mark.parametrize("express", [0, 2])
def test_threads_that_offer_release_die_and_are_withdrawn_at_once_lose_nothing(express: int) -> None:
    gate = Gate(3, patience=0.001, express=express)
    running, most, turns = 0, 0, 0
    lock = threading.Lock()
    rounds, names = 60, [f"hop{i}" for i in range(24)]

    def body() -> None:
        nonlocal running, most, turns
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
            turns += 1

    def by_turns(name: str) -> None:
        for _ in range(rounds):
            with gate.turn(name):
                body()

    def by_offers(name: str) -> None:
        """The grant comes in one thread, the release from another."""
        for _ in range(rounds):
            ready = threading.Event()
            assert gate.offer(name, ready.set)
            assert ready.wait(30)
            body()
            releaser = threading.Thread(target=gate.release, args=(name,))
            releaser.start()
            releaser.join()

    def by_dying(name: str) -> None:
        """Holds a slot and never releases it: somebody withdraws it."""
        for _ in range(rounds):
            gate.register(name)
            ready = threading.Event()
            assert gate.offer(name, ready.set)
            assert ready.wait(30)
            body()
            gate.withdraw(name)

    def by_ranks() -> None:
        for step in range(rounds * 20):
            for i, name in enumerate(names[:16]):
                gate.set_rank(name, float((i * step) % 7))
            gate.slots = 1 + step % 3

    for name in names:
        gate.register(name)
    works = [(by_turns, by_offers, by_dying)[i * 3 // len(names)] for i in range(len(names))]
    threads = [threading.Thread(target=work, args=(name,)) for work, name in zip(works, names, strict=True)]
    threads.append(threading.Thread(target=by_ranks))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    stats = gate.stats
    assert turns == rounds * len(names) == stats.grants
    assert most <= 3 + express
    assert (stats.waiting, stats.holding) == ((), ())


def test_a_thousand_threads_each_get_their_turn() -> None:
    gate = Gate(2)
    names = [f"hop{i}" for i in range(1000)]
    done: list[str] = []

    def work(name: str) -> None:
        with gate.turn(name):
            done.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for name in names:
        gate.register(name)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(done) == sorted(names)
    assert gate.stats.grants == 1000
