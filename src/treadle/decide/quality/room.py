"""How many cores may be given away where others use the machine too (Stream-Economics Alg. 1, lines 1 to 3).

It knows numbers only. The paper takes what others use for given; those who take just what is left would then get more
and more of it.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Floats

HEADROOM = 0.95
"""The part of what there is that is given away: a load that is exactly as high has queues without end."""
FAIR = 0.5
"""The part of the cores up to which others don't count who use what they can get."""
MORE = 1.25
"""As many times what was used is tried there, while nothing is behind."""
ROOMY = 0.85
"""Below this busy part of the cores one that is always busy is held up by itself, not by others."""


def room(cores: float, ours: float, others: float, *, behind: bool) -> float:
    """Of so many cores: what others leave, or up to a fair part what we get anyway."""
    own = ours * (HEADROOM if behind else MORE)
    return max(HEADROOM * cores - others, min(own, FAIR * cores))


def ceilings(cpu: Floats, held: Floats, cores: float, busy: float) -> Floats:
    """The cores that each can use at most, where it used `cpu` while it was at work for the part `held` of the time."""
    if busy >= ROOMY * cores:
        return np.full(len(cpu), float(cores))
    return np.where(held > 0.0, HEADROOM * cpu / np.where(held > 0.0, held, 1.0), float(cores))
