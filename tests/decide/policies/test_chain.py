from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.decide.policies import Chain, segments
from treadle.decide.policies.shared.progress import Envelope, plan_of
from treadle.model import Floats, Operator, Query, Topology
from treadle.values import Snapshot

NAN = float("nan")
Line = Callable[..., Query]
Seen = Callable[..., Snapshot]


def slopes(topology: Topology, cost: Floats, selectivity: Floats) -> Floats:
    return Envelope(plan_of(topology), cost, selectivity).slopes()[0]


# ---------------------------------------------------------------- by hand


def test_the_amos_plan_is_operator_1_alone_then_2_and_3_together(line: Line) -> None:
    topology = Topology.of([line(3)])
    found = segments(topology, np.array([0.5, 1.0, 2.0]), np.array([0.25, 0.5, 0.8]))
    assert [(s.rows, s.slope) for s in found] == [((0,), 1.5), ((1, 2), 0.5)]
    assert [(s.cost, s.freed) for s in found] == [(0.5, 0.75), (2.0, 1.0)]


def test_a_source_whose_tuples_wait_outside_frees_nothing_and_comes_last(line: Line, seen: Seen) -> None:
    topology, policy = Topology.of([line(3)]), Chain()
    columns = {"cost": [0.5, 1.0, 2.0], "selectivity": [0.25, 0.5, 0.8], "queue": [0, 1, 1]}
    assert policy.decide(seen(topology, **columns)).scalar.tolist() == pytest.approx([1.5, 0.5, 0.5])
    for waiting in (9, 0):  # it stays so while nothing waits
        slope = policy.decide(seen(topology, **columns, external_queue=[waiting, NAN, NAN])).scalar
        assert slope.tolist() == pytest.approx([0.0, 0.5, 0.5])


def test_an_operator_that_frees_little_joins_the_steep_one_behind_it(line: Line) -> None:
    topology = Topology.of([line(2)])
    assert slopes(topology, np.array([1.0, 1.0]), np.array([0.9, NAN])).tolist() == pytest.approx([1 / 1.9] * 2)


def test_an_operator_that_multiplies_tuples_waits_for_those_that_discard_them(line: Line) -> None:
    topology = Topology.of([line(3)])
    cost, selectivity = np.array([1.0, 1.0, 1.0]), np.array([3.0, 0.5, 1.0])
    # alone it frees -2; with b -0.5 for 4 s; with c the whole tuple for 5.5 s
    assert slopes(topology, cost, selectivity).tolist() == pytest.approx([1 / 5.5] * 3)


def test_a_branch_gives_its_output_to_each_consumer() -> None:
    query = Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c", ("a",))))
    topology = Topology.of([query])
    found = segments(topology, np.array([1.0, 0.1, 10.0]), np.array([0.4, NAN, NAN]))
    # a frees 1 - 2 * 0.4 = 0.2 and takes b in: 0.6 for 1.04 s; c frees 0.1 per second and stays behind
    assert [s.rows for s in found] == [(0, 1), (2,)]
    assert [s.slope for s in found] == pytest.approx([0.6 / 1.04, 0.1])


def test_a_join_takes_the_steepest_chain_that_it_is_in() -> None:
    query = Query("q", (Operator("a"), Operator("b"), Operator("c", ("a", "b"))))
    found = slopes(Topology.of([query]), np.array([1.0, 8.0, 0.5]), np.array([1.0, 1.0, NAN]))
    assert found.tolist() == pytest.approx([1 / 1.5, 1 / 8.5, 1 / 1.5])


def test_a_diamond_counts_the_flow_of_both_arms() -> None:
    query = Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c", ("a",)), Operator("d", ("b", "c"))))
    found = segments(Topology.of([query]), np.ones(4), np.array([0.5, 1.0, 1.0, NAN]))
    assert [(s.rows, s.cost, s.freed) for s in found] == [((0, 1, 3, 2), 3.0, 1.0)]


def test_a_cost_of_zero_is_steep_and_no_error(line: Line) -> None:
    topology = Topology.of([line(3)])
    found = slopes(topology, np.zeros(3), np.array([0.5, 1.0, NAN]))
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(0.5e9)


def test_an_operator_that_lets_nothing_through_leaves_the_rest_to_itself(line: Line) -> None:
    found = segments(Topology.of([line(2)]), np.array([4.0, 1.0]), np.array([0.0, NAN]))
    assert [(s.rows, s.slope) for s in found] == [((1,), 1.0), ((0,), 0.25)]


def test_what_follows_an_operator_that_nothing_reaches_begins_anew_too() -> None:
    query = Query("q", (Operator("a"), Operator("b", ("a",)), Operator("c"), Operator("d", ("b", "c"))))
    found = slopes(Topology.of([query]), np.array([1.0, 0.5, 1.0, 2.0]), np.array([0.0, 0.5, 1.0, NAN]))
    assert found.tolist() == pytest.approx([1.0, 1.0, 1 / 3, 0.5])


