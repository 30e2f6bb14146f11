"""The hops of a pipeline as an engine: it holds to what the control loop expects, and its numbers are the channels'."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treadle
from treadle.decide import registry
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.pools import PoolKnob
from treadle.enforce.gate.rank_knob import GateKnob
from treadle.loop import Binding, Loop
from treadle.pipelines.channels.embedded import Embedded
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.hop_engine import ALL_METRICS, OFFERS, HopEngine
from treadle.pipelines.hops.latency import Latency
from treadle.testing import check_engine, check_knob

NOW = 1_800_000_000.0
SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


def report(read: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What the JVM says of a batch."""
    return {"seconds": 0.5, "time": NOW, "written": 0, "epoch": 0, "read": read or {}, "at": {}, **more}


class Parts:
    """A feed, an operator that reads it, its channel, a sink that reads that, and a source of which nothing is seen."""

    def __init__(self, folder: Path) -> None:
        p = treadle.Pipeline("engine")
        p.feed("fed", schema="a bigint")
        p.operator(name="op", inputs=("fed",))(lambda rows: rows)
        p.write("out", reads="op", format="noop")
        p.source(name="ticks")(lambda spark: spark)
        p.write("tocks", reads="ticks", format="noop")
        self.topology = p.topology()
        self.fed, self.op = (Embedded(folder / name, SCHEMA, limit_rows=10) for name in ("fed", "op"))
        inputs = {"op": (self.fed,), "out": (self.op,), "ticks": (), "tocks": ()}
        self.gate, self.pools = Gate(1), PoolKnob()
        self.hops = {}
        for instance in self.topology.instances:
            name = instance.operators[-1]
            output = self.op if name == "op" else None
            self.hops[name] = Hop(instance.id, name, f"engine/{name}", inputs[name], output)
            for channel in inputs[name]:
                channel.register(name)
            self.gate.register(instance.id)
            self.pools.register(instance.id)

    def engine(self, now: Callable[[], float] = lambda: NOW) -> HopEngine:
        rows = [self.hops[instance.operators[-1]] for instance in self.topology.instances]
        return HopEngine(self.topology, rows, {"rank": GateKnob(self.gate), "rung": self.pools}, now=now)

    def close(self) -> None:
        self.fed.close()
        self.op.close()

    def fill(self, channel: Embedded, count: int, oldest: float, mean: float) -> None:
        from treadle.pipelines.channels import log

        with log.Writer(channel.folder, SCHEMA) as writer:
            writer.append([{"a": a} for a in range(count)], born=(oldest, mean))
        channel.refresh()


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_it_is_a_good_engine(parts: Parts) -> None:
    def work(_: HopEngine) -> None:
        now = time.time()
        parts.fill(parts.fed, 4, now - 2, now - 1)
        end = parts.fed.view.end
        parts.hops["op"].record_granted_batch(report({"fed": {"end": end, "rows": 4, "ages": []}}, written=2))
        parts.fill(parts.op, 2, now - 2, now - 1)
        time.sleep(0.001)

    values = {"rank": [0.0, 1.0, 2.0], "rung": [0.0, 1.0, 5.0]}
    check_engine(lambda: parts.engine(time.time), pass_time=work, rounds=20, values=values, apart=0.005)


def test_the_gates_knob_is_a_good_knob(parts: Parts) -> None:
    names = list(parts.gate.ranks)[:3]
    check_knob(lambda: GateKnob(parts.gate), names, [0.0, 1.0, 2.0])


