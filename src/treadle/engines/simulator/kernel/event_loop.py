"""The simulator's event loop, compiled by numba: virtual time, and what happens next.

Nodes get the CPU from `processing_threads` (cooperative mode) or from `os_scheduler` (both other modes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.compiled import compiled
from treadle.engines.simulator.kernel.cells import (
    AREA,
    ARRIVAL,
    COOPERATIVE,
    DECIDE,
    DECIDED,
    DRAINED,
    DRAINING,
    EVENTS,
    FREE,
    GRID,
    GRID_AT,
    HEADROOM,
    IDLE,
    MOST_PROCESSORS,
    NOW,
    OUTPUT,
    PER_UNIT,
    POOL_FULL,
    PROCESSORS,
    REACHED,
    RESULTS,
    RESULTS_FULL,
    SLEEPERS,
    SLEEPING,
    TOTAL,
    TRACE_FULL,
    TRACED,
    TRACING,
)
from treadle.engines.simulator.kernel.os_scheduler import account, dispatch_kernel, finish_kernel, free, put_back
from treadle.engines.simulator.kernel.processing_threads import can_choose, dispatch_cooperative, finish_cooperative
from treadle.engines.simulator.kernel.queues import become_ready, enqueue

if TYPE_CHECKING:
    from treadle.engines.simulator.state import State


@compiled
def advance(s: State, end: float) -> int:
    """Advance virtual time to `end` (REACHED), or until Python has something to do; return the code of what happened.

    DRAINED: all arrivals are processed, and nothing more can happen.
    """
    if s.tally[DRAINING]:  # Python had something to do while the last batches ended
        end = np.inf
    while True:
        if s.tally[FREE] < s.tally[HEADROOM]:
            return POOL_FULL
        if s.tally[RESULTS] > len(s.result) - MOST_PROCESSORS:
            return RESULTS_FULL
        if s.tally[TRACING] and s.tally[TRACED] >= len(s.trace):
            return TRACE_FULL
        if s.tally[COOPERATIVE]:
            if s.tally[PER_UNIT] and not s.tally[DECIDED] and can_choose(s):
                return DECIDE
            dispatch_cooperative(s)
            s.tally[DECIDED] = 0
        else:
            dispatch_kernel(s)
        at = _next_event(s)
        if at == np.inf and not s.tally[DRAINING]:
            pass_time(s, end if end < np.inf else s.clock[NOW])
            return DRAINED
        if at > end:
            pass_time(s, end)
            if not s.tally[COOPERATIVE] or s.tally[PER_UNIT]:
                return REACHED
            s.tally[DRAINING] = 1  # period over: running batches end, none begins (Haren's barrier)
            if _all_idle(s):
                return _leave_barrier(s)
            end = np.inf
            continue
        pass_time(s, at)
        _events_at(s, at)
        if s.tally[TRACING]:
            _trace(s)
        if s.tally[DRAINING] and _all_idle(s):
            return _leave_barrier(s)


@compiled
def _leave_barrier(s: State) -> int:
    s.tally[DRAINING] = 0
    for p in range(s.tally[PROCESSORS]):
        s.processor[p].cursor = s.processor[p].first
        s.processor[p].catch_up = s.processor[p].first
    return REACHED


@compiled
def _all_idle(s: State) -> bool:
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running >= 0:
            return False
    return True


@compiled
def _next_event(s: State) -> float:
    at = np.inf
    if s.tally[ARRIVAL] < len(s.arrival):
        at = s.arrival[s.tally[ARRIVAL]].time
    for p in range(s.tally[PROCESSORS]):
        at = min(at, s.processor[p].until)
    if s.tally[SLEEPERS] > 0:
        for i in range(len(s.node)):
            if s.node[i].status == SLEEPING:
                at = min(at, s.node[i].wake_at)
    return at


@compiled
def pass_time(s: State, to: float) -> None:
    """Move the clock. Add to the integral of the number of queued tuples, and sample this number on a fixed grid."""
    c = s.clock
    if to <= c[NOW]:
        return
    c[AREA] += c[TOTAL] * (to - c[NOW])
    while s.tally[GRID_AT] < len(s.memory) and s.tally[GRID_AT] * c[GRID] <= to:
        s.memory[s.tally[GRID_AT]] = c[TOTAL]
        s.tally[GRID_AT] += 1
    c[NOW] = to


@compiled
def _events_at(s: State, at: float) -> None:
    if s.tally[SLEEPERS] > 0:
        for i in range(len(s.node)):
            if s.node[i].status == SLEEPING and s.node[i].wake_at <= at:
                s.tally[SLEEPERS] -= 1
                become_ready(s, i)
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running >= 0 and s.processor[p].until <= at:
            s.tally[EVENTS] += 1
            if s.tally[COOPERATIVE]:
                finish_cooperative(s, p)
            else:
                finish_kernel(s, p)
    while s.tally[ARRIVAL] < len(s.arrival) and s.arrival[s.tally[ARRIVAL]].time <= at:
        node = s.arrival[s.tally[ARRIVAL]].node
        s.tally[ARRIVAL] += 1
        s.tally[EVENTS] += 1
        if node < 0:
            continue
        if s.node[node].queued >= s.node[node].capacity:
            s.node[node].arrived += 1
            s.node[node].dropped += 1
        else:
            enqueue(s, node, at, 1.0, 0)


@compiled
def _trace(s: State) -> None:
    """Add a line to the trace, or replace the line of the same time: time, queue of each node, all output so far."""
    row = s.tally[TRACED]
    if row > 0 and s.trace[row - 1, 0] == s.clock[NOW]:
        row -= 1
    else:
        s.tally[TRACED] += 1
    n = len(s.node)
    s.trace[row, 0] = s.clock[NOW]
    for i in range(n):
        s.trace[row, 1 + i] = s.node[i].queued_mass
    s.trace[row, n + 1] = s.clock[OUTPUT]


@compiled
def release(s: State, p: int) -> None:
    """Remove a processor: its node continues elsewhere or later, or, in cooperative mode, begins its tuple again."""
    if s.tally[COOPERATIVE]:
        s.node[s.processor[p].running].status = IDLE
        free(s, p)
    else:
        account(s, p)
        put_back(s, p)
