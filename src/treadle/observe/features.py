"""How metrics change when operators run: Haren's kinds of features (section 3.1) and its dependency bitmap D (Table 3).

The cooperative runner asks here which metrics go stale while an operator is left alone, and whose metrics must be
updated after an operator ran. It knows kinds and graphs, no values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from treadle.model import Bools, Ints, Topology
from treadle.observe.catalogue import METRICS
from treadle.observe.graph import reachable
from treadle.observe.metric import Kind, Metric

_ANYTHING = Kind.DYNAMIC | Kind.ON_UPSTREAM | Kind.ON_DOWNSTREAM | Kind.INTRINSIC


def features(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> dict[str, Kind]:
    """The kind of each metric. One that only its engine knows may change in any way."""
    return {name: metrics[name].kind if name in metrics else _ANYTHING for name in names}


def intrinsic(names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> frozenset[str]:
    """The execution-intrinsic ones: while there are any, operators left alone must be run after the delay d."""
    return frozenset(name for name, kind in features(names, metrics).items() if Kind.INTRINSIC in kind)


@dataclass(frozen=True)
class Dependents:
    """Haren's D, sparse: after row i ran, the rows `to[first[i]:first[i + 1]]` must be updated, i among them."""

    first: Ints
    to: Ints

    def of(self, row: int) -> Ints:
        return self.to[self.first[row] : self.first[row + 1]]

    def touched(self, ran: Bools) -> Bools:
        """Haren's U: the rows to update after those in the mask `ran` did run."""
        update = np.zeros(len(ran), dtype=np.bool_)
        update[self.to[np.repeat(ran, np.diff(self.first))]] = True
        return update

    def dense(self) -> Bools:
        """D as the paper has it: a bitmap with a row and a column per instance."""
        count = len(self.first) - 1
        bitmap = np.zeros((count, count), dtype=np.bool_)
        bitmap[np.repeat(np.arange(count), np.diff(self.first)), self.to] = True
        return bitmap


def dependents(topology: Topology, names: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> Dependents:
    """Whose metrics must be updated after a row ran: its own, and those of others that hang on it.

    A dependent metric hangs on the neighbours. One that is intrinsic too is made of what was measured in all operators
    on its way, so it hangs on each of them.
    """
    kinds = features(names, metrics).values()
    count = len(topology)
    start, end, _ = topology.edges
    itself = np.arange(count)
    pairs = [itself * count + itself]
    for direction, ran, touched in ((Kind.ON_UPSTREAM, start, end), (Kind.ON_DOWNSTREAM, end, start)):
        if any(direction | Kind.INTRINSIC in kind for kind in kinds):
            ran, touched = reachable(count, ran, touched)
        if any(direction in kind for kind in kinds):
            pairs.append(ran * count + touched)
    found = np.unique(np.concatenate(pairs))
    first = np.searchsorted(found, np.arange(count + 1) * count)
    return Dependents(first, found % max(count, 1))
