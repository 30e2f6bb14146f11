"""What policies made of other policies share: the metrics of all, and vectors of equal width for mains and helpers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from treadle.decide.policy import Policy
from treadle.model import Floats
from treadle.values import Schedule


def metrics_of(policies: Iterable[Policy]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The needs and the wants of all; what one of them needs is not only wanted."""
    policies = list(policies)
    needs = dict.fromkeys(metric for policy in policies for metric in policy.needs)
    wants = dict.fromkeys(metric for policy in policies for metric in policy.wants if metric not in needs)
    return tuple(needs), tuple(wants)


def mains_and_helpers(schedule: Schedule) -> tuple[Floats, Floats]:
    """The vectors of the main threads and of the helpers, on one scale; helpers without any follow their mains."""
    if schedule.helper is None:
        return schedule.priority, schedule.priority
    return schedule.scalar[:, None], schedule.helper[:, None]


def padded(vectors: Floats, width: int) -> Floats:
    """Vectors with zeros in the dimensions they lack."""
    return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))
