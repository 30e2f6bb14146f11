"""From priorities of logical operators to priorities of the instances that run them: Lachesis Algorithm 2.

It knows which operators are fused into an instance and which instances are copies of each other, and nothing of where
the priorities come from. So a policy may speak of a query's operators, whatever an engine made of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from treadle.model import Floats, Ints, Topology


@dataclass(frozen=True)
class OperatorSets:
    """The distinct sets of operators that run as one, each as (query, operators), and each row's set."""

    members: tuple[tuple[str, tuple[str, ...]], ...]
    of_row: Ints


def to_physical(topology: Topology, by_operator: Mapping[tuple[str, str], float]) -> Floats:
    """A row's priority is the highest of the operators fused into it; copies share it (Lachesis Algorithm 2).

    Keys are (query, operator). A row none of whose operators is given gets NaN; operators that run nowhere, as those of
    a query that has ended, are left out.
    """
    sets = operator_sets(topology)
    best = np.full(len(sets.members), np.nan)
    for number, (query, operators) in enumerate(sets.members):
        given = [by_operator.get((query, name), np.nan) for name in operators]
        best[number] = np.fmax.reduce(given)
    return best[sets.of_row]


def operator_sets(topology: Topology) -> OperatorSets:
    """Found once for each topology: the rounds until the next one pay nothing for it."""
    key = id(topology)  # by identity, since hashing a topology takes longer than looking through it
    found = _found.get(key)
    if found is None:
        numbers: dict[tuple[str, tuple[str, ...]], int] = {}
        of_row = [numbers.setdefault((i.query, i.operators), len(numbers)) for i in topology.instances]
        found = _found[key] = OperatorSets(tuple(numbers), np.array(of_row, dtype=np.int64))
        weakref.finalize(topology, _found.pop, key, None)
    return found


_found: dict[int, OperatorSets] = {}
