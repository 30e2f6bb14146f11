"""What can be turned: a knob reads and writes one value of one target, a thread, an instance or a group of them.

It knows how the system spells the value and nothing of why it changes. Lachesis section 5.3 calls these the mechanisms.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from treadle.model import ThreadRef

Value = float | str
Target = ThreadRef | str
"""A thread, the id of an instance, or the name of a group."""
Per = Literal["thread", "instance", "group"]


def label(target: Target) -> str:
    """A target as people read it."""
    return f"thread {target.tid}" if isinstance(target, ThreadRef) else target


@runtime_checkable
class Knob(Protocol):
    """One setting of the system. `TargetGone` says that the target has ended; any other error is a failure.

    One that can write and then read at once in less time may have a method `write_and_read(target, value) -> Value`.
    """

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> Per: ...

    def read(self, target: Target, /) -> Value:
        """The value that the system has now."""

    def write(self, target: Target, value: Value, /) -> None:
        """Set it. Whether it took hold is seen by reading it back."""
