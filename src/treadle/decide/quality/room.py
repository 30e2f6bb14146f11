"""Cores that may be used on a machine that other processes use too (Stream-Economics Alg. 1, lines 1 to 3).

The paper takes the CPU of others as given; processes that take whatever is left would then get more and more.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats

HEADROOM = 0.95
"""Share of the cores that may be used in all: at full load queues grow without end."""
FAIR = 0.5
"""Share of the cores up to which we keep what we use, whatever other processes use."""
MORE = 1.25
"""Factor by which we may use more than before, up to `FAIR`, while no task is behind."""
ROOMY = 0.85
"""If less than this share of the cores is busy, other processes are not what limits our use."""


def room(cores: float, ours: float, others: float, *, behind: bool) -> float:
    """Return the cores for us: what other processes leave, or about what we use now up to `FAIR`, whichever is more."""
    own = ours * (HEADROOM if behind else MORE)
    return max(HEADROOM * cores - others, min(own, FAIR * cores))


def ceilings(cpu: Floats, held: Floats, cores: float, busy: float) -> Floats:
    """Return the cores that each task can use at most, if it used `cpu` and worked for a share `held` of the time.

    At `ROOMY` or more cores in use the limit is `cores`: other processes may have limited the use.
    """
    if busy >= ROOMY * cores:
        return np.full(len(cpu), float(cores))
    return np.where(held > 0.0, HEADROOM * cpu / np.where(held > 0.0, held, 1.0), float(cores))
