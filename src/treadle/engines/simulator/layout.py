"""Maps queries to nodes: one per thread, with its cost and the receivers of its output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from treadle.engines.simulator.arrivals import Feed
from treadle.engines.simulator.kernel import cells
from treadle.engines.simulator.scenario import OperatorSpec, QuerySpec, topology
from treadle.engines.simulator.state import NodeSpec
from treadle.model import Instance, Ints, Role, ThreadRef, Topology

_COSTS = {"constant": cells.CONSTANT, "uniform": cells.UNIFORM, "exponential": cells.EXPONENTIAL}
_SELECTIVITIES = {"bernoulli": cells.BERNOULLI, "poisson": cells.POISSON, "even": cells.EVEN}


@dataclass(frozen=True)
class Layout:
    """The nodes of a topology: first the main threads of the instances, in their order, then the helper threads.

    `helper_of[i]` is the helper node of instance i; -1 if it has none.
    """

    topology: Topology
    nodes: list[NodeSpec]
    helper_of: Ints
    feeds: list[Feed]


def lay_out(specs: tuple[QuerySpec, ...], engine: str) -> Layout:
    """Create one node per instance and one per helper thread."""
    plain = topology(specs, engine)
    by_name = {(spec.name, op.name): op for spec in specs for op in spec.operator}
    heads: dict[tuple[str, str], list[int]] = {}
    for row, instance in enumerate(plain.instances):
        heads.setdefault((instance.query, instance.operators[0]), []).append(row)
    downstream = {query.name: query.downstream for query in plain.queries}

    nodes: list[NodeSpec] = []
    helpers: list[NodeSpec] = []
    helper_of = np.full(len(plain), -1, dtype=np.int64)
    for row, instance in enumerate(plain.instances):
        operators = [by_name[instance.query, name] for name in instance.operators]
        streams = tuple(
            (tuple(heads[instance.query, name]), _port(by_name[instance.query, name], operators[-1].name))
            for name in downstream[instance.query][operators[-1].name]
        )
        helper_cost = operators[-1].helper_cost
        if helper_cost is not None:
            helper_of[row] = len(plain) + len(helpers)
            helpers.append(NodeSpec(cost=helper_cost, streams=streams))
            streams = (((int(helper_of[row]),), 0),)
        nodes.append(_node(operators, streams))
    feeds = [
        Feed(tuple(heads[spec.name, op.name]), op.source, f"query '{spec.name}', source of '{op.name}'")
        for spec in specs
        for op in spec.operator
        if op.source is not None
    ]
    return Layout(_with_threads(plain, helper_of), nodes + helpers, helper_of, feeds)


def _node(operators: list[OperatorSpec], streams: tuple[tuple[tuple[int, ...], int], ...]) -> NodeSpec:
    """Build the node of fused operators. Each adds its cost for the tuples that reach it; selectivities multiply."""
    first = operators[0]
    cost, passed = 0.0, 1.0
    for op in operators:
        cost += passed * op.cost.mean
        passed *= op.selectivity.mean
    blocking = next((op.blocking for op in operators if op.blocking), None)
    return NodeSpec(
        cost=cost,
        cost_kind=_COSTS[first.cost.distribution],
        cost_spread=first.cost.spread,
        selectivity=passed,
        selectivity_kind=_SELECTIVITIES[operators[-1].selectivity.distribution],
        window=first.window or 0.0,
        capacity=first.capacity or cells.UNBOUNDED,
        block_probability=blocking.probability if blocking else 0.0,
        block_seconds=blocking.seconds if blocking else 0.0,
        streams=streams,
    )


def _port(consumer: OperatorSpec, producer: str) -> int:
    return consumer.upstream.index(producer) if consumer.window is not None else 0


def _with_threads(plain: Topology, helper_of: Ints) -> Topology:
    def threads(row: int, instance: Instance) -> tuple[ThreadRef, ...]:
        main = ThreadRef(tid=row + 1, name=instance.id)
        if helper_of[row] < 0:
            return (main,)
        return main, ThreadRef(tid=int(helper_of[row]) + 1, role=Role.HELPER, name=f"{instance.id} helper")

    instances = tuple(replace(i, threads=threads(row, i)) for row, i in enumerate(plain.instances))
    return replace(plain, instances=instances)
