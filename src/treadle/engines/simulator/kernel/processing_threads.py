"""The simulator's cooperative mode, compiled by numba: Haren's execution task (Haren, Alg. 1).

Processors take the best of their own operators, run a batch of it without interruption, and meet at the end of a
period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.compiled import compiled
from treadle.engines.simulator.kernel.cells import (
    BATCH,
    DELAY,
    DRAINING,
    IDLE,
    NOW,
    PROCESSORS,
    RUNNING,
    SWITCH_COST,
    SWITCHES,
)
from treadle.engines.simulator.kernel.queues import blocking, complete, has_room, service

if TYPE_CHECKING:
    from treadle.engines.simulator.state import State


@compiled
def _can_run(s: State, node: int) -> bool:
    return s.node[node].queued > 0 and s.node[node].status == IDLE and has_room(s, node)


@compiled
def can_choose(s: State) -> bool:
    """Return whether a processor is free and has an operator that can run."""
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running < 0:
            for at in range(s.processor[p].first, s.processor[p].last):
                if _can_run(s, s.order[at]):
                    return True
    return False


@compiled
def dispatch_cooperative(s: State) -> None:
    """Let each free processor begin a batch, but none while all of them go to the barrier."""
    if s.tally[DRAINING]:
        return
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running < 0:
            node = _pick_cooperative(s, p)
            if node >= 0:
                s.processor[p].batch_left = s.tally[BATCH]
                _begin_cooperative(s, p, node)


@compiled
def _pick_cooperative(s: State, p: int) -> int:
    """Pick the next node of a processor as Haren's Alg. 1; -1 if none can run.

    First, after a scheduling phase, nodes that did not run for the delay; next, nodes with the rank of the last one
    that ran; finally, the node with the best rank.
    """
    first, last = s.processor[p].first, s.processor[p].last
    if s.clock[DELAY] > 0.0:
        while s.processor[p].catch_up < last:
            node = s.order[s.processor[p].catch_up]
            s.processor[p].catch_up += 1
            if s.clock[NOW] - s.node[node].last_run > s.clock[DELAY] and _can_run(s, node):
                return node
    at = s.processor[p].cursor
    if first < at < last and s.node[s.order[at]].rank == s.node[s.order[at - 1]].rank:
        rank = s.node[s.order[at - 1]].rank
        while at < last and s.node[s.order[at]].rank == rank:
            if s.node[s.order[at]].queued > 0 and _can_run(s, s.order[at]):  # most are empty, and calls cost time
                s.processor[p].cursor = at + 1
                return s.order[at]
            at += 1
    for top in range(first, last):
        if s.node[s.order[top]].queued > 0 and _can_run(s, s.order[top]):
            s.processor[p].cursor = top + 1
            return s.order[top]
    s.processor[p].cursor = first
    return -1


@compiled
def _begin_cooperative(s: State, p: int, node: int) -> None:
    start = s.clock[NOW]
    if s.processor[p].last_node != node:
        start += s.clock[SWITCH_COST]
        s.tally[SWITCHES] += 1
        s.processor[p].last_node = node
    s.processor[p].running = node
    s.node[node].status = RUNNING
    if s.node[node].left <= 0.0:
        start += blocking(s, node)  # a thread of the pool sleeps with its operator
        s.node[node].left = service(s, node)
    s.processor[p].until = start + s.node[node].left


@compiled
def finish_cooperative(s: State, p: int) -> None:
    """Handle the end of a tuple: go on with the batch, or free the processor."""
    node = s.processor[p].running
    s.node[node].busy += s.node[node].left
    s.node[node].left = 0.0
    s.node[node].status = IDLE
    complete(s, node)
    s.processor[p].batch_left -= 1
    if s.processor[p].batch_left > 0 and _can_run(s, node):
        _begin_cooperative(s, p, node)
    else:
        s.processor[p].running = -1
        s.processor[p].until = np.inf
