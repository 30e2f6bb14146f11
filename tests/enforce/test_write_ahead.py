"""What an enforcer records before it writes, and what it knows of its own values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from treadle.enforce import Change, Enforcer, Knob, Per, Target, Value
from treadle.errors import ConfigError, EngineError, TargetGone
from treadle.model import Floats


class Setting:
    """A stand-in for a setting of the kernel, in memory. All that happens is noted in `events`."""

    name = "nice"
    per: Per = "instance"

    def __init__(self, events: list[Any], **values: float) -> None:
        self.events = events
        self.values: dict[Target, Value] = {}
        for name, value in values.items():
            self.values[name] = value
        self.refuses: set[Target] = set()

    def read(self, target: Target) -> Value:
        if target not in self.values:
            raise TargetGone(f"{target} has ended")
        return self.values[target]

    def write(self, target: Target, value: Value) -> None:
        self.events.append((target, value))
        if target in self.refuses:
            self.values[target] = -1.0
            raise OSError("refused")
        self.read(target)
        self.values[target] = value


class Book:
    """A stand-in for a journal that can't record some targets."""

    def __init__(self, events: list[Any], unable: str = "") -> None:
        self.events = events
        self.unable = set(unable)

    def note(self, knob: Knob, found: Iterable[tuple[Target, Value]], wanted: Iterable[tuple[Target, Value]]) -> None:
        values = dict(wanted)
        if self.unable & set(values):
            raise EngineError("the disk is full")
        self.events.append(("note", knob.name, dict(found), values))

    def correct(self, knob: Knob, seen: Iterable[tuple[Target, Value | None]]) -> None:
        self.events.append(("correct", knob.name, dict(seen)))
        if self.unable:
            raise EngineError("the disk is full")

    def back(self, knob: Knob, targets: Iterable[Target]) -> None:
        self.events.append(("back", knob.name, tuple(targets)))
        if self.unable:
            raise EngineError("the disk is full")


def world(unable: str = "", *, dry_run: bool = False, **values: float) -> tuple[Enforcer, Setting, list[Any]]:
    events: list[Any] = []
    setting = Setting(events, **values)
    return Enforcer(setting, dry_run=dry_run, journal=Book(events, unable)), setting, events


