"""The flow of a pipeline as the controller sees it: which task feeds which, and what is promised to each sink."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from treadle.decide.quality import Flow, Promise
from treadle.model import Floats
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.node import Node

WHOLE = 1.0
"""The share of its rows that a sink gets if none are dropped."""


def promised(nodes: Mapping[str, Node]) -> dict[str, Promise]:
    """By sink: its priority and the least share of its rows that it must get, by default all."""
    return {
        node.name: Promise(node.priority, WHOLE if node.min_accuracy is None else node.min_accuracy)
        for node in nodes.values()
        if node.kind.ends
    }


def flow_of(nodes: Mapping[str, Node], layout: str, instances: Mapping[str, int] = MappingProxyType({})) -> Flow:
    """The flow of a pipeline. In layout `hops` its tasks are all nodes, in other layouts only the sources and sinks.

    A task that has no query of its own, such as a feed, has no instance. Any other task has one, or as many as
    `instances` has for it.
    """
    if layout == "hops":
        inputs = {node.name: node.inputs for node in graph.in_order(nodes)}
        copies = {node.name: int(node.kind.runs) for node in nodes.values()}
    else:
        starts = {node.name: () for node in nodes.values() if node.kind.starts}
        ends = {
            node.name: tuple(name for name in starts if name in graph.needed_by([node.name], nodes))
            for node in nodes.values()
            if node.kind.ends
        }
        inputs, copies = {**starts, **ends}, {**dict.fromkeys(starts, 0), **dict.fromkeys(ends, 1)}
    return Flow.of(inputs, promised(nodes), {**copies, **instances})


def lowest_read(flow: Flow, part: Floats) -> Floats:
    """By task: the least of the shares kept on the streams that it reads; 1 without streams. `part` is by stream."""
    found = np.ones(len(flow))
    np.minimum.at(found, flow.end, part)
    return found


def may_shed(nodes: Mapping[str, Node]) -> bool:
    """Whether any sink was promised less than all of its rows."""
    return min(promise.accuracy for promise in promised(nodes).values()) < WHOLE
