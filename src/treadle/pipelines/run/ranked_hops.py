"""Makes the engine and the control loop that rank the hops of a run and assign them to slots."""

from __future__ import annotations

from treadle.enforce import Knob
from treadle.enforce.gate.owner_knob import OwnerKnob
from treadle.enforce.gate.pools import PoolKnob
from treadle.enforce.gate.rank_knob import GateKnob
from treadle.loop import Binding, Loop
from treadle.pipelines.gating.ranking import Ranking
from treadle.pipelines.hops.hop_engine import ALL_METRICS, HopEngine
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.run.parts import Parts


def make_engine(parts: Parts, pools: PoolKnob, promises: Promises | None) -> HopEngine:
    """Make the engine of all hops that were started."""
    hops = [parts.hops[instance.operators[-1]] for instance in parts.topology.instances]
    knobs: dict[str, Knob] = {"rank": GateKnob(parts.gate), "rung": pools, "owner": OwnerKnob(parts.gate)}
    return HopEngine(parts.topology, hops, knobs, lost=None if promises is None else promises.lost)


def make_loop(parts: Parts, ranking: Ranking, engine: HopEngine, promises: Promises | None) -> Loop:
    """Make the loop; its first binding ranks hops, its second one, if there is one, assigns them to slots."""
    knob = "rung" if parts.options.enforce == "pools" else "rank"
    bindings = [Binding(ranking.policy, knob, period=ranking.rounds)]
    if parts.steering.assigning is not None:
        bindings.append(parts.steering.assigning.binding())
    return Loop([engine], bindings, metrics=ALL_METRICS, quality=promises)
