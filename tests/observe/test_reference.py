"""Every derived metric of any graph and any history of counters equals a plain, slow, row-by-row reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.model import Operator, Query, Topology
from treadle.observe import METRICS, Provider
from treadle.observe.graph import TRACE
from treadle.values import Sample

COUNTERS = ("tuples_in", "tuples_out", "cpu_time", "busy_time", "run_wait")
BASE = (*COUNTERS, "batch_cost")
DERIVED = sorted(name for name, metric in METRICS.items() if metric.ways)
TAU, FORGET = 2.0, 5.0
NAN = math.nan


@st.composite
def queries(draw: st.DrawFn, name: str) -> Query:
    operators: list[Operator] = []
    for number in range(draw(st.integers(1, 6))):
        earlier = [op.name for op in operators]
        upstream = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        operators.append(Operator(f"o{number}", tuple(upstream)))
    return Query(name, tuple(operators))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Branches, joins, several sources and sinks, parallel copies, and fused pairs."""
    both = [draw(queries(name)) for name in ("p", "q")[: draw(st.integers(1, 2))]]
    copies = {(q.name, op.name): draw(st.integers(1, 3)) for q in both for op in q.operators}
    fused: list[tuple[str, tuple[str, ...]]] = []
    for query in both:
        taken: set[str] = set()
        for op in query.operators:
            pair = (*op.upstream, op.name)
            simple = len(pair) == 2 and len(query.downstream[pair[0]]) == 1 and taken.isdisjoint(pair)
            if simple and draw(st.booleans()):
                taken.update(pair)
                fused.append((query.name, pair))
    return Topology.of(both, parallelism=copies, fused=fused)


@st.composite
def histories(draw: st.DrawFn, rows: int) -> list[Sample]:
    """Counters that mostly grow, but also stand still, start anew, or are unknown for a while."""
    step = st.one_of(st.integers(0, 50), st.sampled_from([0, 0, NAN, math.inf, -1]))
    held = {name: np.zeros(rows) for name in BASE}
    time, samples = 0.0, []
    for _ in range(draw(st.integers(1, 5))):
        columns = {}
        for name in BASE:
            steps = np.array(draw(st.lists(step, min_size=rows, max_size=rows)), dtype=np.float64)
            finite = np.isfinite(steps)
            held[name] = np.where(steps == -1, 0.0, held[name] + np.where(finite, steps, 0.0))
            columns[name] = np.where(finite, held[name], steps)
        samples.append(Sample(time, columns))
        time += draw(st.sampled_from([0.0, 0.05, 1.0, 3.0]))
    return samples