def test_what_is_behind_an_unknown_operator_begins_anew(line: Line) -> None:
    found = slopes(Topology.of([line(3)]), np.array([NAN, 1.0, 2.0]), np.array([0.25, 0.5, NAN]))
    assert found.tolist() == pytest.approx([NAN, 0.5, 0.5], nan_ok=True)


def test_an_unknown_operator_does_not_spoil_a_chain_that_is_steeper_than_it_can_be(line: Line) -> None:
    cost, selectivity = np.array([0.5, 1.0, NAN]), np.array([0.25, 0.5, 0.8])
    # b frees at most its tuple in its own second, so a with 1.5 stays alone whatever c costs
    assert slopes(Topology.of([line(3)]), cost, selectivity).tolist() == pytest.approx([1.5, NAN, NAN], nan_ok=True)


def test_the_selectivity_of_a_sink_is_not_needed(line: Line) -> None:
    assert slopes(Topology.of([line(1)]), np.array([2.0]), np.array([NAN])).tolist() == [0.5]


# ---------------------------------------------------------------- the policy


def test_the_priority_is_the_slope_then_the_age_of_the_head(line: Line, seen: Seen) -> None:
    snapshot = seen(
        Topology.of([line(3)]), cost=[0.5, 1, 2], selectivity=[0.25, 0.5, 0.8], head_age=[1, NAN, 7], queue=[3, 0, 1]
    )
    schedule = Chain().decide(snapshot)
    assert schedule.priority.tolist() == [[1.5, 1], [0.5, 0], [0.5, 7]]
    assert schedule.reason == "steepest chain first; q.a[0] frees 1.5 tuples per CPU second"


def test_without_ages_the_slope_is_all(line: Line, seen: Seen) -> None:
    schedule = Chain().decide(seen(Topology.of([line(3)]), cost=[0.5, 1, 2], selectivity=[0.25, 0.5, 0.8]))
    assert schedule.scalar.tolist() == [1.5, 0.5, 0.5]
    assert schedule.spacing == "log"


def test_a_new_topology_is_drawn_anew(line: Line, seen: Seen) -> None:
    policy = Chain()
    policy.decide(seen(Topology.of([line(3)]), cost=[1, 1, 1], selectivity=[1, 1, 1]))
    later = policy.decide(seen(Topology.of([line(2)]), cost=[1, 1], selectivity=[1, 1]))
    assert later.scalar.tolist() == [0.5, 0.5]


# ---------------------------------------------------------------- against references

COSTS = st.floats(0.01, 10)
SELECTIVITIES = st.one_of(st.floats(0.01, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]))


@st.composite
def plans(draw: st.DrawFn, most: int = 6) -> tuple[Topology, Floats, Floats]:
    """Trees, joins and diamonds, some with two copies of an operator."""
    queries, copies = [], {}
    for number in range(draw(st.integers(1, 2))):
        operators = []
        for i in range(draw(st.integers(1, most))):
            ups = draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
            operators.append(Operator(f"o{i}", tuple(f"o{up}" for up in ups)))
        queries.append(Query(f"q{number}", tuple(operators)))
        if draw(st.booleans()):
            copies[f"q{number}", f"o{draw(st.integers(0, len(operators) - 1))}"] = 2
    topology = Topology.of(queries, parallelism=copies)
    count = len(topology)
    cost = draw(st.lists(COSTS, min_size=count, max_size=count))
    selectivity = draw(st.lists(SELECTIVITIES, min_size=count, max_size=count))
    return topology, np.array(cost), np.array(selectivity)


class Naive:
    """Every connected part of the unrolled plan below an operator, one by one, and the best of them."""

    def __init__(self, topology: Topology, cost: Floats, selectivity: Floats) -> None:
        self.cost = cost.tolist()
        self.out: list[list[tuple[int, float]]] = [[] for _ in self.cost]
        for start, end, share in zip(*(a.tolist() for a in topology.edges), strict=True):
            if selectivity[start] > 0:
                self.out[start].append((end, share * selectivity[start]))
        fan_out = [
            sum(s for a, s in zip(topology.edges[0], topology.edges[2], strict=True) if a == r) for r in self.rows
        ]
        self.freed = [1 - s * f if f else 1.0 for s, f in zip(selectivity.tolist(), fan_out, strict=True)]
        self.found = [-math.inf] * len(self.cost)
        for row in self.rows:
            if not any(row == end for ends in self.out for end, _ in ends):
                self.assign(row)

    @property
    def rows(self) -> range:
        return range(len(self.cost))

    def parts(self, row: int) -> list[tuple[float, float, list[int], list[int]]]:
        """(freed, cost, members, what follows) of each connected part that begins here."""
        choices = [
            [(0.0, 0.0, [], [end]), *((f * flow, c * flow, m, b) for f, c, m, b in self.parts(end))]
            for end, flow in self.out[row]
        ]
        return [
            (
                self.freed[row] + sum(part[0] for part in chosen),
                self.cost[row] + sum(part[1] for part in chosen),
                [row, *(member for part in chosen for member in part[2])],
                [head for part in chosen for head in part[3]],
            )
            for chosen in itertools.product(*choices)
        ]

    def assign(self, head: int) -> None:
        freed, cost, members, following = max(self.parts(head), key=lambda part: (part[0] / part[1], len(part[2])))
        for row in members:
            self.found[row] = max(self.found[row], freed / cost)
        for row in following:
            self.assign(row)


