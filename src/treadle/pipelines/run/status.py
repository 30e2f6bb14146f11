"""A running pipeline in numbers, as JSON can carry them: for `treadle ctl status`, the live table and tests.

It reads what the runner and the gate count; an unknown number is None.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from treadle.pipelines.hops.hop import State

if TYPE_CHECKING:
    from treadle.enforce.gate.gate import HopStats
    from treadle.pipelines.hops.hop import Hop
    from treadle.pipelines.run.run import Run


def of(run: Run) -> dict[str, Any]:
    """The whole of it: policy, slots, each hop, each channel, the latency of each sink."""
    gate = run.gate.stats
    hops = list(run.hops.values())  # a copy, since a run that starts may be asked too
    found: dict[str, Any] = {
        "pipeline": run.pipeline.name,
        "layout": run.options.layout,
        "enforce": run.options.enforce,
        "policy": run.policy,
        "slots": gate.slots,
        "waiting": len(gate.waiting),
        "running": len(gate.holding),
        "hops": {hop.name: _hop(hop, gate.hops.get(hop.id)) for hop in hops},
        "channels": {
            name: {"rows": channel.rows, "full": channel.full} for name, channel in list(run.channels.items())
        },
    }
    if run.promises is not None:
        found["quality"] = run.promises.status()
    if run.realtime is not None:  # nobody asks the gate
        found["running"] = sum(hop.state is State.RUNNING for hop in hops)
        for hop in hops:
            found["hops"][hop.name]["operators"] = dict(run.realtime.operators.get(hop.name, {}))
    return found


def _hop(hop: Hop, counts: HopStats | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "state": str(hop.state),
        "rank": None if counts is None else known(counts.rank),
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


def known(value: float) -> float | None:
    """A number as JSON can carry it."""
    return None if math.isnan(value) else value