def test_queue_and_ages_are_those_of_the_rows_that_wait(parts: Parts) -> None:
    parts.fill(parts.fed, 3, NOW - 10, NOW - 8)
    parts.fill(parts.fed, 1, NOW - 4, NOW - 4)
    engine = parts.engine()
    row = engine.topology().row_of[parts.hops["op"].id]
    columns = engine.sample(OFFERS).columns
    assert columns["queue"][row] == 4
    assert columns["head_age"][row] == pytest.approx(10.0)
    assert columns["mean_age"][row] == pytest.approx(7.0)
    parts.hops["op"].record_granted_batch(report({"fed": {"end": 3, "rows": 3, "ages": []}}, written=1))
    columns = engine.sample(OFFERS).columns
    measured = [columns[name][row] for name in ("queue", "tuples_in", "tuples_out", "busy_time")]
    assert measured == pytest.approx([1, 3, 1, 0.5])
    assert columns["head_age"][row] == pytest.approx(4.0)


def test_latency_and_rate_of_all_sinks_since_the_last_look_are_totals(parts: Parts) -> None:
    parts.hops["out"].latency, engine = Latency(), parts.engine()
    assert math.isnan(engine.sample(OFFERS).totals["latency"])
    ages = [[2, (NOW - 4) * 1e6, (NOW - 3) * 1e6], [1, (NOW - 6) * 1e6, (NOW - 6) * 1e6]]
    parts.hops["out"].record_granted_batch(report({"op": {"end": 3, "rows": 3, "ages": ages}}))
    totals = engine.sample(OFFERS).totals
    assert totals["latency"] == pytest.approx(4.0)
    assert totals["output_rate"] > 0
    assert math.isnan(engine.sample(OFFERS).totals["latency"])


def test_what_waits_outside_is_unknown_and_what_is_empty_is_nothing(parts: Parts) -> None:
    engine = parts.engine()
    columns = engine.sample(OFFERS).columns
    rows = {name: engine.topology().row_of[hop.id] for name, hop in parts.hops.items()}
    assert all(math.isnan(columns[name][rows["ticks"]]) for name in ("queue", "head_age", "mean_age"))
    assert [columns[name][rows["out"]] for name in ("queue", "head_age", "mean_age")] == [0.0, 0.0, 0.0]
    assert columns["tuples_in"][rows["ticks"]] == 0


def test_an_arrival_in_the_future_is_no_negative_age(parts: Parts) -> None:
    parts.fill(parts.fed, 1, NOW + 5, NOW + 5)
    columns = parts.engine().sample(frozenset({"head_age", "mean_age"})).columns
    assert set(columns) == {"head_age", "mean_age"}
    assert np.nanmin(columns["head_age"]) == np.nanmin(columns["mean_age"]) == 0.0


def test_where_a_reader_stands_is_known_also_from_where_it_asks(parts: Parts) -> None:
    """After a crash Spark may be ahead of what was noted."""
    parts.fill(parts.fed, 4, NOW, NOW)
    hop = parts.hops["op"]
    assert hop.record_granted_batch(report(at={"fed": 3})) == 0
    assert hop.backlogs()[0].rows == 1
    assert hop.batches == 0
    hop.record_granted_batch(report(at={"fed": 1}))
    assert hop.backlogs()[0].rows == 1


def test_a_channel_is_full_by_its_slowest_reader(parts: Parts) -> None:
    parts.fed.register("other")
    parts.fill(parts.fed, 10, NOW, NOW)
    assert parts.fed.full
    parts.fed.read_up_to("op", 10)
    assert (parts.fed.rows, parts.fed.full) == (10, True)
    parts.fed.read_up_to("other", 1)
    assert (parts.fed.rows, parts.fed.full) == (9, False)


@pytest.mark.parametrize(
    "name", [d.name for d in registry.describe() if d.name != "weighted"] + ["weighted:qs=0.7,hr=0.3"]
)
def test_every_policy_of_the_core_can_rank_hops(parts: Parts, name: str) -> None:
    parts.fill(parts.fed, 5, NOW - 5, NOW - 3)
    loop = Loop([parts.engine()], [Binding(registry.create(name), "rank", period=0.1)])
    for _ in range(3):
        parts.hops["op"].tuples_in += 3
        parts.hops["op"].busy += 0.1
        loop.round(force=True)
    assert loop.stats.troubles == {}


