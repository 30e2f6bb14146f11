"""What the loop asks of the world: a clock to sleep by, and engines that can be looked at and turned.

Protocols only, so that a driver needs to import nothing but values. Lachesis section 4 calls these the SPE drivers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from treadle.enforce import Knob
from treadle.model import Topology
from treadle.values import Sample


class Clock(Protocol):
    """Seconds that only grow, and a way to let some of them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class SystemClock:
    """The time of this computer."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@runtime_checkable
class Engine(Protocol):
    """A system that runs streaming queries.

    One that answers at once from this very process, as a simulator, may have an attribute `in_process` that is true: it
    is then called directly, without a limit of time. All others are asked in a thread of their own, always the same one
    as long as they answer in time. It may change: whoever has to ask nobody else just now is called directly now.

    One that can tell at once whether a look at it would find anything new may have a method `news() -> bool`, which is
    called in each round, in the loop's own thread. While it says no, what was last seen holds and the round is short.
    """

    @property
    def name(self) -> str: ...

    @property
    def offers(self) -> frozenset[str]:
        """The base metrics that it can be asked for."""

    def topology(self) -> Topology:
        """What runs now. Whenever that differs from before, so does its version."""

    def sample(self, wanted: frozenset[str], /) -> Sample:
        """The wanted base metrics at this moment, a row for each instance of the topology."""

    def knobs(self) -> Mapping[str, Knob]:
        """What can be turned, by name."""
