"""Enforce, the third step of the loop: writes the decided values to knobs, and can restore the values found before."""

from treadle.enforce.changes import Change, Changes, Column, diff
from treadle.enforce.enforcer import Enforcer, Failure, Outcomes
from treadle.enforce.knob import Knob, Per, Target, Value, label

__all__ = [
    "Change",
    "Changes",
    "Column",
    "Enforcer",
    "Failure",
    "Knob",
    "Outcomes",
    "Per",
    "Target",
    "Value",
    "diff",
    "label",
]
