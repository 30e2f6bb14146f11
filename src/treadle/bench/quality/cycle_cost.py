"""The cost of a cycle of the quality controller by number of tasks, a figure of Stream-Economics section 7.4.

Each application has five tasks, two of them sinks. Each worker has more work than it can do.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from treadle.decide.quality import Controller, Flow, Measured, Promise

WARM_UP = 3
"""Cycles that are not timed: the first compiles, or loads compiled code."""
PRIORITIES = 5
ON_A_WORKER = 40


def cycle_ms(tasks: int, cycles: int, seed: int = 1) -> float:
    """Return the median CPU milliseconds of a cycle, from the measurements to the share that each stream keeps."""
    random = np.random.default_rng(seed)
    flow = _flow(tasks, random)
    controller = Controller(flow)
    took = []
    for number in range(WARM_UP + cycles):
        seen = _measured(len(flow), 5.0 * number, random)
        began = time.process_time()
        controller.cycle(seen)
        took.append(time.process_time() - began)
    return 1e3 * statistics.median(took[WARM_UP:])


def _flow(tasks: int, random: np.random.Generator) -> Flow:
    """Build a flow of `tasks // 5` applications: a source, two operators, a sink of both, a sink of the second."""
    inputs: dict[str, tuple[str, ...]] = {}
    promises: dict[str, Promise] = {}
    for number in range(max(1, tasks // 5)):
        source, left, right, both, one = (f"{name}{number}" for name in ("source", "left", "right", "both", "one"))
        inputs |= {source: (), left: (source,), right: (source,), both: (left, right), one: (right,)}
        for sink, least in ((both, 0.3), (one, 0.5)):
            promises[sink] = Promise(int(random.integers(PRIORITIES)), least)
    return Flow.of(inputs, promises)


def _measured(tasks: int, now: float, random: np.random.Generator) -> Measured:
    workers = max(1, tasks // ON_A_WORKER)
    return Measured(
        time=now,
        in_rate=random.uniform(50.0, 100.0, tasks),
        out_rate=random.uniform(80.0, 100.0, tasks),
        arriving=np.full(tasks, 100.0),
        waiting=random.uniform(0.0, 100.0, tasks),
        cpu=random.uniform(0.01, 0.04, tasks),
        worker=np.arange(tasks) % workers,
        busy=np.full(workers, 0.95),
        cores=np.ones(workers),
    )
