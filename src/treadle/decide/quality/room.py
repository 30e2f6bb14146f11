"""Cores that may be used on a machine that other processes use too (Stream-Economics Alg. 1, lines 1 to 3).

The paper takes the CPU of others as given; processes that take whatever is left would then get more and more.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats

HEADROOM = 0.95
"""The part of the cores that is used: at full load queues grow without end."""
FAIR = 0.5
"""The part of the cores up to which we keep what we use, whatever others use."""
MORE = 1.25
"""The factor by which we try to use more than before within that part, while nothing is behind."""
ROOMY = 0.85
"""If less than this part of the cores is busy, other processes are not what limits our use."""


def room(cores: float, ours: float, others: float, *, behind: bool) -> float:
    """Return the cores for us: what others leave, or what we use anyway up to a fair part."""
    own = ours * (HEADROOM if behind else MORE)
    return max(HEADROOM * cores - others, min(own, FAIR * cores))


def ceilings(cpu: Floats, held: Floats, cores: float, busy: float) -> Floats:
    """Return the cores that each can use at most, if it used `cpu` while working for the part `held` of the time."""
    if busy >= ROOMY * cores:
        return np.full(len(cpu), float(cores))
    return np.where(held > 0.0, HEADROOM * cpu / np.where(held > 0.0, held, 1.0), float(cores))