@pytest.mark.parametrize("policy", ["highest-rate", "chain", "normalized-rate", "weighted:hr=1", "multi-class:high=hr"])
def test_policies_that_go_by_cost_rank_the_hop_whose_rows_cost_less_first(parts: Parts, policy: str) -> None:
    loop = Loop([parts.engine()], [Binding(registry.create("user-priority"), "rank", period=0.1)], metrics=ALL_METRICS)
    loop.round(force=True)
    for name, seconds in (("op", 0.5), ("out", 0.01)):
        hop = parts.hops[name]
        hop.tuples_in, hop.tuples_out, hop.cost = 10, 10, seconds
    parts.fill(parts.op, 5, NOW - 5, NOW - 3)
    loop.round(force=True)
    loop.rebind(registry.create(policy))  # what was measured before counts
    loop.round(force=True)
    ranks = parts.gate.ranks
    assert ranks[parts.hops["out"].id] > ranks[parts.hops["op"].id]
    assert loop.stats.troubles == {}


@pytest.mark.parametrize(
    ("policy", "first"), [("highest-rate", "productive"), ("chain", "cheap"), ("normalized-rate", "productive")]
)
def test_of_fused_sinks_hr_prefers_results_and_chain_what_frees_rows(policy: str, first: str) -> None:
    """A row costs twice as much in one as in the other, but half of its rows are results and not one in a hundred."""
    p = treadle.Pipeline("fused")
    p.feed("fed", schema="a bigint")
    for name in ("cheap", "productive", "barren"):
        p.operator(name=f"of_{name}", inputs=("fed",))(lambda rows: rows)
        p.write(name, reads=f"of_{name}", format="noop")
    topology, gate = p.topology("fused"), Gate(1)
    hops = {each.operators[-1]: Hop(each.id, each.operators[-1], each.id) for each in topology.instances}
    for hop in hops.values():
        gate.register(hop.id)
    engine = HopEngine(topology, list(hops.values()), {"rank": GateKnob(gate)})
    loop = Loop([engine], [Binding(registry.create(policy), "rank", period=0.1)])
    loop.round(force=True)
    for name, out, cost in (("cheap", 10, 1e-3), ("productive", 500, 2e-3), ("barren", 0, 1.5e-3)):
        hops[name].count(1000, out)
        hops[name].cost = cost
    loop.round(force=True)
    ranks = {name: gate.ranks[hop.id] for name, hop in hops.items()}
    assert max(ranks, key=lambda name: ranks[name]) == first
    if policy != "chain":
        assert min(ranks, key=lambda name: ranks[name]) == "barren"


@pytest.mark.parametrize("policy", ["rr", "multi-class:high=rr", "adaptive:candidates=rr,objective=min total_queue"])
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.integers(0, 12), min_size=20, max_size=40))
def test_round_robin_gives_each_hop_that_waits_one_grant_before_any_has_two(
    tmp_path_factory: pytest.TempPathFactory, policy: str, rounds: list[int]
) -> None:
    """Batches last for some rounds of the policy, so its own rotation would fall together with that of the gate."""
    parts = Parts(tmp_path_factory.mktemp("rr"))
    granted: list[str] = []
    loop = Loop([parts.engine()], [Binding(registry.create(policy), "rank", period=0.1)])
    offers = {hop.id: (hop, partial(granted.append, hop.id)) for hop in parts.hops.values()}
    for name, (_, grant) in offers.items():
        parts.gate.offer(name, grant)
    for count in rounds:
        for _ in range(count):
            loop.round(force=True)
        hop, grant = offers[granted[-1]]
        hop.batches += 1
        parts.gate.release(hop.id, again=grant)
    runs = zip(*(granted[start:] for start in range(len(offers))), strict=False)
    assert all(len(set(run)) == len(offers) for run in runs), granted
    parts.close()
