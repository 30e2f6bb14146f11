"""Maps priorities of logical operators to the instances that run them: Lachesis Algorithm 2.

A policy can give priorities to operators without knowing how an engine fuses them or runs them in parallel copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from treadle.model import Floats, Ints, Topology


@dataclass(frozen=True)
class OperatorSets:
    """The distinct sets of operators fused into one instance, as (query, operators), and each row's set as an index."""

    members: tuple[tuple[str, tuple[str, ...]], ...]
    of_row: Ints


def to_physical(topology: Topology, by_operator: Mapping[tuple[str, str], float]) -> Floats:
    """Return for each instance the highest priority of the operators fused into it (Lachesis Algorithm 2).

    Keys are (query, operator). Copies of an operator get the same priority. It is NaN if none of the operators has one.
    Operators that run nowhere, for example of a query that has ended, are left out.
    """
    sets = operator_sets(topology)
    best = np.full(len(sets.members), np.nan)
    for number, (query, operators) in enumerate(sets.members):
        given = [by_operator.get((query, name), np.nan) for name in operators]
        best[number] = np.fmax.reduce(given)
    return best[sets.of_row]


def operator_sets(topology: Topology) -> OperatorSets:
    """Return the operator sets of a topology, computed once for each topology."""
    key = id(topology)  # by identity, since hashing a topology takes longer than reading it through
    found = _found.get(key)
    if found is None:
        numbers: dict[tuple[str, tuple[str, ...]], int] = {}
        of_row = [numbers.setdefault((i.query, i.operators), len(numbers)) for i in topology.instances]
        found = _found[key] = OperatorSets(tuple(numbers), np.array(of_row, dtype=np.int64))
        weakref.finalize(topology, _found.pop, key, None)
    return found


_found: dict[int, OperatorSets] = {}