def column(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def test_what_is_found_and_wanted_is_recorded_at_once_before_the_first_write() -> None:
    enforcer, _, events = world(a=1.0, b=2.0, c=3.0)
    enforcer.apply(enforcer.diff(("a", "b", "c"), column(5, 6, math.nan)))
    assert events == [("note", "nice", {"a": 1.0, "b": 2.0}, {"a": 5.0, "b": 6.0}), ("a", 5.0), ("b", 6.0)]


def test_what_was_found_is_recorded_once_and_each_new_value_before_it_is_written() -> None:
    enforcer, _, events = world(a=1.0, b=2.0)
    enforcer.apply(enforcer.diff(("a", "b"), column(5, math.nan)))
    events.clear()
    enforcer.apply(enforcer.diff(("a", "b"), column(7, 8)))
    assert events == [("note", "nice", {"b": 2.0}, {"a": 7.0, "b": 8.0}), ("a", 7.0), ("b", 8.0)]


def test_a_target_that_has_the_value_by_now_is_neither_recorded_nor_written() -> None:
    enforcer, setting, events = world(a=1.0, b=1.0)
    changes = enforcer.diff(("a", "b"), column(5, 6))
    setting.values["a"] = 5.0
    outcomes = enforcer.apply(changes)
    assert events == [("note", "nice", {"b": 1.0}, {"b": 6.0}), ("b", 6.0)]
    assert list(outcomes.applied) == [Change("b", "nice", 1.0, 6.0)]
    assert enforcer.held == ("b",)


def test_nothing_is_recorded_where_nothing_changes() -> None:
    enforcer, _, events = world(a=1.0)
    enforcer.apply(enforcer.diff(("a",), column(1)))
    assert events == []


def test_what_can_not_be_recorded_is_not_written_and_the_others_are() -> None:
    enforcer, setting, events = world("b", a=1.0, b=2.0, c=3.0)
    outcomes = enforcer.apply(enforcer.diff(("a", "b", "c"), column(5, 6, 7)))
    assert [str(failure) for failure in outcomes.failures] == ["nice of b to 6.0: the disk is full"]
    assert setting.values == {"a": 5.0, "b": 2.0, "c": 7.0}
    assert events[:4] == [
        ("note", "nice", {"a": 1.0}, {"a": 5.0}),
        ("a", 5.0),
        ("note", "nice", {"c": 3.0}, {"c": 7.0}),
        ("c", 7.0),
    ]
    assert enforcer.held == ("a", "c")


def test_after_a_failed_write_the_value_that_is_there_now_is_recorded() -> None:
    enforcer, setting, events = world(a=1.0, b=2.0)
    setting.refuses = {"a"}
    outcomes = enforcer.apply(enforcer.diff(("a", "b"), column(5, 6)))
    assert [failure.target for failure in outcomes.failures] == ["a"]
    assert events[-1] == ("correct", "nice", {"a": -1.0})
    assert (enforcer.wrote("a"), enforcer.wrote("b")) == (-1.0, 6.0)
    setting.refuses = set()
    assert [change.target for change in enforcer.restore().applied] == ["a", "b"]
    assert setting.values == {"a": 1.0, "b": 2.0}


def test_of_a_target_that_has_ended_it_is_recorded_that_nothing_is_to_be_put_back() -> None:
    enforcer, setting, events = world(a=1.0, b=2.0)
    enforcer.apply(enforcer.diff(("a", "b"), column(5, 6)))
    del setting.values["a"]
    outcomes = enforcer.apply(enforcer.diff(("a", "b"), column(7, 8)))
    assert outcomes.gone == ("a",)
    assert events[-1] == ("back", "nice", ("a",))
    assert enforcer.held == ("b",)


def test_what_was_put_back_is_recorded_also_what_is_left_or_gone_but_not_what_failed() -> None:
    enforcer, setting, events = world(a=1.0, b=2.0, c=3.0, d=4.0)
    enforcer.apply(enforcer.diff(tuple("abcd"), column(9, 9, 9, 9)))
    setting.values["b"] = 7.0
    del setting.values["c"]
    setting.refuses = {"d"}
    events.clear()
    outcomes = enforcer.restore()
    assert events[-1] == ("back", "nice", ("a", "b", "c"))
    assert ([change.target for change in outcomes.applied], outcomes.gone) == (["a"], ("c",))
    assert outcomes.left == (Change("b", "nice", 9.0, 7.0),)
    assert [(failure.target, failure.wanted) for failure in outcomes.failures] == [("d", 4.0)]
    assert enforcer.held == ("d",)


def test_a_journal_that_can_not_record_what_came_keeps_nothing_from_being_put_back() -> None:
    enforcer, setting, _ = world("x", a=1.0, b=2.0, c=3.0)
    enforcer.apply(enforcer.diff(tuple("abc"), column(5, 6, 7)))
    setting.refuses = {"a"}
    del setting.values["b"]
    outcomes = enforcer.apply(enforcer.diff(tuple("abc"), column(8, 8, 8)))
    assert ([failure.target for failure in outcomes.failures], outcomes.gone) == (["a"], ("b",))
    setting.refuses = set()
    assert [change.target for change in enforcer.restore().applied] == ["a", "c"]
    assert setting.values == {"a": 1.0, "c": 3.0}


def test_a_dry_run_records_nothing() -> None:
    enforcer, setting, events = world(dry_run=True, a=1.0)
    enforcer.apply(enforcer.diff(("a",), column(5)))
    enforcer.restore()
    assert events == []
    assert setting.values == {"a": 1.0}


def test_it_knows_which_targets_it_holds_and_what_it_has_written() -> None:
    enforcer, _, _ = world(a=1.0, b=2.0)
    enforcer.apply(enforcer.diff(("a", "b"), column(5, math.nan)))
    assert (enforcer.holds("a"), enforcer.holds("b"), enforcer.wrote("a"), enforcer.wrote("b")) == (
        True, False, 5.0, None)  # fmt: skip
    enforcer.restore()
    assert (enforcer.holds("a"), enforcer.wrote("a")) == (False, None)


def test_what_another_process_has_written_is_put_back_as_that_process_found_it() -> None:
    enforcer, setting, _ = world(a=5.0, b=5.0, c=5.0)
    enforcer.adopt("a", 1.0, 5.0)
    enforcer.adopt("b", 2.0, 6.0)
    enforcer.adopt("c", 3.0, None)
    outcomes = enforcer.restore()
    assert setting.values == {"a": 1.0, "b": 5.0, "c": 3.0}
    assert outcomes.left == (Change("b", "nice", 6.0, 5.0),)


def test_a_dry_run_holds_nothing_of_which_it_could_not_read_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    enforcer, setting, _ = world(dry_run=True, a=1.0)
    with monkeypatch.context() as broken:
        broken.setattr(setting, "read", lambda target: 1 / 0)
        changes = enforcer.diff(("a",), column(5))
        assert list(enforcer.apply(changes).applied) == [Change("a", "nice", None, 5.0)]
    assert enforcer.held == ()
    outcomes = enforcer.restore()
    assert (len(outcomes.applied), outcomes.left) == (0, ())


def test_changes_without_the_targets_that_stay_are_the_same_changes() -> None:
    changes = Enforcer(Setting([], a=1.0, b=2.0, c=3.0)).diff(("a", "b", "c"), column(math.nan, 5, 6))
    alone = changes.alone()
    assert list(alone) == list(changes) == [Change("b", "nice", 2.0, 5.0), Change("c", "nice", 3.0, 6.0)]
    assert list(alone.targets) == ["b", "c"]
    assert alone.knob == "nice"


def test_what_has_its_found_value_again_is_neither_written_nor_reported_as_left() -> None:
    enforcer, setting, events = world(a=1.0)
    enforcer.apply(enforcer.diff(("a",), column(5)))
    setting.values["a"] = 1.0
    events.clear()
    outcomes = enforcer.restore()
    assert (len(outcomes.applied), outcomes.left, outcomes.failures) == (0, (), ())
    assert events == [("back", "nice", ("a",))]


def test_a_value_that_can_not_be_put_back_is_reported_with_its_knob_and_error() -> None:
    enforcer, setting, _ = world(a=1.0)
    enforcer.apply(enforcer.diff(("a",), column(5)))
    setting.refuses = {"a"}
    assert [str(failure) for failure in enforcer.restore().failures] == ["nice of a to 1.0: refused"]


def test_what_an_interrupted_round_did_not_reach_is_left_if_another_program_changes_it() -> None:
    class Interrupted(Setting):
        def write(self, target: Target, value: Value) -> None:
            raise KeyboardInterrupt

    setting = Interrupted([], a=1.0, b=2.0)
    enforcer = Enforcer(setting, journal=Book([]))
    with pytest.raises(KeyboardInterrupt):
        enforcer.apply(enforcer.diff(("a", "b"), column(5, 6)))
    setting.values["b"] = 9.0
    assert enforcer.restore(["b"]).left == (Change("b", "nice", 2.0, 9.0),)


def test_a_value_that_can_not_be_read_keeps_no_other_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    enforcer, setting, _ = world(a=1.0, b=2.0)
    read = setting.read

    def unsure(target: Target) -> Value:
        if target == "a":
            raise OSError("no answer")
        return read(target)

    monkeypatch.setattr(setting, "read", unsure)
    assert [change.target for change in enforcer.diff(("a", "b"), column(1, 2))] == ["a"]


def test_columns_that_do_not_fit_the_targets_are_refused_before_anything_is_read() -> None:
    enforcer, _, _ = world(a=1.0, b=2.0)
    with pytest.raises(ConfigError, match="knob 'nice': 3 wanted and 2 current values for 2 targets"):
        enforcer.diff(("a", "b"), column(1, 2, 3))


def test_changes_of_targets_in_another_order_are_remembered_by_target() -> None:
    enforcer, _, _ = world(a=1.0, b=2.0, c=3.0)
    changes = enforcer.diff(("a", "b", "c"), column(5, 6, math.nan))
    enforcer.retarget(("c", "b", "a"))
    enforcer.apply(changes)
    assert len(enforcer.diff(("c", "b", "a"), column(math.nan, 6, 5))) == 0
    assert [change.target for change in enforcer.diff(("c", "b", "a"), column(4, 6, 5))] == ["c"]


def test_texts_are_read_again_after_they_were_put_back_and_those_of_ended_targets_left_out() -> None:
    setting = Setting([], a=0.0, b=0.0)
    setting.values.update({"a": "root", "b": "root"})
    enforcer = Enforcer(setting)
    wanted = np.array(["q", "q"], dtype=np.object_)
    enforcer.apply(enforcer.diff(("a", "b"), wanted))
    enforcer.restore(["a"])
    assert list(enforcer.diff(("a", "b"), wanted)) == [Change("a", "nice", "root", "q")]
    enforcer.restore()
    del setting.values["b"]
    assert list(enforcer.diff(("a", "b"), wanted)) == [Change("a", "nice", "root", "q")]


class AtOnce(Setting):
    """Writes and reads back in one step."""

    reads_as: float | None = None

    def __init__(self, events: list[Any], **values: float) -> None:
        super().__init__(events, **values)
        self.read_again: list[Target] = []

    def read(self, target: Target) -> Value:
        self.read_again.append(target)
        return super().read(target)

    def write_and_read(self, target: Target, value: Value) -> Value:
        self.events.append(("at once", target, value))
        self.values[target] = value if self.reads_as is None else self.reads_as
        return self.values[target]


def test_a_knob_that_writes_and_reads_in_one_step_is_not_read_again() -> None:
    setting = AtOnce([], a=1.0)
    enforcer = Enforcer(setting)
    changes = enforcer.diff(("a",), column(5))
    setting.read_again.clear()
    assert [change.after for change in enforcer.apply(changes).applied] == [5.0]
    assert setting.events == [("at once", "a", 5.0)]
    assert setting.read_again == ["a"]  # what is found, right before the write
    setting.reads_as = 4.0
    (failure,) = enforcer.apply(enforcer.diff(("a",), column(8))).failures
    remedy = "check whether another program sets it, and its limits"
    assert str(failure) == f"nice of a to 8.0: wrote 8.0, but it reads 4.0 ({remedy})"
    assert enforcer.wrote("a") == 4.0
