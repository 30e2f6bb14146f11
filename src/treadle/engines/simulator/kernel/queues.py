"""The simulator's queues, compiled by numba: how a tuple enters one, leaves it when it is done, and goes on.

Also the random numbers that decide how many outputs a tuple has and how much work it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.compiled import compiled
from treadle.engines.simulator.kernel.cells import (
    BERNOULLI,
    COOPERATIVE,
    EPS,
    EVEN,
    EXPONENTIAL,
    FLUID,
    FREE,
    FREE_HEAD,
    GROUP_FLOOR,
    IDLE,
    LATENCY_SUM,
    MOST_COPIES,
    NOW,
    OUTPUT,
    OUTPUT_SUM,
    PEAK,
    READY,
    RESULTS,
    TICK,
    TOTAL,
    TURNS,
    UNIFORM,
    WOKEN,
)

if TYPE_CHECKING:
    from treadle.engines.simulator.state import State


@compiled
def _take(s: State, born: float, mass: float, port: int) -> int:
    item = s.tally[FREE_HEAD]
    s.tally[FREE_HEAD] = s.item[item].link
    s.tally[FREE] -= 1
    s.item[item].link = -1
    s.item[item].born = born
    s.item[item].mass = mass
    s.item[item].port = port
    return item


@compiled
def _give_back(s: State, item: int) -> None:
    s.item[item].link = s.tally[FREE_HEAD]
    s.tally[FREE_HEAD] = item
    s.tally[FREE] += 1


@compiled
def enqueue(s: State, node: int, born: float, mass: float, port: int) -> None:
    """Append a tuple to the queue of a node, which wakes up if it was idle."""
    item = _take(s, born, mass, port)
    if s.node[node].tail < 0:
        s.node[node].head = item
    else:
        s.item[s.node[node].tail].link = item
    s.node[node].tail = item
    s.node[node].queued += 1
    s.node[node].queued_mass += mass
    s.node[node].born_sum += born * mass
    s.node[node].arrived += 1
    s.clock[TOTAL] += mass
    s.clock[PEAK] = max(s.clock[PEAK], s.clock[TOTAL])
    if s.node[node].status == IDLE and not s.tally[COOPERATIVE]:
        become_ready(s, node)


@compiled
def complete(s: State, node: int) -> None:
    """Finish the tuple at the head: it leaves its queue, and its outputs go to every consumer, or out."""
    item = s.node[node].head
    born, mass, port = s.item[item].born, s.item[item].mass, s.item[item].port
    s.node[node].head = s.item[item].link
    if s.node[node].head < 0:
        s.node[node].tail = -1
    s.node[node].queued -= 1
    s.node[node].queued_mass = s.node[node].queued_mass - mass if s.node[node].queued else 0.0
    s.node[node].born_sum = s.node[node].born_sum - born * mass if s.node[node].queued else 0.0
    s.clock[TOTAL] -= mass
    s.node[node].done += 1
    s.node[node].done_mass += mass
    s.node[node].last_run = s.clock[NOW]
    _give_back(s, item)
    yielded = s.node[node].selectivity
    if s.node[node].window > 0.0:
        yielded *= _matches(s, node, born, mass, port)
    if s.tally[FLUID]:
        _emit(s, node, born, mass * yielded, 1)
    else:
        _emit(s, node, born, 1.0, _copies(s, node, yielded))


@compiled
def _matches(s: State, node: int, born: float, mass: float, port: int) -> float:
    """Window join: return the mass of the other side born within the window, and keep this tuple for later matches.

    Each side arrives in order of birth, but one side may be behind: tuples of the other side that are too young stay.
    """
    other = 2 * node + 1 - port
    item = s.side[other].head
    while item >= 0 and s.item[item].born < born - s.node[node].window:
        s.side[other].head = s.item[item].link
        s.side[other].mass -= s.item[item].mass
        _give_back(s, item)
        item = s.side[other].head
    if item < 0:
        s.side[other].tail = -1
        s.side[other].mass = 0.0
    own = 2 * node + port
    kept = _take(s, born, mass, port)
    if s.side[own].tail < 0:
        s.side[own].head = kept
    else:
        s.item[s.side[own].tail].link = kept
    s.side[own].tail = kept
    s.side[own].mass += mass
    if item < 0 or s.item[s.side[other].tail].born <= born + s.node[node].window:
        return s.side[other].mass
    matching = 0.0
    while item >= 0 and s.item[item].born <= born + s.node[node].window:
        matching += s.item[item].mass
        item = s.item[item].link
    return matching


@compiled
def _emit(s: State, node: int, born: float, mass: float, copies: int) -> None:
    if copies == 0 or mass <= 0.0:
        return
    s.node[node].emitted_mass += mass * copies
    first, last = s.node[node].first_stream, s.node[node].last_stream
    if first == last:
        row = s.tally[RESULTS]
        s.result[row].time = s.clock[NOW]
        s.result[row].born = born
        s.result[row].mass = mass * copies
        s.result[row].node = node
        s.tally[RESULTS] += 1
        s.clock[OUTPUT] += mass * copies
        s.clock[OUTPUT_SUM] += mass * copies
        s.clock[LATENCY_SUM] += mass * copies * (s.clock[NOW] - born)
        return
    for stream in range(first, last):
        start, size = s.stream[stream].first, s.stream[stream].size
        for _ in range(copies):
            turn = s.stream[stream].turn
            s.stream[stream].turn = turn + 1 if turn + 1 < size else 0
            enqueue(s, s.consumer[start + turn], born, mass, s.stream[stream].port)


@compiled
def become_ready(s: State, node: int) -> None:
    """Make a node ready: it got input, got room for its output, or its sleep has ended."""
    s.node[node].status = READY
    s.node[node].ready_since = s.clock[NOW]
    s.tally[WOKEN] = 1
    s.tally[TURNS] += 1
    s.node[node].turn = s.tally[TURNS]
    forget_unused(s, node)


@compiled
def forget_unused(s: State, node: int) -> None:
    """Limit unused CPU time that a node may claim later to one time slice, for whatever reason it was unused."""
    group = s.node[node].group
    s.node[node].virtual = max(s.node[node].virtual, s.group[group].floor - s.node[node].time_slice)
    s.group[group].virtual = max(s.group[group].virtual, s.clock[GROUP_FLOOR] - s.node[node].time_slice)


@compiled
def _uniform(s: State, node: int) -> float:
    """splitmix64 with a stream per node: the k-th tuple of a node gets the same random numbers under every policy."""
    z = s.node[node].random + np.uint64(0x9E3779B97F4A7C15)
    s.node[node].random = z
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def _copies(s: State, node: int, mean: float) -> int:
    kind = s.node[node].selectivity_kind
    if kind == BERNOULLI:
        whole = int(mean)
        return min(whole + (1 if _uniform(s, node) < mean - whole else 0), MOST_COPIES)
    if kind == EVEN:
        s.node[node].carry += mean
        whole = int(s.node[node].carry + EPS)
        s.node[node].carry -= whole
        return min(whole, MOST_COPIES)
    waited, copies = -np.log(_uniform(s, node)), 0
    while waited < mean and copies < MOST_COPIES:
        waited -= np.log(_uniform(s, node))
        copies += 1
    return copies


@compiled
def service(s: State, node: int) -> float:
    """Draw the work of the tuple at the head of a queue, in seconds."""
    cost = s.node[node].cost
    if s.node[node].cost_kind == UNIFORM:
        cost *= 1.0 + s.node[node].cost_spread * (2.0 * _uniform(s, node) - 1.0)
    elif s.node[node].cost_kind == EXPONENTIAL:
        cost *= -np.log(1.0 - _uniform(s, node))
    return max(cost * s.item[s.node[node].head].mass, TICK)


@compiled
def blocking(s: State, node: int) -> float:
    """Draw for how many seconds a node sleeps before its next tuple."""
    if s.node[node].block_probability > 0.0 and _uniform(s, node) < s.node[node].block_probability:
        return s.node[node].block_seconds * _uniform(s, node)
    return 0.0


@compiled
def has_room(s: State, node: int) -> bool:
    """Return whether every consumer has room for one more tuple.

    It is checked before a tuple is begun, so several outputs may exceed the capacity.
    """
    for stream in range(s.node[node].first_stream, s.node[node].last_stream):
        at = s.stream[stream].first + s.stream[stream].turn
        if s.node[s.consumer[at]].queued >= s.node[s.consumer[at]].capacity:
            return False
    return True
