"""Every shipped scenario makes sense, and chains are drawn as the paper draws them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from treadle.engines.simulator import scenario as scenarios

# ---------------------------------------------------------------- shipped


@pytest.mark.parametrize("name", scenarios.shipped())
def test_a_shipped_scenario_loads_and_its_graphs_have_levels(name: str) -> None:
    loaded = scenarios.load(name)
    assert loaded.title
    assert loaded.policies
    topology = scenarios.topology(scenarios.queries(loaded), "simulator")
    assert len(topology) == sum(len(level.rows) for level in topology.levels)
    assert topology.is_source.any()
    assert topology.is_sink.any()


@pytest.mark.parametrize(("name", "size"), [("random-02", 2), ("random-10", 10), ("random-30", 30), ("random-90", 90)])
def test_a_random_plan_has_the_operators_it_promises(name: str, size: int) -> None:
    (query,) = scenarios.queries(scenarios.load(name))
    assert len(query.operator) == size


def test_a_random_plan_loads_the_processors_as_asked() -> None:
    loaded = scenarios.load("random-30")
    (query,) = scenarios.queries(loaded)
    flow = {"op1": 1000.0}  # the mean of its source
    for op in query.operator[1:]:
        flow[op.name] = sum(flow[up] * _operator(query, up).selectivity.mean for up in op.upstream)
    load = sum(flow[op.name] * op.cost.mean for op in query.operator)
    assert load == pytest.approx(0.9 * loaded.execution.processors)


def test_shipped_scenarios_do_not_depend_on_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert scenarios.load("syn").title.startswith("SYN")


# ---------------------------------------------------------------- chains (Haren, section 7.1)

CHAINS = """
title = "chains"
seed = {seed}
[[chains]]
name = "q"
count = 400
length = 12
base_cost = 1e-5
source = {{ rate = 1 }}
"""


@functools.cache
def _drawn(seed: int = 1) -> tuple[scenarios.QuerySpec, ...]:
    return scenarios.queries(scenarios.parse(CHAINS.format(seed=seed), where="chains.toml"))


def test_the_operators_of_a_chain_cost_base_times_a_power_of_two_within_a_tenth() -> None:
    classes = []
    for query in _drawn():
        costs = np.array([op.cost.mean for op in query.operator]) / 1e-5
        z = int(np.round(np.log2(np.median(costs))))
        assert (np.abs(costs / 2.0**z - 1.0) <= 0.1 + 1e-9).all()
        classes.append(z)
    assert set(classes) == {0, 1, 2, 3, 4}
    assert min(np.bincount(classes)) > 400 / 5 / 2


def test_the_selectivities_of_a_chain_give_its_query_a_uniform_one() -> None:
    whole = []
    for query in _drawn():
        each = np.array([op.selectivity.mean for op in query.operator[:-1]])
        s = np.exp(np.log(each).mean() * 12)
        assert (np.abs(each / s ** (1 / 12) - 1.0) <= 0.2 + 1e-9).all()
        whole.append(s)
    assert min(whole) > 0.01 * 0.3
    assert max(whole) < 1.0 * 3.0
    assert np.mean(whole) == pytest.approx(0.505, abs=0.06)


def test_chains_are_drawn_anew_by_another_seed_only() -> None:
    few = CHAINS.replace("count = 400", "count = 10")
    first, again, other = (scenarios.parse(few.format(seed=seed), where="chains.toml") for seed in (3, 3, 4))
    assert scenarios.queries(first) == scenarios.queries(again)
    assert scenarios.queries(first) != scenarios.queries(other)


def test_a_chain_is_a_line_from_one_source_to_one_sink() -> None:
    for query in _drawn()[:5]:
        assert [op.upstream for op in query.operator] == [(), *((f"op{i}",) for i in range(1, 12))]
        assert [op.source is not None for op in query.operator] == [True, *[False] * 11]


# ---------------------------------------------------------------- files

GOOD = """
title = "t"
seconds = 2
[[query]]
name = "q"
[[query.operator]]
name = "a"
cost = 0.001
source = { rate = 100 }
"""


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "good.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert scenarios.load(str(path)).title == "t"


def test_a_number_stands_for_the_mean_and_a_table_says_more() -> None:
    text = GOOD.replace("cost = 0.001", 'cost = { mean = 0.001, distribution = "exponential" }')
    (query,) = scenarios.queries(scenarios.parse(text, where="good.toml"))
    assert query.operator[0].cost.distribution == "exponential"
    assert query.operator[0].selectivity.mean == 1.0


def test_whole_numbers_are_numbers_too() -> None:
    text = GOOD.replace("rate = 100", "rate = 100, start = 1").replace("cost = 0.001", "cost = 1")
    (query,) = scenarios.queries(scenarios.parse(text, where="good.toml"))
    assert query.operator[0].cost.mean == 1.0


def _operator(query: scenarios.QuerySpec, name: str) -> scenarios.OperatorSpec:
    return next(op for op in query.operator if op.name == name)
