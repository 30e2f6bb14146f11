"""A gate that is opened, its patience to the second, turns that may not come, and what is counted meanwhile."""

from __future__ import annotations

import inspect
import math
import threading
from functools import partial

import pytest

from support import until
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.rank_knob import GateKnob
from treadle.errors import ConfigError, EngineError, TargetGone


class Hall:
    """A gate with a clock of its own, and the hops a to e."""

    def __init__(self, slots: int = 1, **options: float) -> None:
        self.time = 0.0
        self.gate = Gate(slots, now=lambda: self.time, **options)  # type: ignore[arg-type]
        self.granted: list[str] = []
        for hop in "abcde":
            self.gate.register(hop)

    def offer(self, *hops: str) -> None:
        for hop in hops:
            assert self.gate.offer(hop, partial(self.granted.append, hop))

    def cycle(self, hop: str) -> None:
        """The hop that runs ends, and this one offers itself before that."""
        self.offer(hop)
        self.gate.release(self.gate.stats.holding[0])


def test_an_opened_gate_holds_nobody_back_and_a_closed_one_does_again() -> None:
    hall = Hall()
    hall.offer("a", "b", "c")
    assert (hall.granted, hall.gate.opened, hall.gate.crowded) == (["a"], False, True)
    hall.gate.opened = True
    assert (hall.granted, hall.gate.opened, hall.gate.crowded) == (["a", "b", "c"], True, False)
    hall.offer("d")
    assert hall.gate.stats.holding == ("a", "b", "c", "d")
    hall.gate.opened = False
    hall.offer("e")
    for hop in "abc":
        hall.gate.release(hop)
        assert hall.gate.stats.waiting == ("e",)
    hall.gate.release("d")
    assert hall.granted == ["a", "b", "c", "d", "e"]
    assert hall.gate.slots == 1


def test_an_opened_gate_loses_no_time() -> None:
    hall = Hall()
    hall.offer("a", "b")
    hall.time = 5.0
    hall.gate.opened = True
    hall.time = 7.0
    stats = hall.gate.stats
    assert (stats.idle, stats.waited, stats.held) == (0.0, 5.0, 9.0)


def test_a_hop_may_go_ahead_once_it_has_waited_for_more_than_the_patience() -> None:
    for waited, first in ((5.0, "a"), (5.1, "z")):
        hall = Hall(patience=5.0, aged_share=1.0)
        hall.gate.register("z")
        hall.gate.set_rank("z", 0.0)
        hall.gate.set_rank("a", 1.0)
        hall.offer("b", "z", "a")
        hall.time = waited
        hall.gate.release("b")
        assert hall.granted == ["b", first]
        assert hall.gate.stats.aged == (first == "z")


def test_with_a_share_of_nothing_no_hop_ever_goes_ahead_and_with_all_the_longest_wait_is_next() -> None:
    for share, order in ((0.0, "abababab"), (1.0, "acbacbac")):
        hall = Hall(patience=0.0, aged_share=share)
        for hop, rank in zip("abc", (1.0, 1.0, 0.0), strict=True):
            hall.gate.set_rank(hop, rank)
        hall.offer("a", "c", "b")
        while len(hall.granted) < 8:
            hall.time += 1.0
            done = hall.gate.stats.holding[0]
            hall.gate.release(done, again=partial(hall.granted.append, done))
        assert "".join(hall.granted) == order


def test_without_other_options_a_hop_waits_five_seconds_and_one_grant_in_ten_is_out_of_turn() -> None:
    hall = Hall()
    assert (hall.gate.patience, hall.gate.express) == (5.0, 0)
    hall.gate.set_rank("c", 0.0)
    for hop in "ab":
        hall.gate.set_rank(hop, 1.0)
    hall.offer("a", "c")
    for grant in range(2, 11):
        hall.time += 6.0
        hall.cycle("b" if hall.granted[-1] == "a" else "a")
        assert (hall.granted[-1] == "c") is (grant == 10)


