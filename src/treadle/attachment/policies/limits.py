"""The limits of the kernel's numbers: how far apart priorities may put two threads or two CPU groups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WIDEST = 100.0
"""The maximum ratio of the weights that users' priorities give to two threads or groups, unless a user gives wider
limits. So a query without a priority keeps at least a hundredth of the weight of the most important query."""
STEPS = 20
"""The maximum difference in nice that users' priorities make: 20 steps are a ratio of 87, just within `WIDEST`."""
NICEST = (-20.0, 19.0)
FINE = {1: {"low": 1024.0}, 2: {"low": 100.0}}
"""By cgroup version: the lower limit of shares (v1) or weights (v2). Numbers are integers, and from this limit on a
ratio of up to `WIDEST` is exact to a percent."""


def limits_of(options: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lower and upper limit of an enforcer's values. Without a user's limits, nice has its whole range."""
    low, high = options["low"], options["high"]
    return (low if low > -math.inf else NICEST[0]), (high if high < math.inf else NICEST[1])
