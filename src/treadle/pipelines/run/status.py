"""The status of a running pipeline as JSON values: for `treadle ctl status`, the live table and tests.

The numbers are the counters of the run and the gate; an unknown number is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.pipelines.gating.assigning import group_of
from treadle.pipelines.hops.hop import State
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.run.parts import Parts
from treadle.values import known

if TYPE_CHECKING:
    from treadle.enforce.gate.stats import HopStats
    from treadle.model import Topology
    from treadle.pipelines.hops.hop import Hop


def of(parts: Parts, promises: Promises | None) -> dict[str, Any]:
    """The whole status: policy, slots, each hop, each channel, the latency of each sink."""
    gate, topology = parts.gate.stats, parts.topology
    hops = list(parts.hops.values())  # a copy, since a starting run still adds hops
    channels = list(parts.channel_set.sources.items())
    rules = {} if parts.steering.ranking is None else parts.steering.ranking.rules_of(parts.topology)
    found: dict[str, Any] = {
        "pipeline": parts.definition.name,
        "layout": parts.options.layout,
        "enforce": parts.options.enforce,
        "policy": parts.steering.policy,
        "adaptive": parts.steering.learned(),
        "slots": gate.slots,
        "waiting": len(gate.waiting),
        "running": len(gate.holding),
        "failed": dict(parts.failed),
        "hops": {
            hop.name: {
                **_hop(hop, gate.hops.get(hop.id), _priority(topology, hop)),
                "rule": rules.get(hop.id),
            }
            for hop in hops
        },
        "channels": {name: {"rows": channel.rows, "full": channel.full} for name, channel in channels},
    }
    found |= parts.steering.assigned()
    if promises is not None:
        found["quality"] = promises.status()
    if parts.realtime is not None:  # the gate is not used
        found["running"] = sum(hop.state is State.RUNNING for hop in hops)
        for hop in hops:
            found["hops"][hop.name]["operators"] = dict(parts.realtime.operators.get(hop.name, {}))
    return found


def _hop(hop: Hop, counts: HopStats | None, priority: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "state": str(hop.state),
        "rank": None if counts is None else known(counts.rank),
        "priority": priority,
        "group": None if counts is None else group_of(counts.group),
        "queue": sum(backlog.rows for backlog in hop.backlogs()) if hop.inputs else None,
        "rows_in": hop.tuples_in,
        "rows_out": known(hop.rows_out),
        "batches": hop.batches,
        "busy_seconds": round(hop.busy, 3),
        "waited_seconds": None if counts is None else round(counts.waited, 3),
        "bad_rows": hop.bad_rows,
        "error": hop.error or None,
    }
    if hop.latency is not None:
        summary = hop.latency.summary()
        figures = {"mean": summary.mean, "p50": summary.p50, "p99": summary.p99, "max": summary.max}
        found["latency_seconds"] = {name: known(round(value, 4)) for name, value in figures.items()}
    return found


def _priority(topology: Topology, hop: Hop) -> float | None:
    """The priority of a hop; None for a moment while the pipeline changes and the hop has no row."""
    row = topology.row_of.get(hop.id)
    return None if row is None else float(topology.priority[row])
