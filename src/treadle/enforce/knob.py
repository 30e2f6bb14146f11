"""The interface of knobs. A knob reads and writes one setting of a target, which is a thread, an instance or a group.

A knob knows how the system represents the value, not why it changes. Lachesis section 5.3 calls knobs mechanisms.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from treadle.model import ThreadRef

Value = float | str
Target = ThreadRef | str
"""A thread, the id of an instance, or the name of a group."""
Per = Literal["thread", "instance", "group"]


def label(target: Target) -> str:
    """Return a target as text for people."""
    return f"thread {target.tid}" if isinstance(target, ThreadRef) else target


@runtime_checkable
class Knob(Protocol):
    """One setting of the system. `TargetGone` says that the target has ended; any other error is a failure.

    A knob that can write and read back in one faster step may have a method `write_and_read(target, value) -> Value`.
    One whose values must change together may have `commit()`, which is called after all writes of a round.
    """

    @property
    def name(self) -> str: ...

    @property
    def per(self) -> Per: ...

    def read(self, target: Target, /) -> Value:
        """Return the value that the system has now."""

    def write(self, target: Target, value: Value, /) -> None:
        """Set the value. Callers read it back to check that it took effect."""