@dataclass
class Reference:
    """The same metrics by recursion over single instances, with nothing shared with the code under test."""

    topology: Topology
    before: dict[str, list[float]] = field(default_factory=dict)
    time: float = NAN
    means: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    lumps: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)

    def update(self, sample: Sample) -> dict[str, list[float]]:
        rows = range(len(self.topology))
        passed = sample.time - self.time
        seconds = passed if passed > 0 else NAN
        now = {name: [float(v) for v in sample.columns[name]] for name in BASE}

        def grown(name: str, row: int) -> float:
            change = now[name][row] - self.before[name][row] if self.before else NAN
            return NAN if change < 0 else change

        def steady(name: str, row: int) -> float:
            return NAN if self.before and now[name][row] < self.before[name][row] else now[name][row]

        def queue(row: int) -> float:
            senders = [(up, share) for up in rows for down, share in self.readers(up) if down == row]
            if not senders:
                return NAN
            waiting = sum(share * steady("tuples_out", up) for up, share in senders) - steady("tuples_in", row)
            return waiting if math.isnan(waiting) else max(waiting, 0.0)

        def ratio(name: str, row: int) -> float:
            """Growth in rounds without input belongs to the next tuple that comes in soon enough."""
            growth, taken = grown(name, row), grown("tuples_in", row)
            lump, paused = self.lumps.get((name, row), (0.0, 0.0))
            growth += lump
            paused = paused + (seconds if passed > 0 else 0.0) if taken == 0 else 0.0
            keeps = taken == 0 and paused <= 10.0 and not math.isnan(growth)
            self.lumps[name, row] = (growth if keeps else 0.0), paused
            return growth / (taken or NAN)

        def smoothed(name: str, row: int, value: float) -> float:
            mean, age = self.means.get((name, row), (NAN, 0.0))
            age += passed if passed > 0 else 0.0
            if not math.isfinite(value):
                mean = NAN if age > FORGET else mean
            else:
                weight = 1.0 if math.isnan(mean) else 1.0 - math.exp(-age / TAU)
                mean, age = (value if math.isnan(mean) else (1.0 - weight) * mean + weight * value), 0.0
            self.means[name, row] = mean, age
            return mean

        now["queue"] = [queue(row) for row in rows]
        last = self.before.get("queue", [NAN] * len(rows))
        raw = {
            "queue_growth": [(now["queue"][row] - last[row]) / seconds for row in rows],
            "rate": [grown("tuples_in", row) / seconds for row in rows],
            "cpu": [grown("cpu_time", row) / seconds for row in rows],
            "busy": [grown("busy_time", row) / seconds for row in rows],
            "wait": [grown("run_wait", row) / seconds for row in rows],
            "cost": [ratio("cpu_time", row) for row in rows],
            "selectivity": [ratio("tuples_out", row) for row in rows],
        }
        for name, column in raw.items():
            now[name] = [smoothed(name, row, column[row]) for row in rows]
        now["global_selectivity"] = [self.results(now, row) for row in rows]
        now["next_cost"] = [self.next_cost(now, row) for row in rows]
        now["global_cost"] = [self.spent(now, row) for row in rows]
        now["global_rate"] = [
            s / (c if math.isnan(c) else max(c, 1e-9))
            for s, c in zip(now["global_selectivity"], now["global_cost"], strict=True)
        ]
        self.before, self.time = now, sample.time
        return now

    def readers(self, row: int) -> list[tuple[int, float]]:
        """Straight from the logical graph: each reader gets the stream whole, its copies share it."""
        mine = self.topology.instances[row]
        query = next(q for q in self.topology.queries if q.name == mine.query)
        found = []
        for name in mine.operators:
            for reader in query.downstream[name]:
                copies = [
                    r for r, i in enumerate(self.topology.instances) if i.query == query.name and reader in i.operators
                ]
                found += [(copy, 1.0 / len(copies)) for copy in copies if reader not in mine.operators]
        return found

    def results(self, now: dict[str, list[float]], row: int) -> float:
        own = now["selectivity"][row]
        if not self.readers(row):
            return (own if own >= 2 * TRACE else 0.0) if own > 0 else 1.0
        return 0.0 if own == 0 else own * sum(share * self.results(now, r) for r, share in self.readers(row))

    def next_cost(self, now: dict[str, list[float]], row: int) -> float:
        fixed = now["batch_cost"][row] / max(self.coming(now, row), 1.0)
        return now["cost"][row] + (0.0 if math.isnan(fixed) or math.isnan(now["queue"][row]) else fixed)

    def coming(self, now: dict[str, list[float]], row: int) -> float:
        """Rows that wait, here and upstream."""
        senders = [(up, share) for up in range(len(self.topology)) for down, share in self.readers(up) if down == row]
        kept = [1.0 if math.isnan(selectivity) else selectivity for selectivity in now["selectivity"]]
        sent = sum(share * (self.coming(now, up) * kept[up]) for up, share in senders)
        waiting = now["queue"][row]
        return (0.0 if math.isnan(waiting) else waiting) + (0.0 if math.isnan(sent) else sent)

    def spent(self, now: dict[str, list[float]], row: int) -> float:
        own, passed_on = now["next_cost"][row], now["selectivity"][row]
        if not self.readers(row) or passed_on == 0:
            return own
        return own + passed_on * sum(share * self.spent(now, r) for r, share in self.readers(row))


@settings(max_examples=120)
@given(st.data())
def test_every_derived_metric_of_a_random_graph_equals_the_reference(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    provider = Provider(BASE, DERIVED, tau=TAU, forget=FORGET)
    reference = Reference(topology)
    for sample in data.draw(histories(len(topology))):
        snapshot = provider.update(topology, sample)
        expected = reference.update(sample)
        for name in DERIVED:
            np.testing.assert_allclose(snapshot[name], expected[name], rtol=1e-9, atol=1e-9, err_msg=name)


@settings(max_examples=60)
@given(st.data())
def test_an_unknown_row_never_changes_a_row_that_does_not_feed_it(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    history = data.draw(histories(len(topology)))
    lost = data.draw(st.integers(0, len(topology) - 1))
    related = _connected(topology, lost)
    derived = [name for name in DERIVED if name != "next_cost"]  # which hangs on all that is upstream
    whole, holed = (Provider(COUNTERS, derived, tau=TAU, forget=FORGET) for _ in range(2))
    for sample in history:
        columns = {name: column.copy() for name, column in sample.columns.items()}
        for column in columns.values():
            column[lost] = NAN
        full, less = whole.update(topology, sample), holed.update(topology, Sample(sample.time, columns))
        for name in derived:
            np.testing.assert_array_equal(full[name][~related], less[name][~related])


def _connected(topology: Topology, row: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The row, all it hangs on to the left (path metrics), and the readers of its output (queues)."""
    start, end, _ = topology.edges
    mark = np.zeros(len(topology), dtype=np.bool_)
    mark[row] = True
    for _ in range(len(topology)):
        mark[start[mark[end]]] = True
    mark[end[start == row]] = True
    return mark
