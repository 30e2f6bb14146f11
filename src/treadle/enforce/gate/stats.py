"""The counts of a gate: which hops wait, which run, and for how long each hop has done both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HopStats:
    """One hop since it was registered. Times are in seconds, with the current wait or batch. An unknown rank is NaN."""

    rank: float
    grants: int
    aged: int
    """Grants out of turn, because the hop had waited too long."""
    waited: float
    held: float


@dataclass(frozen=True, slots=True)
class GateStats:
    """The gate at one moment, with totals since it was made; they include withdrawn hops."""

    slots: int
    waiting: tuple[str, ...]
    """Waiting hops, the longest wait first."""
    holding: tuple[str, ...]
    grants: int
    aged: int
    waited: float
    held: float
    idle: float
    """Slot-seconds lost: a slot was free while a hop waited, or was being handed over. Haren's scheduling overhead."""
    hops: Mapping[str, HopStats]