def test_what_is_neither_waiting_nor_registered_has_no_turn_but_may_go_on() -> None:
    hall = Hall()
    with hall.gate.turn_if_there("a") as granted:
        assert granted
        assert list(hall.gate.stats.holding) == ["a"]
    assert not hall.gate.stats.holding
    with hall.gate.turn_if_there("unknown") as granted:
        assert not granted
        assert not hall.gate.stats.holding


def test_one_that_is_withdrawn_while_it_waits_goes_on_without_a_slot() -> None:
    hall, went_on = Hall(), list[bool]()
    hall.offer("a")

    def wait() -> None:
        with hall.gate.turn_if_there("b") as granted:
            went_on.append(granted)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: hall.gate.stats.waiting == ("b",))
    hall.gate.withdraw("b")
    thread.join(60)
    assert went_on == [False]
    assert hall.gate.stats.holding == ("a",)


def test_an_error_within_such_a_turn_is_not_hidden_even_if_it_is_of_the_same_kind() -> None:
    hall = Hall()
    with pytest.raises(TargetGone, match="its own"), hall.gate.turn_if_there("a"):
        raise TargetGone("its own")
    assert hall.gate.stats.holding == ()


def test_a_hop_can_wait_again_after_a_turn_that_did_not_come_in_time() -> None:
    hall = Hall()
    hall.offer("a")
    with pytest.raises(EngineError) as late, hall.gate.turn("b", timeout=0.0):
        pytest.fail("it has no slot")
    remedy = "wait longer, use more slots, or smaller batches"
    assert str(late.value) == f"gate: 'b' had no turn within 0.0 seconds ({remedy})"
    hall.offer("b")
    hall.gate.release("a")
    assert hall.granted == ["a", "b"]


def test_seconds_that_withdrawn_hops_have_waited_and_held_stay_in_the_totals() -> None:
    hall = Hall()
    hall.offer("a", "b", "c")
    hall.time = 3.0
    hall.gate.withdraw("c")
    hall.gate.withdraw("a")
    hall.time = 4.0
    stats = hall.gate.stats
    assert (stats.grants, stats.waited, stats.held) == (2, 6.0, 4.0)
    assert stats.hops["b"].waited == 3.0
    assert stats.hops["b"].held == 1.0
    hall.gate.register("a")
    assert hall.gate.stats.hops["a"].grants == 0


def test_counts_of_all_withdrawn_hops_add_up() -> None:
    hall = Hall(patience=0.0, aged_share=1.0)
    for hop, rank in zip("abc", (2.0, 1.0, 0.0), strict=True):
        hall.gate.set_rank(hop, rank)
    hall.offer("a", "c", "b")
    for hop in "acb":
        hall.time += 1.0
        hall.gate.withdraw(hop)
    assert hall.granted == ["a", "c", "b"]
    stats = hall.gate.stats
    assert (stats.grants, stats.aged, stats.held, stats.waited) == (3, 1, 3.0, 3.0)


def test_what_is_under_way_adds_to_what_was_before() -> None:
    hall = Hall()
    hall.time = 10.0
    hall.offer("a", "b")
    hall.time = 12.0
    assert hall.gate.release("a") == 2.0
    hall.time = 15.0
    hall.offer("a")
    hall.time = 19.0
    stats = hall.gate.stats
    assert (stats.hops["a"].held, stats.hops["a"].waited) == (2.0, 4.0)
    assert (stats.hops["b"].held, stats.hops["b"].waited) == (7.0, 2.0)
    assert hall.gate.release("b") == 7.0
    hall.time = 20.0
    hall.offer("b")
    hall.time = 23.0
    assert (hall.gate.stats.hops["a"].held, hall.gate.stats.hops["b"].waited) == (6.0, 5.0)
    hall.gate.withdraw("b")
    assert (hall.gate.stats.waited, hall.gate.stats.held) == (9.0, 13.0)


