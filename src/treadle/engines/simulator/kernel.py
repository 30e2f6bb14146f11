"""The simulator's event loop: virtual time, queues, and three ways to give nodes the CPU. Compiled by numba.

Cooperative mode is Haren's execution task (Haren, Alg. 1): processors take the best of their own operators, run a batch
of it without interruption, and meet at the end of a period. The other two modes are one kernel scheduler: real-time
nodes by fixed priority and round robin, the rest by weighted virtual runtime within weighted groups, with time slices
and preemption on wake-up. A tuple leaves its queue when it is done, not when it is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from treadle.compiled import compiled

if TYPE_CHECKING:
    from treadle.engines.simulator.state import State

# Defined here and not beside the state, because numba's cache of compiled code is valid while this file is unchanged.
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
FREE_HEAD, FREE, ARRIVAL, RESULTS, GRID_AT, TRACED, SWITCHES, BATCH, PROCESSORS, COOPERATIVE, FLUID, PER_UNIT = range(
    12
)
DECIDED, DRAINING, TURNS, SLEEPERS, TRACING, EVENTS, WOKEN, HEADROOM, STICKING, TALLY_CELLS = range(12, 22)

REACHED, DECIDE, POOL_FULL, RESULTS_FULL, TRACE_FULL, DRAINED = range(6)
EPS = 1e-12
TICK = 1e-15
"""The relative rounding error of the clock, and the minimum remaining work, in seconds, of a tuple that is not done."""


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
            if s.tally[PER_UNIT] and not s.tally[DECIDED] and _choice(s):
                return DECIDE
            _dispatch_cooperative(s)
            s.tally[DECIDED] = 0
        else:
            _dispatch_kernel(s)
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
                _become_ready(s, i)
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running >= 0 and s.processor[p].until <= at:
            s.tally[EVENTS] += 1
            if s.tally[COOPERATIVE]:
                _finish_cooperative(s, p)
            else:
                _finish_kernel(s, p)
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
            _enqueue(s, node, at, 1.0, 0)


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


# ---------------------------------------------------------------- tuples


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
def _enqueue(s: State, node: int, born: float, mass: float, port: int) -> None:
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
        _become_ready(s, node)


@compiled
def _complete(s: State, node: int) -> None:
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
            _enqueue(s, s.consumer[start + turn], born, mass, s.stream[stream].port)


# ---------------------------------------------------------------- chance


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
def _service(s: State, node: int) -> float:
    cost = s.node[node].cost
    if s.node[node].cost_kind == UNIFORM:
        cost *= 1.0 + s.node[node].cost_spread * (2.0 * _uniform(s, node) - 1.0)
    elif s.node[node].cost_kind == EXPONENTIAL:
        cost *= -np.log(1.0 - _uniform(s, node))
    return max(cost * s.item[s.node[node].head].mass, TICK)


@compiled
def _blocking(s: State, node: int) -> float:
    if s.node[node].block_probability > 0.0 and _uniform(s, node) < s.node[node].block_probability:
        return s.node[node].block_seconds * _uniform(s, node)
    return 0.0


@compiled
def _has_room(s: State, node: int) -> bool:
    """Return whether every consumer has room for one more tuple.

    It is checked before a tuple is begun, so several outputs may exceed the capacity.
    """
    for stream in range(s.node[node].first_stream, s.node[node].last_stream):
        at = s.stream[stream].first + s.stream[stream].turn
        if s.node[s.consumer[at]].queued >= s.node[s.consumer[at]].capacity:
            return False
    return True


# ---------------------------------------------------------------- cooperative: Haren's processing threads


@compiled
def _can_run(s: State, node: int) -> bool:
    return s.node[node].queued > 0 and s.node[node].status == IDLE and _has_room(s, node)


@compiled
def _choice(s: State) -> bool:
    for p in range(s.tally[PROCESSORS]):
        if s.processor[p].running < 0:
            for at in range(s.processor[p].first, s.processor[p].last):
                if _can_run(s, s.order[at]):
                    return True
    return False


@compiled
def _dispatch_cooperative(s: State) -> None:
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
        start += _blocking(s, node)  # a thread of the pool sleeps with its operator
        s.node[node].left = _service(s, node)
    s.processor[p].until = start + s.node[node].left


@compiled
def _finish_cooperative(s: State, p: int) -> None:
    node = s.processor[p].running
    s.node[node].busy += s.node[node].left
    s.node[node].left = 0.0
    s.node[node].status = IDLE
    _complete(s, node)
    s.processor[p].batch_left -= 1
    if s.processor[p].batch_left > 0 and _can_run(s, node):
        _begin_cooperative(s, p, node)
    else:
        s.processor[p].running = -1
        s.processor[p].until = np.inf


# ---------------------------------------------------------------- the kernel: real-time, then fair


@compiled
def _become_ready(s: State, node: int) -> None:
    """Make a node ready: it got input, got room for its output, or its sleep has ended."""
    s.node[node].status = READY
    s.node[node].ready_since = s.clock[NOW]
    s.tally[WOKEN] = 1
    s.tally[TURNS] += 1
    s.node[node].turn = s.tally[TURNS]
    _forget_unused(s, node)


@compiled
def _forget_unused(s: State, node: int) -> None:
    """Limit unused CPU time that a node may claim later to one time slice, for whatever reason it was unused."""
    group = s.node[node].group
    s.node[node].virtual = max(s.node[node].virtual, s.group[group].floor - s.node[node].time_slice)
    s.group[group].virtual = max(s.group[group].virtual, s.clock[GROUP_FLOOR] - s.node[node].time_slice)


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
            if s.node[i].left > 0.0 or _has_room(s, i):
                best = i
            else:
                s.node[i].status = STUCK
                s.node[i].waited += s.clock[NOW] - s.node[i].ready_since
                s.tally[STICKING] += 1
    return best


@compiled
def _unstick(s: State) -> None:
    for i in range(len(s.node)):
        if s.node[i].status == STUCK and _has_room(s, i):
            s.tally[STICKING] -= 1
            _become_ready(s, i)


@compiled
def _dispatch_kernel(s: State) -> None:
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
                _account(s, p)
            if worst < 0 or _before(s, s.processor[worst].running, s.processor[p].running):
                worst = p
        if not s.tally[WOKEN]:
            return
        node = _best_ready(s)
        if node < 0 or not _preempts(s, node, s.processor[worst].running):
            s.tally[WOKEN] = 0
            return
        _put_back(s, worst)
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
    _forget_unused(s, node)
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
    asleep = _blocking(s, node)
    s.node[node].left = _service(s, node)
    if asleep > 0.0:
        s.node[node].status = SLEEPING
        s.node[node].wake_at = start + asleep
        s.tally[SLEEPERS] += 1
        _free(s, p)
    else:
        s.processor[p].until = min(start + s.node[node].left, s.processor[p].slice_end)


@compiled
def _free(s: State, p: int) -> None:
    s.processor[p].running = -1
    s.processor[p].until = np.inf


@compiled
def _account(s: State, p: int) -> None:
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
def release(s: State, p: int) -> None:
    """Remove a processor: its node continues elsewhere or later, or, in cooperative mode, begins its tuple again."""
    if s.tally[COOPERATIVE]:
        s.node[s.processor[p].running].status = IDLE
        _free(s, p)
    else:
        _account(s, p)
        _put_back(s, p)


@compiled
def _put_back(s: State, p: int) -> None:
    node = s.processor[p].running
    s.node[node].status = READY
    s.node[node].ready_since = s.clock[NOW]
    _free(s, p)


@compiled
def _finish_kernel(s: State, p: int) -> None:
    """Handle the end of a tuple, of a time slice, or of both."""
    node = s.processor[p].running
    _account(s, p)
    now = s.clock[NOW]
    if s.node[node].left <= max(EPS, now * TICK):
        s.node[node].left = 0.0
        _complete(s, node)
        if s.node[node].queued == 0:
            s.node[node].status = IDLE
            _free(s, p)
            return
        if not _has_room(s, node):
            _put_back(s, p)
            return
        if now < s.processor[p].slice_end - EPS:
            _begin_tuple(s, p, now)
            return
    elif now < s.processor[p].slice_end - EPS:
        s.processor[p].until = min(now + s.node[node].left, s.processor[p].slice_end)
        return
    s.tally[TURNS] += 1
    s.node[node].turn = s.tally[TURNS]
    _put_back(s, p)
