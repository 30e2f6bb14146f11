"""What an enforcer writes it can put back, whatever fails in between."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from treadle.enforce import Change, Enforcer, Knob, Per, Target, Value
from treadle.errors import RightsError, TargetGone
from treadle.model import Floats, ThreadRef

A, B, C = "a", "b", "c"


class ScriptedKnob:
    """A stand-in for a kernel setting, in memory. A script of one letter per call says how the call goes wrong:

    `r` refuses; `l` refuses late, when the write has already happened; `h` writes half of the value; others go well.
    """

    def __init__(self, values: dict[Target, Value], per: Per = "instance") -> None:
        self.name = "nice"
        self.per = per
        self.values = values
        self.script: Iterator[str] = iter("")
        self.reads: list[Target] = []
        self.writes: list[tuple[Target, Value]] = []

    def read(self, target: Target) -> Value:
        self.reads.append(target)
        self._check(target)
        if next(self.script, "") in ("r", "l"):
            raise OSError("read refused")
        return self.values[target]

    def write(self, target: Target, value: Value) -> None:
        self._check(target)
        step = next(self.script, "")
        if step == "r":
            raise RightsError("write refused", remedy="use a root shell")
        self.writes.append((target, value))
        self.values[target] = value / 2 if step == "h" and isinstance(value, float) else value
        if step == "l":
            raise OSError("too late")

    def _check(self, target: Target) -> None:
        if target not in self.values:
            raise TargetGone(f"{target} has ended")


def column(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def test_the_stand_in_is_a_knob() -> None:
    assert isinstance(ScriptedKnob({}), Knob)


class TestApply:
    def test_only_what_changed_is_written(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 5.0, C: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A, B, C), column(3, 5, math.nan))
        outcomes = enforcer.apply(changes)
        assert list(outcomes.applied) == [Change(A, "nice", 0.0, 3.0)]
        assert knob.writes == [(A, 3.0)]
        assert knob.values == {A: 3.0, B: 5.0, C: 0.0}

    def test_a_round_without_changes_neither_reads_nor_writes(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer, targets = Enforcer(knob), (A, B)
        enforcer.apply(enforcer.diff(targets, column(1, 2)))
        knob.reads.clear()
        assert len(enforcer.diff(targets, column(1, 2))) == 0
        assert len(enforcer.diff((A, B), column(1, 2))) == 0
        assert knob.reads == []

    def test_a_refused_write_is_collected_and_the_others_go_on(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A, B), column(1, 2))
        knob.script = iter("_r")
        outcomes = enforcer.apply(changes)
        assert [change.target for change in outcomes.applied] == [B]
        assert [str(failure) for failure in outcomes.failures] == ["nice of a to 1.0: write refused (use a root shell)"]
        assert [change.target for change in enforcer.diff((A, B), column(1, 2))] == [A]

    def test_a_value_that_reads_back_otherwise_is_a_failure_that_says_so(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A,), column(8))
        knob.script = iter("_h")
        (failure,) = enforcer.apply(changes).failures
        assert "wrote 8.0, but it reads 4.0" in str(failure)
        assert list(enforcer.diff((A,), column(8))) == [Change(A, "nice", 4.0, 8.0)]

    def test_a_target_that_has_ended_is_no_failure(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A, B), column(1, 1))
        del knob.values[A]
        outcomes = enforcer.apply(changes)
        assert (outcomes.gone, outcomes.failures) == ((A,), ())
        assert len(enforcer.diff((A, B), column(1, 1))) == 0

    def test_a_target_that_cannot_be_read_is_reported_by_apply(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        knob.script = iter("rr")
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A,), column(1))
        assert list(changes) == [Change(A, "nice", None, 1.0)]
        assert [str(failure.error) for failure in enforcer.apply(changes).failures] == ["read refused"]
        assert knob.writes == []

    def test_texts_are_set_like_numbers(self) -> None:
        knob = ScriptedKnob({A: "", B: ""})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A, B), np.array(["q1", None], dtype=np.object_)))
        assert knob.values == {A: "q1", B: ""}
        enforcer.restore()
        assert knob.values == {A: "", B: ""}


class TestRestore:
    def test_restore_puts_back_the_nice_it_found(self) -> None:
        knob = ScriptedKnob({A: 7.0, B: -3.0})
        enforcer = Enforcer(knob)
        for value in (1, 2, 3):
            enforcer.apply(enforcer.diff((A, B), column(value, value)))
        outcomes = enforcer.restore()
        assert list(outcomes.applied) == [Change(A, "nice", 3.0, 7.0), Change(B, "nice", 3.0, -3.0)]
        assert knob.values == {A: 7.0, B: -3.0}

    def test_restoring_twice_writes_once(self) -> None:
        knob = ScriptedKnob({A: 7.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A,), column(1)))
        enforcer.restore()
        knob.reads.clear()
        assert len(enforcer.restore().applied) == 0
        assert knob.reads == []
        assert knob.writes == [(A, 1.0), (A, 7.0)]

    def test_what_was_found_is_read_right_before_the_first_write(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        enforcer = Enforcer(knob)
        assert len(enforcer.diff((A,), column(0))) == 0
        knob.values[A] = 4.0  # somebody else, long before our first write
        enforcer.apply(enforcer.diff((A,), column(1)))
        enforcer.restore()
        assert knob.values[A] == 4.0

    def test_what_somebody_else_changed_is_left_alone_and_reported(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A, B), column(1, 1)))
        knob.values[A] = 9.0
        outcomes = enforcer.restore()
        assert outcomes.left == (Change(A, "nice", 1.0, 9.0),)
        assert knob.values == {A: 9.0, B: 0.0}
        assert enforcer.restore().left == ()

    def test_that_holds_also_after_a_write_that_was_refused(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A,), column(1))
        knob.script = iter("_r")
        enforcer.apply(changes)
        knob.values[A] = 9.0
        assert enforcer.restore().left == (Change(A, "nice", 0.0, 9.0),)
        assert knob.values[A] == 9.0

    def test_what_we_have_written_over_is_ours_again(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A,), column(1)))
        knob.values[A] = 9.0
        enforcer.apply(enforcer.diff((A,), column(2)))
        assert enforcer.restore().left == ()
        assert knob.values[A] == 0.0

    def test_some_can_be_put_back_and_set_again(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer, targets = Enforcer(knob), (A, B)
        enforcer.apply(enforcer.diff(targets, column(1, 2)))
        enforcer.restore([A])
        assert knob.values == {A: 0.0, B: 2.0}
        assert enforcer.held == (B,)
        assert len(enforcer.restore([]).applied) == 0
        assert knob.values == {A: 0.0, B: 2.0}
        assert [change.target for change in enforcer.diff(targets, column(1, 2))] == [A]

    def test_what_failed_is_tried_again_by_the_next_call(self) -> None:
        knob = ScriptedKnob({A: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A,), column(1)))
        knob.script = iter("_r")
        assert len(enforcer.restore().failures) == 1
        assert knob.values == {A: 1.0}
        assert len(enforcer.restore().applied) == 1
        assert knob.values == {A: 0.0}

    def test_a_broken_off_apply_can_be_put_back(self) -> None:
        class Interrupted(ScriptedKnob):
            def write(self, target: Target, value: Value) -> None:
                super().write(target, value)
                if target == B and value == 2.0:
                    raise KeyboardInterrupt

        knob = Interrupted({A: 0.0, B: 0.0, C: 0.0})
        enforcer = Enforcer(knob)
        changes = enforcer.diff((A, B, C), column(2, 2, 2))
        with pytest.raises(KeyboardInterrupt):
            enforcer.apply(changes)
        enforcer.restore()
        assert knob.values == {A: 0.0, B: 0.0, C: 0.0}


class TestRetarget:
    def test_a_target_that_left_the_topology_but_lives_is_put_back(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A, B), column(1, 1)))
        assert [change.target for change in enforcer.retarget((B, C)).applied] == [A]
        assert knob.values == {A: 0.0, B: 1.0}

    def test_a_target_that_has_ended_is_forgotten(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A, B), column(1, 1)))
        del knob.values[A]
        assert enforcer.retarget((B,)).gone == (A,)
        assert enforcer.held == (B,)

    def test_what_is_known_moves_with_its_target(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 0.0, C: 0.0})
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((A, B), column(1, 2)))
        enforcer.retarget((C, B))
        knob.reads.clear()
        assert list(enforcer.diff((C, B), column(3, 2))) == [Change(C, "nice", 0.0, 3.0)]
        assert knob.reads == [C]

    def test_a_thread_id_used_again_is_another_target(self) -> None:
        old, new = ThreadRef(7, start_time=1), ThreadRef(7, start_time=2)
        knob = ScriptedKnob({old: 0.0}, per="thread")
        enforcer = Enforcer(knob)
        enforcer.apply(enforcer.diff((old,), column(5)))
        knob.values = {new: 3.0}
        enforcer.retarget((new,))
        enforcer.restore()
        assert knob.values == {new: 3.0}


class TestDryRun:
    def test_a_dry_run_writes_nothing_but_tells_what_it_would_do(self) -> None:
        knob = ScriptedKnob({A: 0.0, B: 5.0})
        enforcer, targets = Enforcer(knob, dry_run=True), (A, B)
        first = enforcer.apply(enforcer.diff(targets, column(3, 5))).applied
        second = enforcer.apply(enforcer.diff(targets, column(4, 5))).applied
        back = enforcer.restore().applied
        assert list(first) == [Change(A, "nice", 0.0, 3.0)]
        assert list(second) == [Change(A, "nice", 3.0, 4.0)]
        assert list(back) == [Change(A, "nice", 4.0, 0.0)]
        assert (knob.writes, enforcer.held) == ([], ())
        assert list(enforcer.diff(targets, column(4, 5))) == [Change(A, "nice", 0.0, 4.0)]

    def test_a_dry_run_tells_of_what_ended_or_was_changed_by_somebody_else_as_a_real_one_does(self) -> None:
        told = []
        for dry_run in (False, True):
            knob = ScriptedKnob({A: 0.0, B: 0.0, C: 0.0})
            enforcer = Enforcer(knob, dry_run=dry_run)
            enforcer.apply(enforcer.diff((A, B, C), column(1, 1, 1)))
            knob.values[A] = 9.0
            del knob.values[B]
            outcomes = enforcer.restore()
            told.append((list(outcomes.applied), outcomes.gone, outcomes.left, enforcer.held))
        assert told[0] == told[1] == ([Change(C, "nice", 1.0, 0.0)], (B,), (Change(A, "nice", 1.0, 9.0),), ())

    def test_a_dry_run_puts_back_nothing_where_nothing_was_found(self) -> None:
        enforcer = Enforcer(ScriptedKnob({}, per="group"), dry_run=True)
        enforcer.apply(enforcer.diff((A,), column(512)))
        assert len(enforcer.restore().applied) == 0
        assert list(enforcer.diff((A,), column(512))) == [Change(A, "nice", None, 512.0)]

    def test_a_dry_run_tells_also_of_a_group_that_is_not_there_yet(self) -> None:
        enforcer = Enforcer(ScriptedKnob({}, per="group"), dry_run=True)
        assert list(enforcer.diff((A,), column(512))) == [Change(A, "nice", None, 512.0)]


SCRIPTS = st.text("rlh_", max_size=12)
WANTED = st.lists(st.sampled_from([math.nan, 0.0, 2.0, 4.0, 8.0]), min_size=5, max_size=5)


class Failures(RuleBasedStateMachine):
    """Any interleaving of failing reads and writes, bent values, ended and changing targets."""

    targets = tuple(f"t{i}" for i in range(5))

    @initialize(found=st.lists(st.sampled_from([0.0, 2.0, 7.0]), min_size=5, max_size=5))
    def start(self, found: list[float]) -> None:
        self.found: dict[Target, Value] = dict(zip(self.targets, found, strict=True))
        self.knob = ScriptedKnob(dict(self.found))
        self.enforcer = Enforcer(self.knob)
        self.now: tuple[Target, ...] = self.targets

    @rule(wanted=WANTED, script=SCRIPTS)
    def apply(self, wanted: list[float], script: str) -> None:
        column = np.array(wanted[: len(self.now)])
        self.knob.script = iter(script)
        changes = self.enforcer.diff(self.now, column)
        before = len(self.knob.writes)
        outcomes = self.enforcer.apply(changes)
        self.knob.script = iter("")
        asked = {(change.target, change.after) for change in changes}
        assert set(self.knob.writes[before:]) <= asked
        known = {c.target for c in outcomes.applied} | {f.target for f in outcomes.failures} | set(outcomes.gone)
        assert known <= {change.target for change in changes}
        if not outcomes.failures:
            for target, value in zip(self.now, column.tolist(), strict=True):
                assert math.isnan(value) or self.knob.values.get(target, value) == value

    @rule(script=SCRIPTS, some=st.sets(st.sampled_from(targets)) | st.none())
    def restore(self, script: str, some: set[str] | None) -> None:
        self.knob.script = iter(script)
        self.enforcer.restore(some)
        self.knob.script = iter("")

    @rule(which=st.sampled_from(targets))
    def end(self, which: str) -> None:
        self.knob.values.pop(which, None)

    @rule(chosen=st.sets(st.sampled_from(targets)), script=SCRIPTS)
    def retarget(self, chosen: set[str], script: str) -> None:
        self.now = tuple(sorted(chosen, reverse=True))
        self.knob.script = iter(script)
        self.enforcer.retarget(self.now)
        self.knob.script = iter("")

    @invariant()
    def whatever_is_not_as_found_is_remembered(self) -> None:
        if hasattr(self, "knob"):
            changed = {t for t, value in self.knob.values.items() if value != self.found[t]}
            assert changed <= set(self.enforcer.held)

    def teardown(self) -> None:
        if not hasattr(self, "knob"):
            return
        self.enforcer.restore()
        assert self.knob.values == {t: v for t, v in self.found.items() if t in self.knob.values}
        assert self.enforcer.held == ()


Failures.TestCase.settings = settings(max_examples=150, stateful_step_count=15)
TestRestoreUndoesApplyAfterAnyFailures = Failures.TestCase


@given(st.lists(WANTED, max_size=4), SCRIPTS)
def test_a_dry_run_never_writes(rounds: list[list[float]], script: str) -> None:
    targets = tuple("abcde")
    knob = ScriptedKnob(dict.fromkeys(targets, 1.0))
    knob.script = iter(script)
    enforcer = Enforcer(knob, dry_run=True)
    for wanted in rounds:
        enforcer.apply(enforcer.diff(targets, np.array(wanted)))
        enforcer.retarget(targets)
    enforcer.restore()
    assert knob.writes == []


Step = tuple[str, list[str] | None, list[float]]
SOME = st.lists(st.sampled_from("abcde"), unique=True)
APPLY: st.SearchStrategy[Step] = st.tuples(st.just("apply"), st.permutations("abcde"), WANTED)
RESTORE: st.SearchStrategy[Step] = st.tuples(st.just("restore"), SOME | st.none(), st.just([]))
RETARGET: st.SearchStrategy[Step] = st.tuples(st.just("retarget"), SOME, st.just([]))


@given(st.lists(APPLY | RESTORE | RETARGET, max_size=8))
def test_a_dry_run_tells_the_same_as_a_real_one(steps: list[Step]) -> None:
    told: list[list[list[Change]]] = []
    for dry_run in (False, True):
        enforcer = Enforcer(ScriptedKnob(dict.fromkeys("abcde", 2.0)), dry_run=dry_run)
        told.append([])
        for what, targets, wanted in [*steps, ("restore", None, [])]:
            if what == "apply":
                outcomes = enforcer.apply(enforcer.diff(tuple(targets or ()), np.array(wanted)))
            elif what == "retarget":
                outcomes = enforcer.retarget(tuple(targets or ()))
            else:
                outcomes = enforcer.restore(targets)
            told[-1].append(list(outcomes.applied))
    assert told[0] == told[1]
