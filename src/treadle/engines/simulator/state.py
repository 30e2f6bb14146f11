"""The simulator's state: arrays of records, so that the compiled kernel and numpy use the same numbers.

A *node* has a queue and a thread: the main thread of an instance, or its helper thread, which moves the output. A
queued tuple is an entry of one pool of linked lists, with the time at which it was born (arrived from outside), its
mass (1, or a fraction where the plan is fluid), and its input port.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.engines.simulator.kernel.cells import (
    BATCH,
    BERNOULLI,
    CLOCK_CELLS,
    CONSTANT,
    COOPERATIVE,
    DELAY,
    FLUID,
    FREE,
    FREE_HEAD,
    GRID,
    HEADROOM,
    MOST_COPIES,
    MOST_PROCESSORS,
    NOW,
    PER_UNIT,
    PROCESSORS,
    RR_SLICE,
    SWITCH_COST,
    TALLY_CELLS,
    TRACING,
    UNBOUNDED,
    WAKE_GRAIN,
)
from treadle.errors import ConfigError
from treadle.model import Floats, Ints

POOL_AT_START = 1 << 14
RESULTS_AT_ONCE = 1 << 16
MOST_QUEUED = 1 << 25
"""Maximum number of entries of the pool of queued tuples: about a gigabyte."""


@dataclass(frozen=True)
class NodeSpec:
    """The parameters of a node. Each of `streams` is (consumer nodes, input port there): one node gets each tuple."""

    cost: float
    cost_kind: int = CONSTANT
    cost_spread: float = 0.0
    selectivity: float = 1.0
    selectivity_kind: int = BERNOULLI
    window: float = 0.0
    capacity: int = UNBOUNDED
    block_probability: float = 0.0
    block_seconds: float = 0.0
    streams: tuple[tuple[tuple[int, ...], int], ...] = ()


def _record(floats: str, ints: str, words: str = "") -> np.dtype[np.void]:
    kinds = ((floats, np.float64), (ints, np.int64), (words, np.uint64))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


ITEM = _record("born mass", "link port")
NODE = _record(
    "cost cost_spread selectivity window block_probability block_seconds "  # what it is
    "queued_mass born_sum done_mass emitted_mass busy waited last_run carry "  # what it did
    "left wake_at ready_since virtual "  # its thread
    "rank weight time_slice",  # its knobs
    "cost_kind selectivity_kind capacity first_stream last_stream "
    "head tail queued arrived dropped done status turn owner realtime group",
    "random",
)
SIDE = _record("mass", "head tail")
STREAM = _record("", "first size port turn")
GROUP = _record("weight virtual floor", "")
ROOT_GROUP = (1024.0, 0.0, 0.0)
PROCESSOR = _record("until slice_end accounted", "running batch_left last_node cursor catch_up first last")
ARRIVAL_RECORD = _record("time", "node")
RESULT = _record("time born mass", "node")

Records = NDArray[Any]


class State(NamedTuple):
    """The state of a simulation. Scalars that change are cells of `clock` and `tally`."""

    item: Records
    node: Records
    side: Records
    """The windows of joins: two sides per node."""
    stream: Records
    consumer: Ints
    group: Records
    processor: Records
    order: Ints
    """Node numbers, sorted by processor and rank; `processor` has the range of each: from `first` to before `last`."""
    arrival: Records
    """The arrivals of all sources, by time; node -1 is a tick on which nothing arrived."""
    result: Records
    memory: Floats
    trace: Floats
    clock: Floats
    tally: Ints


def _free_items() -> Records:
    """Return a pool of free tuples, each linked to the next."""
    item = np.zeros(POOL_AT_START, dtype=ITEM)
    item["link"] = np.arange(1, POOL_AT_START + 1)
    item["link"][-1] = -1
    return item


def _free_processors() -> Records:
    processor = np.zeros(MOST_PROCESSORS, dtype=PROCESSOR)
    processor["running"] = processor["last_node"] = -1
    processor["until"] = processor["slice_end"] = np.inf
    return processor


def create(
    nodes: Sequence[NodeSpec],
    arrivals: tuple[Floats, Ints],
    *,
    processors: int,
    cooperative: bool,
    fluid: bool,
    per_unit: bool,
    batch: int,
    switch_cost: float,
    time_slice: float,
    rr_slice: float,
    delay: float,
    grid: float,
    grid_points: int,
    trace_rows: int,
    seed: int,
) -> State:
    """Create a simulation at time 0: empty queues, default knobs, operators assigned to processors at random."""
    tally = np.zeros(TALLY_CELLS, dtype=np.int64)
    tally[[FREE, BATCH, PROCESSORS, COOPERATIVE, FLUID]] = POOL_AT_START, batch, processors, cooperative, fluid
    tally[[PER_UNIT, TRACING]] = per_unit, trace_rows > 0
    node = _node_records(nodes, processors, time_slice, seed)
    together = int(np.unique(arrivals[0], return_counts=True)[1].max(initial=0))
    tally[HEADROOM] = processors * most_made(node) + together
    clock = np.zeros(CLOCK_CELLS)
    clock[[GRID, SWITCH_COST, DELAY, RR_SLICE, WAKE_GRAIN]] = grid, switch_cost, delay, rr_slice, time_slice / 3.0

    side = np.zeros(2 * len(nodes), dtype=SIDE)
    side["head"] = side["tail"] = -1
    arrival = np.zeros(len(arrivals[0]), dtype=ARRIVAL_RECORD)
    arrival["time"], arrival["node"] = arrivals
    stream, consumer = _streams(nodes)
    return State(
        item=_free_items(),
        node=node,
        side=side,
        stream=stream,
        consumer=consumer,
        group=np.array([ROOT_GROUP], dtype=GROUP),
        processor=_free_processors(),
        order=np.zeros(len(nodes), dtype=np.int64),
        arrival=arrival,
        result=np.zeros(RESULTS_AT_ONCE, dtype=RESULT),
        memory=np.zeros(grid_points),
        trace=np.zeros((max(trace_rows, 1), len(nodes) + 2)),
        clock=clock,
        tally=tally,
    )


def most_made(node: Records) -> int:
    """Return the maximum number of pool entries that one processor may take at one moment."""
    widest = int((node["last_stream"] - node["first_stream"]).max())
    return (1 + widest) * MOST_COPIES


def grown(state: State) -> State:
    """Return the state with a pool of twice as many entries; an error beyond `MOST_QUEUED`."""
    size = len(state.item)
    if 2 * size > MOST_QUEUED:
        raise ConfigError(
            f"more than {size:,} tuples are queued after {state.clock[NOW]:.3g} s",
            remedy="lower rates or selectivities, bound queues by capacity, or run for less",
        )
    extra = np.zeros(size, dtype=ITEM)
    extra["link"] = np.arange(size + 1, 2 * size + 1)
    extra["link"][-1] = state.tally[FREE_HEAD]
    state.tally[FREE_HEAD] = size
    state.tally[FREE] += size
    return state._replace(item=np.concatenate([state.item, extra]))


def _node_records(nodes: Sequence[NodeSpec], processors: int, time_slice: float, seed: int) -> Records:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0xD1CE,)))
    node = np.zeros(len(nodes), dtype=NODE)
    fields = "cost cost_kind cost_spread selectivity selectivity_kind window capacity block_probability block_seconds"
    for name in fields.split():
        node[name] = [getattr(spec, name) for spec in nodes]
    ends = np.cumsum([len(spec.streams) for spec in nodes])
    node["first_stream"], node["last_stream"] = np.concatenate([[0], ends[:-1]]), ends
    node["head"] = node["tail"] = -1
    node["random"] = np.random.SeedSequence(seed).generate_state(len(nodes), dtype=np.uint64)
    node["owner"] = rng.integers(0, processors, size=len(nodes))
    node["weight"], node["time_slice"] = 1024.0, time_slice
    return node


def _streams(nodes: Sequence[NodeSpec]) -> tuple[Records, Ints]:
    streams = [stream for node in nodes for stream in node.streams]
    table = np.zeros(len(streams), dtype=STREAM)
    table["size"] = [len(consumers) for consumers, _ in streams]
    table["first"] = np.cumsum(table["size"]) - table["size"]
    table["port"] = [port for _, port in streams]
    return table, np.array([c for consumers, _ in streams for c in consumers], dtype=np.int64)
