"""A load that changes its character, for learners: no one policy is best at all of it (AMoS section 2.3).

First many cheap rows come beside few dear ones: whoever takes turns by age makes the many wait for the few. Then there
is hardly a cheap row, and whoever lets the cheaper ones pass makes one row in twenty wait until nothing else is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from treadle.enforce.gate.slots import usable_cores
from treadle.workloads.multi_class import Chain

LOAD = 0.7
"""A share of all cores, before what Spark takes for each batch: in bursts twice as much, more than there is."""
BURSTS = (2.0, 2.0)


@dataclass(frozen=True)
class Kind:
    """So many queries of which a row costs so many seconds, and their part in the load of each phase."""

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
