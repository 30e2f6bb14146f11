"""What holds for every scenario: tuples and virtual time are conserved, and equal seeds give equal runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.enforce import Value
from treadle.engines.simulator.engine import Simulator
from treadle.engines.simulator.kernel import cells
from treadle.engines.simulator.scenario import (
    Cost,
    Execution,
    Mode,
    OperatorSpec,
    QuerySpec,
    Scenario,
    Selectivity,
    Source,
)

SECONDS = 1.0
few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])

# ---------------------------------------------------------------- random scenarios


@st.composite
def sources(draw: st.DrawFn) -> Source:
    kind = draw(st.sampled_from(["constant", "poisson", "bursts", "ticks"]))
    rate = draw(st.sampled_from([3.0, 40.0, 300.0]))
    if kind == "bursts":
        return Source(pattern="bursts", rate=rate, on=0.2, off=0.3, idle_rate=rate / 10)
    if kind == "ticks":
        counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
        return Source(pattern="ticks", every=0.25, counts=tuple(counts))
    start = draw(st.sampled_from([0.0, 0.3]))
    return Source(pattern="poisson" if kind == "poisson" else "constant", rate=rate, start=start)


@st.composite
def operators(draw: st.DrawFn, name: str, upstream: tuple[str, ...], *, joins: bool = True) -> OperatorSpec:
    keys: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        keys["parallelism"] = draw(st.integers(2, 3))
    if draw(st.integers(0, 3)) == 0:
        keys["capacity"] = draw(st.integers(1, 5))
    if draw(st.integers(0, 3)) == 0:
        keys["helper_cost"] = draw(st.sampled_from([0.0005, 0.004]))
    if draw(st.integers(0, 3)) == 0:
        keys["blocking"] = {"probability": 0.3, "seconds": 0.05}
    if joins and len(upstream) == 2 and draw(st.booleans()):
        keys["window"] = 0.1
    return OperatorSpec(
        name=name,
        upstream=upstream,
        cost=Cost(
            mean=draw(st.sampled_from([0.0003, 0.002, 0.01])),
            distribution=draw(st.sampled_from(["constant", "uniform", "exponential"])),
            spread=draw(st.sampled_from([0.1, 1.0])),
        ),
        selectivity=Selectivity(
            mean=draw(st.sampled_from([0.0, 0.3, 1.0, 2.5])),
            distribution=draw(st.sampled_from(["bernoulli", "poisson", "even"])),
        ),
        source=None if upstream else draw(sources()),
        **keys,
    )


@st.composite
def queries(draw: st.DrawFn, name: str) -> QuerySpec:
    """A graph in which every operator reads from one or two earlier ones, or from a source."""
    specs: list[OperatorSpec] = []
    for at in range(draw(st.integers(1, 5))):
        earlier = [spec.name for spec in specs]
        upstream = draw(st.lists(st.sampled_from(earlier), max_size=2, unique=True)) if earlier else []
        specs.append(draw(operators(f"op{at}", tuple(upstream))))
    query = QuerySpec(name=name, operator=tuple(specs))
    fused = draw(st.sampled_from([(), *_fusible(query)]))
    return query.model_copy(update={"fused": (fused,) if fused else ()})


def _fusible(query: QuerySpec) -> list[tuple[str, str]]:
    readers: dict[str, list[OperatorSpec]] = {op.name: [] for op in query.operator}
    for op in query.operator:
        for up in op.upstream:
            readers[up].append(op)
    return [
        (op.name, readers[op.name][0].name)
        for op in query.operator
        if op.window is None
        and len(readers[op.name]) == 1
        and len(readers[op.name][0].upstream) == 1
        and readers[op.name][0].parallelism == op.parallelism
    ]


@st.composite
def executions(
    draw: st.DrawFn, modes: tuple[str, ...] = ("cooperative", "os", "realtime", "unit", "fluid")
) -> Execution:
    mode = draw(st.sampled_from(modes))
    keys: dict[str, Any] = {
        "processors": draw(st.integers(1, 3)),
        "switch_cost": draw(st.sampled_from([0.0, 0.0002])),
        "delay": draw(st.sampled_from([0.0, 0.1])),
        "time_slice": draw(st.sampled_from([0.001, 0.004])),
        "rr_slice": 0.01,
    }
    if mode in ("unit", "fluid"):
        return Execution(mode="cooperative", period=0, batch=1, fluid=mode == "fluid", **keys)
    return Execution(batch=draw(st.integers(1, 5)), **keys | {"mode": mode})


@st.composite
def scenarios(draw: st.DrawFn, /, **keys: Any) -> Scenario:
    names = ["p", "q"][: draw(st.integers(1, 2))]
    return Scenario(
        title="t",
        seconds=SECONDS,
        seed=draw(st.integers(0, 5)),
        query=tuple(draw(queries(name)) for name in names),
        execution=draw(executions(**keys)),
    )


# ---------------------------------------------------------------- running them under a policy that changes its mind


def turn_knobs(sim: Simulator, rng: np.random.Generator) -> None:
    """What policies do: write some knobs, to any values they take."""
    knobs = sim.knobs()
    values: dict[str, Callable[[], Value]] = {
        "rank": lambda: float(rng.integers(0, 3)),
        "owner": lambda: float(rng.integers(0, 5)),
        "nice": lambda: float(rng.integers(-20, 20)),
        "rt": lambda: float(rng.choice([0, 0, 1, 50])),
        "slice": lambda: float(rng.choice([0.0005, 0.003])),
        "group": lambda: str(rng.choice(["", "a", "b"])),
    }
    for name, knob in knobs.items():
        if name in values and (name != "rt" or sim.mode == "realtime"):
            for instance in sim.topology().instances:
                targets = [instance.id] if knob.per == "instance" else list(instance.threads)
                for target in targets:
                    if rng.uniform() < 0.5:
                        knob.write(target, values[name]())


def drive(sim: Simulator, until: float, policy_seed: int, step: float = 0.1) -> None:
    """Advance by steps, with other knobs after each; in per-unit mode also before each choice."""
    rng = np.random.default_rng(policy_seed)
    turn_knobs(sim, rng)
    while sim.now < until and not sim.drained:
        before = sim.now
        target = min(before + step, until)
        if sim.advance(target):
            turn_knobs(sim, rng)
            sim.decided()
            assert before <= sim.now <= target
            continue
        assert sim.now >= target, "advance ends no earlier than asked"
        if sim.mode != "cooperative" or sim.per_unit:
            assert sim.now == target
        turn_knobs(sim, rng)


# ---------------------------------------------------------------- conservation


@few
@given(scenario=scenarios(), policy=st.integers(0, 3))
def test_tuples_are_conserved(scenario: Scenario, policy: int) -> None:
    sim = Simulator(scenario)
    drive(sim, SECONDS, policy)
    check_tuples(sim)


@few
@given(scenario=scenarios(), policy=st.integers(0, 3))
def test_what_arrives_is_either_done_or_dropped_when_all_is_drained(scenario: Scenario, policy: int) -> None:
    sim = Simulator(scenario)
    drive(sim, SECONDS / 2, policy)
    while sim.advance(math.inf):
        sim.decided()
    check_tuples(sim)
    assert sim.drained
    assert (sim.nodes["queued"] == 0).all()
    assert sim.counters["queued"] == pytest.approx(0.0, abs=1e-9)


def check_pool(sim: Simulator) -> None:
    """Every entry of the pool is in exactly one list: a queue, a window, or the free ones."""
    s = sim.state
    link = s.item["link"].tolist()
    seen: set[int] = set()

    def walk(entry: int) -> int:
        length = 0
        while entry != -1:
            assert entry not in seen, "two lists share an entry"
            seen.add(entry)
            length += 1
            entry = link[entry]
        return length

    assert [walk(head) for head in s.node["head"].tolist()] == s.node["queued"].tolist()
    assert walk(int(s.tally[cells.FREE_HEAD])) == s.tally[cells.FREE]
    for head in s.side["head"].tolist():
        walk(head)
    assert len(seen) == len(link)


def check_tuples(sim: Simulator) -> None:
    check_pool(sim)
    nodes, topology = sim.nodes, sim.topology()
    assert (nodes["arrived"] == nodes["done"] + nodes["dropped"] + nodes["queued"]).all()
    assert sim.counters["queued"] == pytest.approx(nodes["queued_mass"].sum(), abs=1e-9)  # masses are rounded

    came = nodes["done_mass"] + nodes["queued_mass"] + nodes["dropped"]
    helper = {row: ref.tid - 1 for row, i in enumerate(topology.instances) for ref in i.threads if ref.role == "helper"}
    for row, of in helper.items():
        assert came[of] == pytest.approx(nodes["emitted_mass"][row])
        assert nodes["emitted_mass"][of] == pytest.approx(nodes["done_mass"][of])

    arrived = sim.state.arrival[: int(sim.state.tally[cells.ARRIVAL])]
    expected: dict[tuple[str, str], float] = {}
    rows: dict[tuple[str, str], list[int]] = {}
    for row, instance in enumerate(topology.instances):
        head = (instance.query, instance.operators[0])
        rows.setdefault(head, []).append(row)
        expected[head] = expected.get(head, 0.0) + float((arrived["node"] == row).sum())
    for query in topology.queries:
        for row, instance in enumerate(topology.instances):
            if instance.query == query.name:
                sent = nodes["emitted_mass"][helper.get(row, row)]
                for consumer in query.downstream[instance.operators[-1]]:
                    expected[query.name, consumer] += sent
    for head, copies in rows.items():
        assert came[copies].sum() == pytest.approx(expected[head])

    results = sim.results
    out = np.bincount(results.row, weights=results.mass, minlength=len(topology))
    for sink in np.flatnonzero(topology.is_sink).tolist():
        assert out[sink] == pytest.approx(nodes["emitted_mass"][helper.get(sink, sink)])
    assert out[~topology.is_sink].sum() == 0.0


@few
@given(scenario=scenarios(), policy=st.integers(0, 3))
def test_virtual_time_is_conserved(scenario: Scenario, policy: int) -> None:
    sim = Simulator(scenario)
    drive(sim, SECONDS, policy)
    nodes, processors = sim.nodes, scenario.execution.processors
    assert nodes["busy"].sum() <= processors * sim.now * (1 + 1e-9)
    assert (nodes["busy"] <= sim.now * (1 + 1e-9)).all()
    if sim.mode != "cooperative":
        assert (nodes["busy"] + nodes["waited"] <= sim.now * (1 + 1e-9)).all()
    times, queued = sim.memory
    assert (np.diff(times) > 0).all()
    assert (queued >= -1e-9).all()
    assert (sim.results.latency >= 0).all()
    assert (np.diff(sim.results.time) >= 0).all()


@few
@given(scenario=scenarios(), policy=st.integers(0, 3))
def test_work_that_was_done_took_its_cost(scenario: Scenario, policy: int) -> None:
    sim = Simulator(scenario)
    drive(sim, SECONDS, policy)
    constant = sim.state.node["cost_kind"] == cells.CONSTANT
    cost, nodes = sim.state.node["cost"], sim.nodes
    worth = cost * nodes["done_mass"]
    begun = 0.0 if sim.mode == "cooperative" else cost  # the kernel also charges what is not done yet
    assert (nodes["busy"] >= worth * (1 - 1e-9) - 1e-9)[constant].all()
    assert (nodes["busy"] <= worth + begun + 1e-9)[constant].all()


# ---------------------------------------------------------------- repeatable


@few
@given(scenario=scenarios(), policy=st.integers(0, 3))
def test_a_seed_gives_one_run(scenario: Scenario, policy: int) -> None:
    first, again = Simulator(scenario), Simulator(scenario)
    drive(first, SECONDS, policy)
    drive(again, SECONDS, policy)
    assert same_results(first, again)
    assert all(np.array_equal(first.nodes[name], again.nodes[name]) for name in first.nodes)
    assert first.counters == again.counters


@few
@given(scenario=scenarios(modes=("cooperative", "os", "realtime")))
def test_every_policy_meets_the_same_arrivals_and_the_same_luck(scenario: Scenario) -> None:
    plain = scenario.model_copy(update={"query": tuple(_without_bounds(query) for query in scenario.query)})
    runs: list[Simulator] = []
    modes: tuple[Mode, ...] = ("cooperative", "os", "realtime")
    for policy, mode in enumerate(modes):
        sim = Simulator(plain, mode=mode)
        drive(sim, SECONDS / 2, policy)
        sim.advance(math.inf)
        runs.append(sim)
    for other in runs[1:]:
        assert np.array_equal(runs[0].state.arrival, other.state.arrival)
        for name in ("done", "emitted_mass"):
            assert np.array_equal(runs[0].nodes[name], other.nodes[name])
        assert np.allclose(runs[0].nodes["busy"], other.nodes["busy"])


def _without_bounds(query: QuerySpec) -> QuerySpec:
    """Drops, and what a join meets, depend on the order."""
    bare = tuple(op.model_copy(update={"capacity": None, "window": None}) for op in query.operator)
    return query.model_copy(update={"operator": bare})


@few
@given(
    scenario=scenarios(modes=("os", "realtime", "unit")),
    policy=st.integers(0, 3),
    stops=st.lists(st.floats(0.0, SECONDS), max_size=20),
)
def test_many_small_steps_are_one_big_step(scenario: Scenario, policy: int, stops: list[float]) -> None:
    whole, parts = Simulator(scenario), Simulator(scenario)
    for sim in (whole, parts):
        turn_knobs(sim, np.random.default_rng(policy))
    for until in [*sorted(stops), SECONDS]:
        while parts.advance(until):
            parts.decided()
    while whole.advance(SECONDS):
        whole.decided()
    assert same_results(whole, parts)
    assert all(np.array_equal(whole.nodes[name], parts.nodes[name]) for name in whole.nodes)


def same_results(a: Simulator, b: Simulator) -> bool:
    return all(
        np.array_equal(getattr(a.results, name), getattr(b.results, name)) for name in ("time", "latency", "mass")
    )


# ---------------------------------------------------------------- work conservation and latency


@st.composite
def lines(draw: st.DrawFn) -> Scenario:
    """A chain of constant costs, all input there at once, nothing that could hold a processor up."""
    length = draw(st.integers(1, 4))
    specs = [
        OperatorSpec(
            name=f"op{at}",
            upstream=(f"op{at - 1}",) if at else (),
            cost=Cost(mean=draw(st.sampled_from([0.001, 0.0025, 0.01]))),
            helper_cost=draw(st.sampled_from([None, None, 0.002])),
            source=None if at else Source(pattern="ticks", counts=(draw(st.integers(1, 60)),)),
        )
        for at in range(length)
    ]
    query = QuerySpec(name="q", operator=tuple(specs))
    fused = draw(st.sampled_from([(), *(p for p in _fusible(query) if specs[int(p[0][2:])].helper_cost is None)]))
    query = query.model_copy(update={"fused": (fused,) if fused else ()})
    execution = draw(executions(modes=("cooperative", "os", "realtime", "unit")))
    execution = execution.model_copy(update={"switch_cost": 0.0})
    return Scenario(title="t", seconds=SECONDS, query=(query,), execution=execution)


@few
@given(scenario=lines(), policy=st.integers(0, 3), until=st.floats(0.01, 0.3))
def test_one_processor_is_never_idle_while_there_is_work(scenario: Scenario, policy: int, until: float) -> None:
    execution = scenario.execution.model_copy(update={"processors": 1})
    sim = Simulator(scenario.model_copy(update={"execution": execution}))
    drive(sim, until, policy, step=0.03)
    if not sim.drained:
        under_way = sim.mode != "cooperative" or sim.per_unit
        not_yet_charged = float(sim.state.node["cost"].max()) if under_way else 0.0
        assert sim.counters["busy"] == pytest.approx(sim.now, abs=not_yet_charged + 1e-9)
    while sim.advance(math.inf):
        sim.decided()
    work = float(sim.state.node["cost"] @ sim.nodes["done_mass"])
    last = sim.results.time.max()
    assert last == pytest.approx(work)
    assert sim.counters["busy"] == pytest.approx(work)


@few
@given(scenario=lines(), policy=st.integers(0, 3))
def test_no_result_is_younger_than_the_work_it_took(scenario: Scenario, policy: int) -> None:
    sim = Simulator(scenario)
    drive(sim, SECONDS, policy)
    while sim.advance(math.inf):
        sim.decided()
    path = sum(op.cost.mean + (op.helper_cost or 0.0) for op in scenario.query[0].operator)
    assert len(sim.results.latency) == scenario.query[0].operator[0].source.counts[0]  # type: ignore[union-attr]
    assert sim.results.latency.min() >= path * (1 - 1e-9)


# ---------------------------------------------------------------- memory that grows


@pytest.mark.parametrize("mode", ["cooperative", "os"])
def test_the_pool_of_tuples_and_the_list_of_results_grow_as_needed(mode: Mode) -> None:
    query = QuerySpec(
        name="q",
        operator=(
            OperatorSpec(
                name="a",
                cost=Cost(mean=0.001),
                selectivity=Selectivity(mean=200),
                source=Source(pattern="ticks", counts=(400,)),
            ),
            OperatorSpec(name="b", upstream=("a",), cost=Cost(mean=0.00001)),
        ),
    )
    sim = Simulator(Scenario(title="t", query=(query,), execution=Execution(mode=mode)))
    if mode == "cooperative":
        sim.knobs()["rank"].write(sim.topology().ids[0], 1.0)  # all of a first, so that all of it is queued at b
    sim.advance(math.inf)
    assert sim.results.mass.sum() == 400 * 200
    check_tuples(sim)


@pytest.mark.parametrize("copies", [1000.0, 400.0])
def test_a_batch_ends_whole_at_the_barrier_also_when_the_pool_must_grow_meanwhile(copies: float) -> None:
    a = OperatorSpec(
        name="a",
        cost=Cost(mean=0.001),
        selectivity=Selectivity(mean=copies),
        source=Source(pattern="ticks", counts=(500,)),
    )
    b = OperatorSpec(name="b", upstream=("a",), cost=Cost(mean=0.001))
    execution = Execution(batch=100, period=0.05)
    sim = Simulator(Scenario(title="t", query=(QuerySpec(name="q", operator=(a, b)),), execution=execution))
    sim.advance(0.05)
    assert sim.now == pytest.approx(0.1)
    assert sim.nodes["done"].tolist() == [100, 0]
    sim.advance(0.15)
    assert sim.now == pytest.approx(0.2)
    check_tuples(sim)


def test_more_processors_may_emit_more_at_once() -> None:
    a = OperatorSpec(
        name="a",
        cost=Cost(mean=0.001),
        selectivity=Selectivity(mean=1000),
        parallelism=64,
        source=Source(pattern="ticks", counts=(640,)),
    )
    b = OperatorSpec(name="b", upstream=("a",), cost=Cost(mean=0.1))
    execution = Execution(mode="os")
    sim = Simulator(Scenario(title="t", query=(QuerySpec(name="q", operator=(a, b)),), execution=execution))
    sim.set_processors(64)
    sim.advance(0.0105)
    assert sim.nodes["done"][:64].sum() >= 10 * 63  # b has one of the processors from the first results on
    check_tuples(sim)
