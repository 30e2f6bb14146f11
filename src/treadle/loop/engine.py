"""What the loop needs from outside: a clock to sleep by, and engines that it can sample and control.

Protocols only, so that an engine needs to import nothing but values. Lachesis section 4 calls engines SPE drivers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from treadle.enforce import Knob
from treadle.model import Topology
from treadle.values import Sample


class Clock(Protocol):
    """A monotonic clock in seconds, and a way to sleep by it."""

    def now(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class SystemClock:
    """The monotonic clock of this computer."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@runtime_checkable
class Engine(Protocol):
    """A system that runs streaming queries.

    An engine that answers at once, without another process, such as a simulator, may have an attribute `in_process`
    that is true: the loop then calls it directly, without a timeout. Any other engine is called in a thread of its own,
    always the same thread as long as it answers in time. The attribute may change from round to round.

    An engine that knows at once whether a sample would contain anything new may have a method `news() -> bool`, which
    the loop calls in each round, in the loop's thread. While it returns False, the last sample is used again.
    """

    @property
    def name(self) -> str: ...

    @property
    def offers(self) -> frozenset[str]:
        """The base metrics that it can measure."""

    def topology(self) -> Topology:
        """Return what runs now. The topology has a new version whenever anything else in it has changed."""

    def sample(self, wanted: frozenset[str], /) -> Sample:
        """Measure the wanted base metrics now: one value for each instance of the last topology, in its order."""

    def knobs(self) -> Mapping[str, Knob]:
        """The knobs that can be turned, by name."""
