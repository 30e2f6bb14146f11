"""The control loop (Lachesis section 4, Alg. 1): the only place where observe, decide and enforce meet.

It knows when each policy is due, for which rows the policy decides, and which knob of which engine carries that out. It
knows no formula, no policy and no system call: these belong to the three steps.
"""

from treadle.loop.binding import Binding
from treadle.loop.control import Loop
from treadle.loop.engine import Clock, Engine, SystemClock
from treadle.loop.records import Decision, DecisionBatch, DecisionLog
from treadle.loop.stats import Stats

__all__ = [
    "Binding",
    "Clock",
    "Decision",
    "DecisionBatch",
    "DecisionLog",
    "Engine",
    "Loop",
    "Stats",
    "SystemClock",
]