def test_grants_within_a_grant_are_made_by_the_loop_that_made_it() -> None:
    gate, depths, names = Gate(1), list[int](), [f"hop{number}" for number in range(50)]

    def run(name: str) -> None:
        depths.append(len(inspect.stack(0)))
        gate.release(name)

    gate.register("first")
    gate.offer("first", lambda: None)
    for name in names:
        gate.register(name)
        gate.offer(name, partial(run, name))
    gate.release("first")
    assert len(depths) == 50
    assert len(set(depths)) == 1


def test_counts_of_a_hop_add_up_over_its_turns() -> None:
    hall = Hall()
    for held in (1.0, 2.5):
        hall.offer("a", "b")
        hall.time += held
        hall.gate.release("a")
        hall.time += 0.5
        hall.gate.release("b")
    stats = hall.gate.stats
    assert (stats.hops["a"].grants, stats.hops["a"].held, stats.hops["a"].waited) == (2, 3.5, 0.0)
    assert (stats.hops["b"].grants, stats.hops["b"].held, stats.hops["b"].waited) == (2, 1.0, 3.5)
    assert (stats.grants, stats.held, stats.waited, stats.idle) == (4, 4.5, 3.5, 0.0)


def test_a_hop_that_was_registered_again_keeps_its_rank_and_counts() -> None:
    hall = Hall()
    hall.gate.set_rank("a", 3.0)
    hall.offer("a")
    hall.gate.register("a")
    assert hall.gate.rank("a") == 3.0
    assert hall.gate.stats.hops["a"].grants == 1


def test_a_rank_that_is_removed_counts_as_the_lowest_known_one() -> None:
    hall = Hall()
    for hop, rank in zip("abc", (1.0, 2.0, 3.0), strict=True):
        hall.gate.set_rank(hop, rank)
        hall.offer(hop)
        hall.gate.release(hop)
    hall.gate.set_rank("c", math.nan)
    hall.granted.clear()
    hall.offer("d", "c", "a", "b")
    hall.gate.release("d")
    hall.gate.release("b")
    hall.gate.release("c")
    assert hall.granted == ["d", "b", "c", "a"]
    hall.gate.withdraw("a")
    assert set(hall.gate.ranks) == {"b", "c", "d", "e"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"patience": -1.0}, "its patience can't be -1.0 (use seconds, 0 or more)"),
        ({"aged_share": -0.1}, "aged_share can't be -0.1 (use a share from 0 to 1)"),
        ({"aged_share": 1.1}, "aged_share can't be 1.1 (use a share from 0 to 1)"),
        ({"express": -1}, "express can't be -1 (use a whole number, 0 or more)"),
        ({"slots": 0}, "slots can't be 0 (use a whole number, 1 or more)"),
    ],
)
def test_what_a_gate_can_not_be_is_refused_with_the_remedy(options: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Gate(**{"slots": 1, **options})  # type: ignore[arg-type]
    assert str(caught.value) == f"gate: {says}"


def test_a_batch_that_can_not_be_started_is_logged_with_its_hop_and_where_it_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError("no JVM there")

    assert Hall().gate.offer("a", fail)
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["hop"]) == ("hop 'a' could not start its batch: no JVM there", "a")
    assert record.exc_info is not None
    assert record.exc_info[0] is OSError


def test_a_rank_of_letters_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        GateKnob(Hall().gate).write("a", "high")
    assert str(caught.value) == "gate: the rank of a can't be 'high' (use a number)"


def test_errors_name_the_hop_and_what_to_do() -> None:
    hall = Hall()
    with pytest.raises(TargetGone) as unknown:
        hall.gate.rank("x")
    assert str(unknown.value) == "gate: 'x' is not registered at the gate (register it when it starts)"
    with pytest.raises(ConfigError) as rank:
        hall.gate.set_rank("a", math.inf)
    assert str(rank.value) == "gate: the rank of 'a' can't be inf (use a finite number)"
    hall.offer("a")
    with pytest.raises(EngineError) as twice, hall.gate.turn("a"):
        pytest.fail("it runs already")
    assert str(twice.value) == "gate: 'a' waits or runs already (give each query a name of its own)"
