"""What a gate counts: who waits, who runs, and for how long each hop has done both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HopStats:
    """One hop since it was registered. Times in seconds, what is under way included. An unknown rank is NaN."""

    rank: float
    grants: int
    aged: int
    """Grants out of turn, because it had waited too long."""
    waited: float
    held: float


@dataclass(frozen=True, slots=True)
class GateStats:
    """The gate at one moment, with the totals since it was made, those of withdrawn hops included."""

    slots: int
    waiting: tuple[str, ...]
    """Longest wait first."""
    holding: tuple[str, ...]
    grants: int
    aged: int
    waited: float
    held: float
    idle: float
    """Slot-seconds lost: a slot was free while a hop waited, or was being handed over. Haren's scheduling overhead."""
    hops: Mapping[str, HopStats]
