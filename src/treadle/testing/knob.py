"""The conformance suite for knobs: a write changes its target, and only that, and everything can be restored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle, islice
from typing import get_args

import numpy as np

from treadle.enforce import Column, Enforcer, Knob, Per, Target, Value
from treadle.enforce.changes import same
from treadle.errors import TargetGone
from treadle.model import ThreadRef
from treadle.testing._demand import blaming, demand

NOBODY = ThreadRef(tid=2**31 - 1, pid=2**31 - 1, start_time=1)
"""A thread that no kernel can have: thread ids end at 2^22."""
NO_NAME = "no such target"


def check_knob(
    make_knob: Callable[[], Knob], targets: Sequence[Target], values: Sequence[Value], *, gone: Target | None = None
) -> None:
    """Write each value to each target, which must exist, and restore the values that were found.

    `gone` is a target that does not exist; by default a thread or a name that can't exist.
    """
    knob = make_knob()
    who = _check_shape(knob, targets)
    demand(len(dict.fromkeys(values)) >= 2, who, f"give check_knob two different values at least, not {values!r}")
    with blaming(who, f"read of {targets[0]}"):
        found = {target: knob.read(target) for target in targets}
    try:
        _check_read_back(knob, targets, values, who)
        _check_enforcer(make_knob, tuple(targets), values, found, who)
    finally:  # restore the system also after a failure
        for target, value in found.items():
            with suppress(Exception):
                knob.write(target, value)
    absent = (NOBODY if knob.per == "thread" else NO_NAME) if gone is None else gone
    _check_gone(knob, absent, values[0], who)


def _check_shape(knob: Knob, targets: Sequence[Target]) -> str:
    demand(isinstance(knob, Knob), f"{knob!r}", "is no treadle.enforce.Knob: it lacks name, per, read or write")
    demand(isinstance(knob.name, str) and knob.name, f"{knob!r}", "has no name")
    who = f"knob '{knob.name}'"
    demand(knob.per in get_args(Per), who, f"is per {knob.per!r}, not one of {', '.join(get_args(Per))}")
    demand(len(targets) > 0, who, "give check_knob one target at least")
    for target in targets:
        fits = isinstance(target, ThreadRef if knob.per == "thread" else str)
        demand(fits, who, f"is per {knob.per}, but {target!r} is none")
    return who


def _check_read_back(knob: Knob, targets: Sequence[Target], values: Sequence[Value], who: str) -> None:
    """A written value is read back, and all other targets keep their values."""
    expected = {}
    with blaming(who, "read"):
        for target in targets:
            expected[target] = knob.read(target)
    for value in values:
        for target in targets:
            with blaming(who, f"write of {value!r} to {target}"):
                knob.write(target, value)
            expected[target] = value
            for other, its in expected.items():
                with blaming(who, f"read of {other}"):
                    seen = knob.read(other)
                demand(isinstance(seen, float | int | str), who, f"reads {seen!r}, which is no number and no text")
                if other == target:
                    demand(same(seen, its), who, f"wrote {value!r} to {target}, but it reads {seen!r}")
                else:
                    demand(
                        same(seen, its), who, f"writing {value!r} to {target} changed {other} from {its!r} to {seen!r}"
                    )


def _check_enforcer(
    make_knob: Callable[[], Knob],
    targets: tuple[Target, ...],
    values: Sequence[Value],
    found: dict[Target, Value],
    who: str,
) -> None:
    """Use an enforcer, as Treadle does: it writes what differs and restores what it found."""
    knob = make_knob()
    for target, value in found.items():
        with blaming(who, f"writing {value!r}, which was found, back to {target}"):
            knob.write(target, value)
    enforcer = Enforcer(knob)
    for first in range(len(values)):
        wanted = _column(list(islice(cycle(values), first, first + len(targets))))
        outcomes = enforcer.apply(enforcer.diff(targets, wanted))
        demand(not outcomes.failures, who, f"enforcing failed: {'; '.join(map(str, outcomes.failures))}")
        demand(not outcomes.gone, who, f"says that targets which exist are gone: {outcomes.gone}")
        again = enforcer.diff(targets, wanted)
        demand(len(again) == 0, who, f"a second round would write again: {list(again)}")
    outcomes = enforcer.restore()
    demand(not outcomes.failures, who, f"can't be put back: {'; '.join(map(str, outcomes.failures))}")
    for target, value in found.items():
        with blaming(who, f"read of {target}"):
            seen = knob.read(target)
        demand(same(seen, value), who, f"{target} had {value!r}, and after restore it has {seen!r}")


def _check_gone(knob: Knob, absent: Target, value: Value, who: str) -> None:
    for what, act in (("read", lambda: knob.read(absent)), ("write", lambda: knob.write(absent, value))):
        try:
            answer = act()
        except TargetGone:
            continue
        except Exception as error:
            message = f"{what} of {absent}, which does not exist, raised {type(error).__name__}: {error}"
            raise AssertionError(f"{who}: {message} instead of TargetGone") from error
        demand(False, who, f"{what} of {absent}, which does not exist, gave {answer!r} instead of TargetGone")


def _column(values: Sequence[Value]) -> Column:
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=np.object_)
    return np.array(values, dtype=np.float64)
