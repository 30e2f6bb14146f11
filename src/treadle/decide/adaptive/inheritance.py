"""What an algorithm owes to the one before it: the queue it took over, and the load that goes on.

AMoS section 3.5 (issue 3) only waits until a predecessor's effect has worn off. Here the effect is measured and taken
out: the covariate-adjusted mean of an analysis of covariance, with what was found at the start as covariates.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats, Ints

_DOUBT = 4.0
"""Intervals' worth of belief that nothing is carried over, until the data say otherwise: the regression's ridge."""


def carried(candidate: Ints, start: Floats, level: Floats) -> Floats:
    """For each column of `start`: by how much a unit of it at the start raises the level of the interval.

    The slope *within* each candidate, pooled. Across candidates it would be wrong: one that runs long starts
    from levels of its own making, and the line would excuse it for them. All values must be known.
    """
    dx, dy = _centred(candidate, start), _centred(candidate, level[:, None])[:, 0]
    scale = np.sqrt(np.mean(dx**2, axis=0))
    varies = scale > 1e-9 * np.sqrt(np.mean(start**2, axis=0))  # equal starts tell nothing but rounding
    slope = np.zeros(start.shape[1])
    if varies.any():
        x = dx[:, varies] / scale[varies]
        slope[varies] = np.linalg.solve(x.T @ x + _DOUBT * np.eye(x.shape[1]), x.T @ dy) / scale[varies]
    return slope


def adjusted(candidate: Ints, start: Floats, level: Floats) -> Floats:
    """The levels as they would have been, had each interval started from the mean of all starts.

    `start` has a column per covariate. An unknown start is taken as the mean; an unknown level stays unknown.
    """
    known = np.isfinite(start)
    usual = np.where(known, start, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    start = np.where(known, start, usual)
    use = np.isfinite(level)
    if not use.any():
        return level
    inherited: Floats = (start - usual) @ carried(candidate[use], start[use], level[use])
    return level - inherited


def _centred(candidate: Ints, values: Floats) -> Floats:
    """Columns of values minus their mean over the intervals of the same candidate."""
    runs = np.maximum(np.bincount(candidate), 1)
    means: Floats = np.stack([np.bincount(candidate, column) / runs for column in values.T], axis=1)
    return values - means[candidate]
