"""A load with two phases, for learners: no single policy is best in both phases (AMoS section 2.3).

In the first phase many cheap rows arrive beside few expensive ones: a policy by age makes the many wait for the few.
In the second phase there are no cheap rows: a policy that prefers cheaper rows makes one row in sixteen wait until no
other rows are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from treadle.enforce.gate.slots import usable_cores
from treadle.workloads.multi_class import Chain

LOAD = 0.7
"""The mean load as a share of all cores, without Spark's cost per batch. In bursts the load is twice as high."""
BURSTS = (2.0, 2.0)


@dataclass(frozen=True)
class Kind:
    """A kind of queries: their number, the cost of a row in seconds, and by phase their share of the load."""

    queries: int
    row_cost: float
    parts: Mapping[str, float]


KINDS: Mapping[str, Kind] = {
    "cheap": Kind(4, 40e-6, {"rush": 0.35, "toil": 0.0}),
    "middle": Kind(4, 1e-3, {"rush": 0.0, "toil": 0.6}),
    "dear": Kind(4, 10e-3, {"rush": 0.65, "toil": 0.4}),
}
PHASES = ("rush", "toil")


def queries(unit: float, phase: str, load: float = LOAD, cores: float | None = None) -> tuple[Chain, ...]:
    """All queries, at the rates of a phase; `unit` is the cost of one burn in seconds (`burn.calibrate`)."""
    found = []
    for name, kind in KINDS.items():
        burns = max(1, round(kind.row_cost / unit))
        rate = load * (cores or usable_cores()) * kind.parts[phase] / kind.queries / (burns * unit)
        on, off = BURSTS
        found += [
            Chain(f"{name}{number}", False, rate * (on + off) / on, (burns,), (1.0,), on, off)
            for number in range(kind.queries)
        ]
    return tuple(found)
