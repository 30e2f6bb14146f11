"""Shared by policies made of other policies: the metrics of all, and vectors of equal width for mains and helpers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from treadle.decide.policy import Policy
from treadle.model import Floats
from treadle.values import Schedule


def metrics_of(policies: Iterable[Policy]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the needs and the wants of all policies; a metric that any of them needs is not among the wants."""
    policies = list(policies)
    needs = dict.fromkeys(metric for policy in policies for metric in policy.needs)
    wants = dict.fromkeys(metric for policy in policies for metric in policy.wants if metric not in needs)
    return tuple(needs), tuple(wants)


def mains_and_helpers(schedule: Schedule) -> tuple[Floats, Floats]:
    """Return the vectors of main threads and of helpers, on one scale; without `helper` both are the same."""
    if schedule.helper is None:
        return schedule.priority, schedule.priority
    return schedule.scalar[:, None], schedule.helper[:, None]


def padded(vectors: Floats, width: int) -> Floats:
    """Return the vectors extended with zeros to `width` dimensions."""
    return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))
