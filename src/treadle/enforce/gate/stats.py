"""The counts of a gate: which hops wait, which run, and for how long each hop has done both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ANY = -1
"""The group of a hop that may use any slot."""


@dataclass(frozen=True, slots=True)
class HopStats:
    """Counts of one hop since it was registered. Times are in seconds and include the current wait or batch.

    The rank is NaN if none is set.
    """

    rank: float
    grants: int
    aged: int
    """Number of grants ahead of hops with better ranks, because this hop had waited longer than the gate's patience."""
    waited: float
    held: float
    group: int = ANY
    """The group whose slots the hop may use."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One group of slots at one moment."""

    slots: int
    hops: tuple[str, ...]
    """The hops that are assigned to it."""
    running: tuple[str, ...]
    """The hops that hold its slots."""
    held: float
    """Seconds for which its slots were held since slots have been in groups, the batches that run included."""


@dataclass(frozen=True, slots=True)
class GateStats:
    """The state of a gate at one moment, and totals since the gate was made, which include withdrawn hops."""

    slots: int
    waiting: tuple[str, ...]
    """Waiting hops, the longest wait first."""
    holding: tuple[str, ...]
    grants: int
    aged: int
    waited: float
    held: float
    idle: float
    """Slot-seconds in which a slot was free while a hop waited, or was being granted: Haren's scheduling overhead.

    With slots in groups, a hop counts that waits for the slot of any group."""
    hops: Mapping[str, HopStats]
    groups: tuple[GroupStats, ...] = ()
    """All groups while slots are in groups, else empty."""
