"""Adjusts the level of an interval (the mean of a total) for the state at its start: the old queue, and the load.

AMoS section 3.5 (issue 3) only waits until a predecessor's effect has worn off. Here the effect is measured and
subtracted: the covariate-adjusted mean of an analysis of covariance, with the values at the start as covariates.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats, Ints

_DOUBT = 4.0
"""The regression's ridge: the assumption that nothing is carried over weighs as much as this many intervals."""


def carried(candidate: Ints, start: Floats, level: Floats) -> Floats:
    """Return for each covariate (column of `start`) how much one unit at the start of an interval raises its level.

    `start` and `level` have a row per interval, and `candidate` says which candidate was in charge of it. The result is
    the pooled slope *within* each candidate. Across candidates the slope would be wrong: a candidate that stays in
    charge starts from levels that it caused itself, and the regression would attribute its own levels to the start.
    All values must be known.
    """
    dx, dy = _centred(candidate, start), _centred(candidate, level[:, None])[:, 0]
    scale = np.sqrt(np.mean(dx**2, axis=0))
    varies = scale > 1e-9 * np.sqrt(np.mean(start**2, axis=0))  # equal starts differ only by rounding
    slope = np.zeros(start.shape[1])
    if varies.any():
        x = dx[:, varies] / scale[varies]
        slope[varies] = np.linalg.solve(x.T @ x + _DOUBT * np.eye(x.shape[1]), x.T @ dy) / scale[varies]
    return slope


def adjusted(candidate: Ints, start: Floats, level: Floats) -> Floats:
    """Return the levels as they would be if each interval had started from the mean of all starts.

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
    """Subtract from each column of values its mean over the intervals of the same candidate."""
    runs = np.maximum(np.bincount(candidate), 1)
    means: Floats = np.stack([np.bincount(candidate, column) / runs for column in values.T], axis=1)
    return values - means[candidate]