@given(plans())
@settings(max_examples=150)
def test_slopes_are_those_of_the_best_connected_parts(plan: tuple[Topology, Floats, Floats]) -> None:
    assert slopes(*plan).tolist() == pytest.approx(Naive(*plan).found)


def lower_envelope(cost: list[float], selectivity: list[float]) -> list[float]:
    """The slope over each operator of a line, with a ruler: from each corner to the point that is steepest down."""
    sizes = [1.0, *itertools.accumulate(selectivity, lambda a, b: a * b)]
    times = [0.0, *itertools.accumulate(c * size for c, size in zip(cost, sizes, strict=False))]
    sizes[-1] = 0.0
    found: list[float] = []
    while len(found) < len(cost):
        at = len(found)
        slope, to = max(((sizes[at] - sizes[k]) / (times[k] - times[at]), k) for k in range(at + 1, len(sizes)))
        found += [slope] * (to - at)
    return found


@given(st.lists(st.tuples(COSTS, st.floats(0.05, 3)), min_size=1, max_size=12))
def test_on_a_line_slopes_are_those_of_the_geometric_lower_envelope(numbers: list[tuple[float, float]]) -> None:
    cost, selectivity = (list(column) for column in zip(*numbers, strict=True))
    operators = tuple(Operator(str(i), (str(i - 1),) if i else ()) for i in range(len(cost)))
    found = slopes(Topology.of([Query("q", operators)]), np.array(cost), np.array(selectivity))
    assert found.tolist() == pytest.approx(lower_envelope(cost, selectivity))
    assert (np.diff(found) <= 1e-9 * found[:-1]).all(), "the envelope is convex"


@given(plans(), st.data())
@settings(max_examples=150)
def test_a_block_is_known_only_if_no_missing_number_could_change_it(
    plan: tuple[Topology, Floats, Floats], data: st.DataObject
) -> None:
    topology, cost, selectivity = plan
    missing = st.lists(st.booleans(), min_size=len(topology), max_size=len(topology))
    holey = Envelope(
        plan_of(topology),
        np.where(data.draw(missing, label="cost missing"), NAN, cost),
        np.where(data.draw(missing, label="selectivity missing"), NAN, selectivity),
    )
    whole = Envelope(plan_of(topology), cost, selectivity)
    known = ~np.isnan(holey.slope)
    assert holey.slope[known].tolist() == pytest.approx(whole.slope[known].tolist())


@given(plans())
def test_segments_hold_every_row_and_say_what_the_slopes_say(plan: tuple[Topology, Floats, Floats]) -> None:
    found = segments(*plan)
    steepest = np.full(len(plan[0]), -math.inf)
    for segment in found:
        assert segment.slope == pytest.approx(segment.freed / segment.cost)
        rows = list(segment.rows)
        steepest[rows] = np.maximum(steepest[rows], segment.slope)
    assert steepest.tolist() == slopes(*plan).tolist()
    assert [s.slope for s in found] == sorted((s.slope for s in found), reverse=True)


def test_copies_that_all_feed_each_other_cost_no_more_than_their_number() -> None:
    operators = tuple(Operator(f"o{i}", (f"o{i - 1}",) if i else ()) for i in range(6))
    query = Query("q", operators)
    topology = Topology.of([query], parallelism={("q", op.name): 8 for op in operators})
    alike = slopes(topology, np.repeat([1.0, 3.0, 0.5, 2.0, 0.1, 0.7], 8), np.repeat([0.9, 0.7, 1.4, 0.3, 0.8, 1.0], 8))
    alone = slopes(
        Topology.of([query]), np.array([1.0, 3.0, 0.5, 2.0, 0.1, 0.7]), np.array([0.9, 0.7, 1.4, 0.3, 0.8, 1])
    )
    assert alike.tolist() == pytest.approx(np.repeat(alone, 8).tolist())
