"""The cells of the simulator's state, and the codes in them, by name. Compiled code has them as constants."""

from __future__ import annotations

import numpy as np

UNBOUNDED = np.iinfo(np.int64).max // 2
MOST_PROCESSORS = 64
MOST_COPIES = 1000
"""The maximum number of outputs of a tuple, so that one event needs a bounded number of pool entries."""

CONSTANT, UNIFORM, EXPONENTIAL = 0, 1, 2
BERNOULLI, POISSON, EVEN = 0, 1, 2
IDLE, READY, RUNNING, SLEEPING, STUCK = 0, 1, 2, 3, 4
"""The status of a node. STUCK: it has input, but no room for its output; it does not wait for a processor."""

# cells of State.clock
NOW, TOTAL, AREA, PEAK, GRID, OUTPUT, LATENCY_SUM, OUTPUT_SUM = range(8)
SWITCH_COST, WAKE_GRAIN, DELAY, RR_SLICE, GROUP_FLOOR, CLOCK_CELLS = range(8, 14)
# cells of State.tally
FREE_HEAD, FREE, ARRIVAL, RESULTS, GRID_AT, TRACED, SWITCHES, BATCH = range(8)
PROCESSORS, COOPERATIVE, FLUID, PER_UNIT = range(8, 12)
DECIDED, DRAINING, TURNS, SLEEPERS, TRACING, EVENTS, WOKEN, HEADROOM, STICKING, TALLY_CELLS = range(12, 22)

REACHED, DECIDE, POOL_FULL, RESULTS_FULL, TRACE_FULL, DRAINED = range(6)
EPS = 1e-12
TICK = 1e-15
"""The relative rounding error of the clock, and the minimum remaining work, in seconds, of a tuple that is not done."""
