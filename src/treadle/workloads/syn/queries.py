"""Lachesis' synthetic queries (SYN, section 6.3): chains of three operators that differ in cost and in what they keep.

All queries read the same number of rows. Some are cheap and productive, others are cheap and drop most rows. So a
policy for early results (HR) and a policy for short queues (Chain) must choose different orders. The values are drawn
by the paper's own generator with seed 0.
"""

from __future__ import annotations

import numpy as np

from treadle.enforce.gate.slots import usable_cores
from treadle.workloads.multi_class import Chain

STEP = 25e-9
"""CPU seconds per unit of the paper's costs: with less, cheap queries would cost less than Spark's per-row work."""
DRAWN = (
    ((416, 0.892), (386, 0.801), (416, 0.839)),
    ((5812, 0.894), (6551, 0.944), (6680, 0.962)),
    ((2998, 0.237), (3252, 0.206), (3302, 0.213)),
    ((3264, 1.0), (3401, 1.0), (3277, 0.896)),
    ((1606, 0.727), (1698, 0.736), (1747, 0.82)),
    ((3033, 0.313), (3108, 0.3), (3126, 0.349)),
    ((754, 1.0), (809, 0.861), (790, 0.893)),
    ((6068, 0.212), (5994, 0.233), (6419, 0.203)),
    ((3488, 0.801), (2953, 0.74), (3247, 0.899)),
    ((804, 0.327), (800, 0.361), (871, 0.36)),
    ((374, 0.291), (431, 0.295), (396, 0.282)),
    ((13109, 0.251), (13836, 0.297), (13106, 0.263)),
    ((7035, 0.689), (6441, 0.749), (6014, 0.647)),
    ((6206, 0.303), (6667, 0.273), (6948, 0.272)),
    ((6974, 0.973), (6527, 0.885), (5947, 0.98)),
    ((1737, 0.576), (1514, 0.61), (1575, 0.578)),
    ((13934, 1.0), (12518, 0.963), (11831, 0.945)),
    ((1571, 0.353), (1506, 0.374), (1715, 0.327)),
    ((3306, 0.498), (3055, 0.498), (3000, 0.554)),
    ((14058, 0.634), (13302, 0.674), (12893, 0.605)),
)
"""For each query: the cost (in the paper's units) and the selectivity of each operator; 1.0 keeps all rows."""


def chains(unit: float, load: float, count: int = len(DRAWN), *, cores: float | None = None) -> tuple[Chain, ...]:
    """The first `count` queries. `unit` is the seconds of one burn (`burn.calibrate`), `load` a share of all cores."""
    burns = [tuple(max(1, round(cost * STEP / unit)) for cost, _ in query) for query in DRAWN[:count]]
    keeps = [tuple(keep for _, keep in query) for query in DRAWN[:count]]
    reach = [np.cumprod([1.0, *each[:-1]]) for each in keeps]
    cost = sum(float(np.dot(burn, part)) * unit for burn, part in zip(burns, reach, strict=True))
    rate = load * (cores or usable_cores()) / cost
    pairs = enumerate(zip(burns, keeps, strict=True))
    return tuple(Chain(f"q{number}", False, rate, burn, keep, whole=True) for number, (burn, keep) in pairs)
