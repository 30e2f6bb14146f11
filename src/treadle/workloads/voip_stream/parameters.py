"""The parameters of VoipStream, which `reference` and `steps` share. They are DSPBench's, if nothing else is said.

Times are event time, in whole seconds. Where the original used Bloom filters, which forget by chance, there is exact
state here, which forgets at stated ages.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Decay(NamedTuple):
    """How a counter decays: by the factor `beta` each second. After `forget` seconds of silence it starts from zero."""

    beta: float
    forget: int

    @property
    def weight(self) -> float:
        """What one unit adds. With this weight a counter approaches the rate of its units per second."""
        return math.log(1 / self.beta)


FAST = Decay(0.9672, 150)
"""Decay of ecr, encr and rcr. The time constant is 30 s, and a counter is forgotten after five of them (0.7 %)."""
SLOW = Decay(0.9917, 600)
"""Decay of ct24 and ecr24. The time constant is 120 s, and a counter is forgotten after five of them."""
ALPHA = 2 / 86_401
"""Weight of one call in the average duration of all calls (global_acd)."""
WARM_UP = 10
"""The average duration is a plain mean for the first calls, and exponentially weighted after them."""
FOFIR, URL, ACD = (2.0, 10.0), (0.5, 1.0), (5.0, 10.0)
"""Ratios for which the partial scores are 0 and 1."""
WEIGHTS = (2.0, 3.0, 3.0)
"""Weights of FoFiR, URL and ACD in the score, whose highest value is 8."""
REMEMBERED = 60
"""A pair of numbers counts as new if it has had no call for longer than this. The original's filters were exchanged
after about 319,000 calls; at the default call rate, this is after 60,000 calls."""
TIMEOUT = 60
"""A call that waits for a partner is given up when all inputs have passed it by more than this."""
LAG = 3600
"""An input that is this far behind the others, or silent, is not waited for, so that the number of waiting calls is
bounded."""
RESTART = 1
"""Calls are read in the order of their answer times. Times that jump back by more than this are those of a recording
that is played again from its beginning."""
