"""The bench compares like with like, and gives all figures. How large they are depends on the machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.bench import core
from treadle.bench.simulator.baselines import PlainRound, niceness, simpy_chain
from treadle.decide.transform import SCALES
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Sample

SMALL = core.Effort({10: 2, 20: 2}, (50, 3), 200, 100, 1, 0.3, {20: 2})
SEEDS = st.integers(0, 2**32 - 1)


class FakeClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class TestFigures:
    def test_all_are_there_and_are_numbers_above_zero(self) -> None:
        figures = core.run(effort=SMALL, clock=FakeClock())
        assert list(figures["decide_ms"]) == ["10", "20"]
        names = [
            "vectorised_speedup",
            "simulator_events_per_s",
            "simpy_ratio",
            "round_cpu_fraction_50ms_100_instances",
        ]
        for value in [
            *figures["decide_ms"].values(),
            *figures["quality_cycle_ms"].values(),
            *(figures[name] for name in names),
        ]:
            assert isinstance(value, int | float)
            assert 0 < value < math.inf

    def test_what_is_measured_is_told_before_it_is(self) -> None:
        told: list[str] = []
        core.run(told.append, effort=SMALL, clock=FakeClock())
        assert told[0] == "control rounds over 10 instances"
        assert len(told) == 7

    def test_the_full_bench_has_the_sizes_that_are_aimed_at(self) -> None:
        assert list(core.FULL.sizes) == [100, 2_000, 10_000, 100_000]

    def test_without_simpy_nothing_is_measured_and_the_remedy_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "simpy", None)
        told: list[str] = []
        with pytest.raises(ConfigError, match=r"SimPy.*pip install treadle\[bench\]"):
            core.run(told.append, effort=SMALL)
        assert told == []


class TestPlainRound:
    @given(SEEDS)
    @settings(max_examples=20)
    def test_decides_on_chains_what_the_vectorised_round_decides(self, seed: int) -> None:
        topology = core.chains(50)
        assert _changes_in(topology, core.samples(topology, 6, seed)) > 0

    @given(SEEDS)
    @settings(max_examples=60)
    def test_decides_the_same_on_any_graph_with_gaps_restarts_and_pauses(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        topology = _any_topology(rng)
        _changes_in(topology, _rough_samples(topology, 8, rng))

    @given(SEEDS, st.integers(1, 30), st.floats(0.01, 8.0))
    @settings(max_examples=60)
    def test_has_the_niceness_of_the_scale_within_the_ladder_and_beyond_it(
        self, seed: int, count: int, orders: float
    ) -> None:
        rng = np.random.default_rng(seed)
        rates = 10.0 ** rng.uniform(0.0, orders, count) * (rng.random(count) < 0.9)
        plain = niceness({str(at): rate for at, rate in enumerate(rates.tolist())})
        assert list(plain.values()) == SCALES["nice"].apply(rates, "log").tolist()

    def test_without_rates_there_is_no_niceness(self) -> None:
        assert niceness({}) == {}

    def test_most_rows_have_a_niceness_of_the_ladder_and_part_of_them_changes_each_round(self) -> None:
        topology = core.chains(1000)
        control = core.Round(topology)
        counts = [len(control(sample)[0]) for sample in core.samples(topology, 12)]
        assert counts[0] == 0
        assert all(0 < count < 500 for count in counts[-3:])


class TestChains:
    def test_simpy_delivers_each_tuple_after_all_its_costs(self) -> None:
        delivery = simpy_chain([1.0, 2.0], [0.0, 10.0, 20.0])
        assert (delivery.results, delivery.mean_latency, delivery.finished) == (3, 3.0, 23.0)

    def test_the_simulated_chain_is_loaded_to_nine_tenths(self) -> None:
        scenario = core.simulated_chain(1000)
        rate = 1000 / scenario.seconds
        assert rate * sum(core.COSTS) == pytest.approx(0.9)


def _changes_in(topology: Topology, taken: Iterator[Sample]) -> int:
    """Runs both rounds, which must agree each time; the number of all changes."""
    vectorised, plain = core.Round(topology), PlainRound(topology, core.TAU, core.FORGET)
    count = 0
    for sample in taken:
        changes, reason = vectorised(sample)
        assert plain(sample.time, core.readings(topology, sample)) == (core.as_plain(changes), reason)
        count += len(changes)
    return count


def _any_topology(rng: np.random.Generator) -> Topology:
    """One or two queries with branches, joins and copies."""
    queries: list[Query] = []
    parallelism: dict[tuple[str, str], int] = {}
    for name in ("q1", "q2")[: int(rng.integers(1, 3))]:
        size = int(rng.integers(1, 8))
        operators: list[Operator] = []
        for at in range(size):
            count = int(rng.integers(0, min(at, 2) + 1))
            upstream = rng.choice(at, count, replace=False).tolist() if count else []
            operators.append(Operator(f"o{at}", tuple(f"o{up}" for up in upstream)))
            parallelism[name, f"o{at}"] = int(rng.integers(1, 3))
        queries.append(Query(name, tuple(operators)))
    return Topology.of(queries, parallelism=parallelism)


def _rough_samples(topology: Topology, rounds: int, rng: np.random.Generator) -> Iterator[Sample]:
    """Counters that are missing, start again, or stand still, at times far enough apart to forget them."""
    rows = len(topology)
    cost = 10.0 ** rng.uniform(-8.0, 0.0, rows) * (rng.random(rows) < 0.9)
    selectivity = rng.uniform(0.0, 3.0, rows) * (rng.random(rows) < 0.8)
    total = {name: np.zeros(rows) for name in core.OFFERS}
    time = 0.0
    for _ in range(rounds):
        time += float(rng.choice([0.05, 1.0, 35.0]))
        taken = rng.integers(1, 100, rows) * (rng.random(rows) < 0.7)
        grown = {"tuples_in": taken, "tuples_out": taken * selectivity, "cpu_time": taken * cost}
        columns = {}
        for name, growth in grown.items():
            total[name] = np.where(rng.random(rows) < 0.05, 0.0, total[name] + growth)
            columns[name] = np.where(rng.random(rows) < 0.05, np.nan, total[name])
        yield Sample(time, columns)
