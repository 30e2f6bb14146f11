"""The simulated scheduler of an operating system, compiled by numba: real-time nodes first, then fair shares.

Real-time nodes run by fixed priority and round robin, the rest by weighted virtual runtime within weighted groups, with
time slices and preemption on wake-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.compiled import compiled
from treadle.engines.simulator.kernel.cells import (
    EPS,
    GROUP_FLOOR,
    IDLE,
    NOW,
    PROCESSORS,
    READY,
    RR_SLICE,
    RUNNING,
    SLEEPERS,
    SLEEPING,
    STICKING,
    STUCK,
    SWITCH_COST,
    SWITCHES,
    TICK,
    TURNS,
    WAKE_GRAIN,
    WOKEN,
)
from treadle.engines.simulator.kernel.queues import become_ready, blocking, complete, forget_unused, has_room, service

if TYPE_CHECKING:
    from treadle.engines.simulator.state import State


@compiled
def _before(s: State, a: int, b: int) -> bool:
    """Return whether the kernel runs a before b."""
    if s.node[a].realtime != s.node[b].realtime:
        return bool(s.node[a].realtime > s.node[b].realtime)
    if s.node[a].realtime > 0:
        return bool(s.node[a].turn < s.node[b].turn)
    if s.node[a].group != s.node[b].group:
        return bool(s.group[s.node[a].group].virtual < s.group[s.node[b].group].virtual)
    return bool(s.node[a].virtual < s.node[b].virtual)


@compiled
def _best_ready(s: State) -> int:
    best = -1
    for i in range(len(s.node)):
        if s.node[i].status == READY and (best < 0 or _before(s, i, best)):
            if s.node[i].left > 0.0 or has_room(s, i):
                best = i
            else:
                s.node[i].status = STUCK
                s.node[i].waited += s.clock[NOW] - s.node[i].ready_since
                s.tally[STICKING] += 1
    return best


@compiled
def _unstick(s: State) -> None:
    for i in range(len(s.node)):
        if s.node[i].status == STUCK and has_room(s, i):
            s.tally[STICKING] -= 1
            become_ready(s, i)


@compiled
def dispatch_kernel(s: State) -> None:
    """Give idle processors the best ready nodes; after a wake-up, the best ready node may preempt the worst running."""
    if s.tally[STICKING] > 0:
        _unstick(s)
    while True:
        worst = -1
        for p in range(s.tally[PROCESSORS]):
            while s.processor[p].running < 0:
                node = _best_ready(s)
                if node < 0:
                    s.tally[WOKEN] = 0
                    return
                _begin_kernel(s, p, node)
            if s.tally[WOKEN]:
                account(s, p)
            if worst < 0 or _before(s, s.processor[worst].running, s.processor[p].running):
                worst = p
        if not s.tally[WOKEN]:
            return
        node = _best_ready(s)
        if node < 0 or not _preempts(s, node, s.processor[worst].running):
            s.tally[WOKEN] = 0
            return
        put_back(s, worst)
        _begin_kernel(s, worst, node)


@compiled
def _preempts(s: State, node: int, running: int) -> bool:
    if s.node[node].realtime != s.node[running].realtime:
        return bool(s.node[node].realtime > s.node[running].realtime)
    if s.node[node].realtime > 0:
        return False
    lead = s.node[running].virtual - s.node[node].virtual
    if s.node[node].group != s.node[running].group:
        lead = s.group[s.node[running].group].virtual - s.group[s.node[node].group].virtual
    return bool(lead > s.clock[WAKE_GRAIN])


@compiled
def _begin_kernel(s: State, p: int, node: int) -> None:
    now = s.clock[NOW]
    s.node[node].waited += now - s.node[node].ready_since
    start = now
    if s.processor[p].last_node != node:
        start += s.clock[SWITCH_COST]
        s.tally[SWITCHES] += 1
        s.processor[p].last_node = node
    s.processor[p].running = node
    s.node[node].status = RUNNING
    s.processor[p].accounted = start
    forget_unused(s, node)
    group = s.node[node].group
    s.group[group].floor = max(s.group[group].floor, s.node[node].virtual)
    s.clock[GROUP_FLOOR] = max(s.clock[GROUP_FLOOR], s.group[group].virtual)
    s.processor[p].slice_end = start + (s.clock[RR_SLICE] if s.node[node].realtime > 0 else s.node[node].time_slice)
    if s.node[node].left <= 0.0:
        _begin_tuple(s, p, start)
    else:
        s.processor[p].until = min(start + s.node[node].left, s.processor[p].slice_end)


@compiled
def _begin_tuple(s: State, p: int, start: float) -> None:
    node = s.processor[p].running
    asleep = blocking(s, node)
    s.node[node].left = service(s, node)
    if asleep > 0.0:
        s.node[node].status = SLEEPING
        s.node[node].wake_at = start + asleep
        s.tally[SLEEPERS] += 1
        free(s, p)
    else:
        s.processor[p].until = min(start + s.node[node].left, s.processor[p].slice_end)


@compiled
def free(s: State, p: int) -> None:
    """Leave a processor without a node."""
    s.processor[p].running = -1
    s.processor[p].until = np.inf


@compiled
def account(s: State, p: int) -> None:
    """Charge a processor's running node for the time since it was last charged."""
    node = s.processor[p].running
    spent = s.clock[NOW] - s.processor[p].accounted
    if node < 0 or spent <= 0.0:
        return
    s.processor[p].accounted = s.clock[NOW]
    s.node[node].busy += spent
    s.node[node].left = max(s.node[node].left - spent, TICK)  # not done before its end event
    if s.node[node].realtime == 0:
        s.node[node].virtual += spent * 1024.0 / s.node[node].weight
        s.group[s.node[node].group].virtual += spent * 1024.0 / s.group[s.node[node].group].weight


@compiled
def put_back(s: State, p: int) -> None:
    """Take the running node off a processor; it is ready to go on."""
    node = s.processor[p].running
    s.node[node].status = READY
    s.node[node].ready_since = s.clock[NOW]
    free(s, p)


@compiled
def finish_kernel(s: State, p: int) -> None:
    """Handle the end of a tuple, of a time slice, or of both."""
    node = s.processor[p].running
    account(s, p)
    now = s.clock[NOW]
    if s.node[node].left <= max(EPS, now * TICK):
        s.node[node].left = 0.0
        complete(s, node)
        if s.node[node].queued == 0:
            s.node[node].status = IDLE
            free(s, p)
            return
        if not has_room(s, node):
            put_back(s, p)
            return
        if now < s.processor[p].slice_end - EPS:
            _begin_tuple(s, p, now)
            return
    elif now < s.processor[p].slice_end - EPS:
        s.processor[p].until = min(now + s.node[node].left, s.processor[p].slice_end)
        return
    s.tally[TURNS] += 1
    s.node[node].turn = s.tally[TURNS]
    put_back(s, p)
