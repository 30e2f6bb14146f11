"""A group's slot runs its own hops only, none is left out, and without groups the gate is as it was."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from treadle.enforce import Enforcer
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.owner_knob import OwnerKnob
from treadle.enforce.gate.stats import ANY
from treadle.errors import ConfigError, TargetGone
from treadle.testing import check_knob


class Hall:
    """A gate with a clock of its own, hops in groups that note when they are granted."""

    def __init__(self, slots: int = 2, *, patience: float = 5.0, express: int = 0, **groups: int) -> None:
        self.time = 0.0
        self.gate = Gate(slots, patience=patience, express=express, now=lambda: self.time)
        self.granted: list[str] = []
        for hop in groups:
            self.gate.register(hop)
        self.gate.assign(groups)

    def offer(self, hops: Iterable[str]) -> None:
        for hop in hops:
            self.gate.offer(hop, partial(self.granted.append, hop))

    def rank(self, **ranks: float) -> None:
        for hop, rank in ranks.items():
            self.gate.set_rank(hop, rank)

    def release(self, hops: Iterable[str]) -> None:
        for hop in hops:
            assert self.gate.release(hop) is not None

    @property
    def running(self) -> list[str | None]:
        return [next(iter(group.running), None) for group in self.gate.stats.groups]


def test_a_slot_runs_the_hops_of_its_group_and_is_idle_while_only_others_wait() -> None:
    hall = Hall(a=0, b=0, c=1)
    hall.offer("ab")
    assert hall.granted == ["a"]
    hall.time = 2.0
    assert hall.gate.stats.idle == 2.0
    hall.offer("c")
    assert hall.running == ["a", "c"]
    hall.release("c")
    assert hall.granted == ["a", "c"]
    hall.release("a")
    assert hall.running == ["b", None]


def test_within_a_group_the_best_rank_is_next() -> None:
    hall = Hall(a=0, b=0, c=0, d=1, e=1)
    hall.rank(a=0, b=1, c=2, d=3, e=4)
    hall.offer("abcde")
    assert hall.granted == ["a", "d"]
    hall.release("ad")
    assert hall.granted == ["a", "d", "c", "e"]


def test_a_hop_in_no_group_takes_the_free_slot_for_which_the_fewest_wait() -> None:
    hall = Hall(3, a=0, b=1, c=1, x=2, y=ANY, z=ANY)
    hall.offer("bcyz")
    assert hall.running == ["y", "b", "z"]
    hall.release("y")
    hall.offer("a")
    assert hall.running == ["a", "b", "z"]


def test_a_new_assignment_counts_at_once_for_those_that_wait_and_moves_nobody_that_runs() -> None:
    hall = Hall(a=0, b=0, c=1)
    hall.offer("ab")
    hall.gate.assign({"a": 1, "b": 1, "unknown": 0})
    assert hall.running == ["a", "b"]
    hall.release("a")
    hall.offer("ac")
    assert hall.running == [None, "b"]


def test_batches_that_began_in_one_line_are_seated_in_the_groups() -> None:
    hall = Hall(2, a=ANY, b=ANY, c=ANY, d=ANY)
    hall.offer("abcd")
    assert hall.gate.stats.groups == ()
    hall.gate.assign({"a": 1, "c": 0, "d": 1})
    assert hall.running == ["b", "a"]
    hall.release("b")
    assert hall.running == ["c", "a"]


def test_all_slots_serve_one_line_again_when_no_hop_is_in_a_group() -> None:
    hall = Hall(2, a=0, b=0, c=0)
    hall.offer("abc")
    assert hall.granted == ["a"]
    hall.gate.assign({"a": ANY, "b": ANY, "c": ANY})
    assert hall.granted == ["a", "b"]
    assert hall.gate.stats.groups == ()


def test_a_hop_whose_group_has_no_slot_any_more_may_use_any() -> None:
    hall = Hall(2, a=0, b=1, c=1)
    hall.offer("abc")
    hall.gate.slots = 1
    assert hall.gate.stats.hops["c"].group == ANY
    hall.release("b")
    assert hall.granted == ["a", "b"]  # as many run as there are slots
    hall.release("a")
    assert hall.running == ["c"]
    hall.gate.slots = 2
    assert hall.gate.stats.hops["c"].group == 1


def test_an_urgent_hop_whose_slot_is_held_goes_beyond_the_groups_and_takes_no_slot_from_them() -> None:
    hall = Hall(2, express=1, a=0, b=0, c=1, d=0)
    hall.rank(a=1, b=2, c=0, d=3)
    hall.offer("ab")
    assert hall.granted == ["a", "b"]
    assert hall.running == ["a", None]
    hall.time = 1.0
    hall.offer("d")  # no more express slots
    assert hall.gate.stats.idle == 0.0
    hall.time = 3.0
    assert hall.gate.stats.idle == 2.0  # the slot of group 1 is free while d waits
    hall.offer("c")
    assert hall.running == ["a", "c"]
    hall.release("b")
    assert hall.granted == ["a", "b", "c", "d"]


def test_a_neglected_hop_goes_ahead_in_its_own_group_only() -> None:
    hall = Hall(2, a=0, b=0, z=0, c=1, d=1)
    hall.rank(a=2, b=2, z=0, c=1, d=1)
    hall.offer("azc")
    for _ in range(30):
        hall.time += 1.0
        hall.offer("abcd")
        for hop in hall.gate.stats.holding:
            hall.release(hop)
    hall.offer("z")
    served = [hop for hop in hall.granted if hop in "abz"]
    assert served.index("z") == 9
    assert hall.gate.stats.aged == 1


def test_while_all_are_granted_at_once_groups_do_not_matter() -> None:
    hall = Hall(2, a=0, b=0, c=0)
    hall.gate.opened = True
    hall.offer("abc")
    assert hall.granted == ["a", "b", "c"]
    hall.gate.opened = False
    hall.release("a")
    hall.offer("a")
    assert hall.granted == ["a", "b", "c"]
    hall.release("b")
    assert hall.running == ["a", None]


def test_groups_count_for_how_long_their_slots_were_held() -> None:
    hall = Hall(2, a=0, b=1)
    hall.offer("a")
    hall.time = 2.0
    hall.release("a")
    hall.offer("ab")
    hall.time = 3.0
    assert [(group.hops, group.held) for group in hall.gate.stats.groups] == [(("a",), 3.0), (("b",), 1.0)]


def test_a_group_of_several_slots_runs_as_many_of_its_hops() -> None:
    hall = Hall(a=0, b=0, c=0, d=1)
    hall.gate.seat([0, 0, 1], 2)
    assert (hall.gate.slots, hall.gate.group_count) == (3, 2)
    hall.rank(a=0, b=1, c=2, d=0)
    hall.offer("abcd")
    groups = hall.gate.stats.groups
    assert [group.running for group in groups] == [("a", "b"), ("d",)]
    assert [group.slots for group in groups] == [2, 1]
    hall.release("a")
    assert hall.granted == ["a", "b", "d", "c"]


def test_slots_are_spread_over_the_groups_that_were_set() -> None:
    hall = Hall(a=0, b=1, c=2)
    hall.gate.seat([0, 1, 2], 3)
    for slots, spread in ((5, [2, 2, 1]), (2, [1, 1]), (6, [2, 2, 2])):
        hall.gate.slots = slots
        assert [group.slots for group in hall.gate.stats.groups] == spread
        assert hall.gate.group_count == len(spread)


def test_a_batch_that_runs_while_its_slot_goes_to_another_group_takes_a_slot_of_its_own_group() -> None:
    hall = Hall(2, a=1, b=0, c=1)
    hall.offer("a")
    hall.gate.seat([0, 1, 1], 2)
    hall.offer("bc")
    assert [group.running for group in hall.gate.stats.groups] == [("b",), ("a", "c")]


def test_the_knob_keeps_to_what_every_knob_must() -> None:
    hall = Hall(a=ANY, b=ANY)
    check_knob(lambda: OwnerKnob(hall.gate), ["a", "b"], [0.0, 1.0])
    assert hall.gate.stats.groups == ()


@pytest.mark.parametrize("value", [-2.0, 0.5, "left"])
def test_a_group_is_a_whole_number(value: float | str) -> None:
    with pytest.raises(ConfigError, match="the group of a can't be"):
        OwnerKnob(Hall(a=0).gate).write("a", value)


def test_all_values_of_a_round_take_effect_and_are_put_back_together(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(2, a=ANY, b=ANY, c=ANY)
    enforcer = Enforcer(OwnerKnob(hall.gate))
    hall.gate.withdraw("c")
    changes: list[dict[str, int]] = []
    assign = hall.gate.assign

    def note(groups: Mapping[str, int]) -> None:
        changes.append(dict(groups))
        assign(groups)

    monkeypatch.setattr(hall.gate, "assign", note)
    outcomes = enforcer.apply(enforcer.diff(("a", "b", "c"), np.array([1.0, 0.0, 1.0])))
    assert not outcomes.failures
    assert (hall.gate.group("a"), hall.gate.group("b")) == (1, 0)
    enforcer.restore()
    assert (hall.gate.group("a"), hall.gate.group("b")) == (ANY, ANY)
    assert changes == [{"a": 1, "b": 0}, {"a": -1, "b": -1}]
    with pytest.raises(TargetGone):
        hall.gate.group("c")


def test_a_hop_that_was_registered_anew_is_in_its_group_again_after_the_next_round() -> None:
    hall = Hall(2, a=ANY, b=ANY)
    enforcer = Enforcer(OwnerKnob(hall.gate))
    hops, wanted = ("a", "b"), np.array([1.0, 0.0])
    enforcer.apply(enforcer.diff(hops, wanted))
    hall.gate.withdraw("a")
    hall.gate.register("a")
    assert hall.gate.groups == {"a": ANY, "b": 0}
    enforcer.apply(enforcer.diff(hops, wanted))
    assert hall.gate.groups == {"a": 1, "b": 0}
    enforcer.restore()
    hall.gate.withdraw("a")
    enforcer.apply(enforcer.diff(hops, wanted))
    assert hall.gate.groups == {"b": 0}


NAMES = st.sampled_from("abcdef")
RANKS = st.one_of(st.just(math.nan), st.integers(0, 3).map(float))
GROUPS = st.integers(ANY, 3)


class Laws(RuleBasedStateMachine):
    """Whatever is called in whatever order, and however hops are assigned."""

    @initialize(slots=st.integers(1, 3), express=st.integers(0, 2), share=st.sampled_from([0.1, 0.5, 1.0]))
    def start(self, slots: int, express: int, share: float) -> None:
        self.time, self.share = 0.0, share
        self.gate = Gate(slots, patience=2.0, aged_share=share, express=express, now=lambda: self.time)
        self.most = slots
        self.calls: dict[str, int] = dict.fromkeys("abcdef", 0)
        self.offers: dict[str, int] = dict.fromkeys("abcdef", 0)
        self.foreign: list[str] = []
        for name in self.calls:
            self.gate.register(name)

    def note(self, name: str) -> None:
        self.calls[name] += 1
        stats = self.gate.stats
        group = stats.hops[name].group
        if any(name in each.running and number != group for number, each in enumerate(stats.groups)) and group != ANY:
            self.foreign.append(name)

    @rule(name=NAMES)
    def offer(self, name: str) -> None:
        self.offers[name] += self.gate.offer(name, lambda: self.note(name))

    @rule(name=NAMES, rank=RANKS)
    def rank(self, name: str, rank: float) -> None:
        self.gate.set_rank(name, rank)

    @rule(groups=st.dictionaries(NAMES, GROUPS))
    def assign(self, groups: dict[str, int]) -> None:
        self.gate.assign(groups)

    @precondition(lambda self: self.gate.stats.holding)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        assert self.gate.release(data.draw(st.sampled_from(self.gate.stats.holding))) is not None

    @rule(name=NAMES)
    def leave_and_come_back(self, name: str) -> None:
        self.offers[name] -= name in self.gate.stats.waiting
        self.gate.withdraw(name)
        self.gate.register(name)

    @rule(slots=st.integers(1, 3))
    def resize(self, slots: int) -> None:
        self.most = max(slots, len(self.gate.stats.holding) - self.gate.express)
        self.gate.slots = slots

    @rule(counts=st.lists(st.integers(1, 2), min_size=1, max_size=3))
    def seat(self, counts: list[int]) -> None:
        self.most = max(sum(counts), len(self.gate.stats.holding) - self.gate.express)
        self.gate.seat([group for group, count in enumerate(counts) for _ in range(count)], len(counts))

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def passes(self, seconds: float) -> None:
        self.time += seconds

    @invariant()
    def no_slot_is_granted_to_a_hop_of_another_group(self) -> None:
        assert self.foreign == []

    @invariant()
    def as_many_hold_a_slot_as_there_are_slots_and_express_ones(self) -> None:
        stats = self.gate.stats
        assert len(stats.holding) <= max(self.most, stats.slots) + self.gate.express

    @invariant()
    def no_slot_is_free_that_may_serve_a_hop_that_waits(self) -> None:
        stats = self.gate.stats
        if len(stats.holding) >= stats.slots:
            return
        free = [number for number, group in enumerate(stats.groups) if len(group.running) < group.slots]
        if not stats.groups:
            assert stats.waiting == ()
        for name in stats.waiting:
            group = stats.hops[name].group
            assert group != ANY
            assert group not in free

    @invariant()
    def every_offer_was_granted_once_or_waits(self) -> None:
        waiting = self.gate.stats.waiting
        for name, count in self.offers.items():
            assert self.calls[name] == count - (name in waiting)

    @invariant()
    def grants_out_of_turn_are_few(self) -> None:
        stats = self.gate.stats
        assert stats.aged <= self.share * stats.grants + 1e-9


TestLaws = Laws.TestCase
TestLaws.settings = settings(max_examples=60, stateful_step_count=50)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6), min_size=1, max_size=6),
    st.lists(st.lists(GROUPS, min_size=6, max_size=6), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_under_overload_every_hop_is_granted_again_and_again_however_it_is_assigned(
    ranks: list[list[int]], groups: list[list[int]], slots: int, express: int
) -> None:
    """All six hops want to run all the time; ranks change as they like, and the assignment from time to time."""
    clock, every, often = [0.0], 4, 60
    gate = Gate(slots, patience=10.0, aged_share=1 / every, express=express, now=lambda: clock[0])
    granted: list[str] = []
    bound = (slots + express + 1) * (10 + 7 * every)

    def offer(name: str) -> None:
        gate.offer(name, lambda: granted.append(name))

    for name in "abcdef":
        gate.register(name)
        offer(name)
    for step in range(4 * bound):
        if step % often == 0:
            gate.assign(dict(zip("abcdef", groups[step // often % len(groups)], strict=True)))
        for name, rank in zip("abcdef", ranks[step % len(ranks)], strict=True):
            gate.set_rank(name, float(rank))
        clock[0] += 1.0
        done = gate.stats.holding[0]
        gate.release(done)
        offer(done)
    for name in "abcdef":
        times = [-1, *(i for i, hop in enumerate(granted) if hop == name), len(granted)]
        assert max(b - a for a, b in pairwise(times)) <= bound


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["offer", "release", "rank", "slots", "wait"]), NAMES, st.integers(1, 3))),
    st.integers(1, 3),
    st.integers(0, 1),
)
def test_without_groups_the_gate_grants_as_if_there_had_never_been_any(
    calls: list[tuple[str, str, int]], slots: int, express: int
) -> None:
    clock = [0.0]
    granted: tuple[list[str], list[str]] = ([], [])
    gates = [Gate(slots, patience=1.0, express=express, now=lambda: clock[0]) for _ in granted]
    for gate in gates:
        for name in "abcdef":
            gate.register(name)
    gates[1].assign(dict.fromkeys("abcdef", 0))
    gates[1].assign(dict.fromkeys("abcdef", ANY))
    for call, name, number in calls:
        clock[0] += number if call == "wait" else 0
        for gate, seen in zip(gates, granted, strict=True):
            match call:
                case "offer":
                    gate.offer(name, partial(seen.append, name))
                case "release":
                    gate.release(name)
                case "rank":
                    gate.set_rank(name, number)
                case "slots":
                    gate.slots = number
    assert granted[0] == granted[1]
    assert gates[0].stats == gates[1].stats
