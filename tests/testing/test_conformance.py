"""Treadle's own policies, engines and knobs pass the suites, and what is broken fails with a telling message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from treadle.decide import registry
from treadle.decide.policy import Policy
from treadle.enforce import Knob, Per, Target, Value
from treadle.engines.simulator import scenario
from treadle.engines.simulator.engine import Simulator
from treadle.errors import TargetGone
from treadle.loop import Engine
from treadle.model import Floats, Operator, Query, ThreadRef, Topology
from treadle.observe import METRICS
from treadle.testing import check_engine, check_knob, check_policy
from treadle.values import Groups, Sample, Schedule, Snapshot

# ---------------------------------------------------------------- our own pass

SPECS = [
    *(described.name for described in registry.describe() if described.name != "weighted"),
    "weighted:qs=0.5,hr=0.3,chain=0.2,congestion-aware=1",
    "multi-class:high=congestion-aware,low=(rr:step=2)",
    "adaptive:candidates=random+rr+chain,learner=thompson,objective=max output_rate",
]


@pytest.mark.parametrize("spec", SPECS)
def test_every_registered_policy_conforms(spec: str) -> None:
    check_policy(lambda rng: registry.create(spec, rng))


PLAN = """
title = "all that the simulator can offer"
seconds = 5
[execution]
mode = "MODE"
processors = 2
known = true
[[query]]
name = "q"
fused = [["filter", "map"]]
operator = [
  { name = "in", cost = 1e-3, helper_cost = 1e-4, source = { rate = 300 } },
  { name = "filter", upstream = ["in"], cost = 2e-3, selectivity = 0.5, parallelism = 2 },
  { name = "map", upstream = ["filter"], cost = 1e-3, parallelism = 2 },
  { name = "out", upstream = ["map"], cost = 1e-3 },
]
"""


@pytest.mark.parametrize("mode", ["cooperative", "os", "realtime"])
def test_the_simulator_and_its_knobs_conform_in_each_mode(mode: Literal["cooperative", "os", "realtime"]) -> None:
    plan = scenario.parse(PLAN.replace("MODE", mode), where="test")
    check_engine(lambda: Simulator(plan), pass_time=lambda sim: sim.advance(sim.now + 0.13), rounds=30)
    offered = Simulator.OFFERS | Simulator.KNOWN
    assert Simulator(plan).offers == offered - ({"run_wait"} if mode == "cooperative" else set())
    assert METRICS.keys() >= offered


def test_a_plan_without_helpers_and_with_measured_costs_offers_less_and_conforms() -> None:
    plan = scenario.load("random-10")
    check_engine(lambda: Simulator(plan), pass_time=lambda sim: sim.advance(sim.now + 0.3))
    assert not {"output_queue", "cost", "selectivity"} & Simulator(plan).offers


# ---------------------------------------------------------------- broken policies fail


class Good(Policy):
    name = "toy"
    needs: tuple[str, ...] = ("queue",)
    wants: tuple[str, ...] = ("head_age",)

    def decide(self, snapshot: Snapshot) -> Schedule:
        return Schedule(self.priority(snapshot))

    def priority(self, snapshot: Snapshot) -> Floats:
        return snapshot["queue"]


class TooShort(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        return snapshot["queue"][1:]


class Modifies(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        snapshot["queue"][:] = 7.0
        return np.zeros(len(snapshot.topology))


class DrawsByItself(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        return np.random.default_rng().random(len(snapshot.topology))


class Counts(Good):
    """Has state, but does not say so."""

    rounds = 0

    def priority(self, snapshot: Snapshot) -> Floats:
        self.rounds += 1
        return np.full(len(snapshot.topology), float(self.rounds))


class Forgets(Counts):
    """Saves its state, but does not load it."""

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}


class LoadsInVain(Forgets):
    """Loads what it saves, but goes on from something else."""

    def load(self, state: dict[str, Any]) -> None:
        self.loaded = state

    def state(self) -> dict[str, Any]:
        return getattr(self, "loaded", super().state())


class SavesArrays(Good):
    def state(self) -> dict[str, Any]:
        return {"last": np.zeros(2)}


class NeedsTheUnknown(Good):
    needs = ("queue_colour",)


class ReadsTheUndeclared(Good):
    needs = ()
    wants = ()


class ReadsWhatIsOnlyWanted(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        return snapshot["head_age"]


class Infinite(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        with np.errstate(divide="ignore"):
            return np.reciprocal(snapshot["queue"])


class Coarse(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        return snapshot["queue"].astype(np.float32)


class FailsOnNothing(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        return np.full(len(snapshot.topology), snapshot["queue"].max())


class KeepsTheFirstTopology(Good):
    size: int | None = None

    def priority(self, snapshot: Snapshot) -> Floats:
        self.size = self.size or len(snapshot.topology)
        return np.zeros(self.size)


class AllOrNothing(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        queue = snapshot["queue"]
        return np.full(len(queue), np.nan) if np.isnan(queue).any() else queue


class ShiftsWhenUnknown(Good):
    def priority(self, snapshot: Snapshot) -> Floats:
        queue = snapshot["queue"]
        return queue + float(np.isnan(queue).sum())


class WidensHelpers(Good):
    def decide(self, snapshot: Snapshot) -> Schedule:
        queue = snapshot["queue"]
        return Schedule(queue, helper=np.column_stack([queue, queue]))


class LosesMembers(Good):
    def decide(self, snapshot: Snapshot) -> Schedule:
        rows = len(snapshot.topology)
        return Schedule(snapshot["queue"], groups=Groups(("all",), np.ones(rows, dtype=np.int64), np.ones(1)))


BROKEN_POLICIES: list[tuple[type[Good], str]] = [
    (TooShort, r"priority has shape \(\d+, 1\), but there are \d+ rows; given three queries with everything known"),
    (Modifies, r"modified column 'queue' of the snapshot; given three queries"),
    (DrawsByItself, r"is not repeatable: another of the same seed gave another priority"),
    (Counts, r"is not repeatable: it has no state\(\), but gave another priority"),
    (Forgets, r"its state is \{\"rounds\": \d+\}, but \{\"rounds\": 0\} once it was loaded"),
    (LoadsInVain, r"does not go on where it was: loaded from its state\(\) it gave another priority"),
    (SavesArrays, r"turning its state\(\) into JSON raised TypeError: Object of type ndarray"),
    (NeedsTheUnknown, r"needs 'queue_colour', which is no metric"),
    (ReadsTheUndeclared, r"raised EngineError: metric 'queue' is not in this snapshot"),
    (
        ReadsWhatIsOnlyWanted,
        r"decide on three queries with everything known \(\d+ rows, only what it needs\) raised Eng",
    ),
    (Infinite, r"priority is infinite in rows 0, 2.*; given three queries with some queues empty"),
    (Coarse, r"priority is of float32, not float64"),
    (FailsOnNothing, r"decide on no rows with everything known \(0 rows, all it wants\) raised ValueError"),
    (KeepsTheFirstTopology, r"but there are \d+ rows; given one query more"),
    (AllOrNothing, r"of unknown 'world:q0\..*' also rows .* of other queries became unknown"),
    (ShiftsWhenUnknown, r"of unknown 'world:q0\..*' rows .* changed, too"),
    (WidensHelpers, r"helpers have one number a row"),
    (LosesMembers, r"rows 0, 1, .* are in groups that don't exist"),
]


@pytest.mark.parametrize(("policy", "says"), BROKEN_POLICIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_policy_is_told_what_was_wrong_and_for_which_input(policy: type[Good], says: str) -> None:
    with pytest.raises(AssertionError, match=rf"^policy 'toy': .*{says}"):
        check_policy(lambda rng: policy())


def test_a_policy_on_the_graph_may_spread_the_unknown_within_its_query() -> None:
    class Downstream(Good):
        def priority(self, snapshot: Snapshot) -> Floats:
            start, end, _ = snapshot.topology.edges
            total = snapshot["queue"].copy()
            np.add.at(total, start, snapshot["queue"][end])
            return total

    check_policy(lambda rng: Downstream())


def test_one_policy_for_all_calls_of_make_is_refused() -> None:
    only = Good()
    with pytest.raises(AssertionError, match="`make` gave the same policy twice"):
        check_policy(lambda rng: only)


def test_a_metric_of_the_plug_in_itself_can_be_allowed() -> None:
    class Own(Good):
        needs = ("temperature",)

        def priority(self, snapshot: Snapshot) -> Floats:
            return snapshot["temperature"]

    check_policy(lambda rng: Own(), metrics={*METRICS, "temperature"})


# ---------------------------------------------------------------- broken knobs fail


class Dial:
    """A knob in memory."""

    name = "dial"
    per: Per = "instance"

    def __init__(self, values: dict[Target, Value]) -> None:
        self.values = values

    def read(self, target: Target) -> Value:
        if target not in self.values:
            raise TargetGone(f"no {target}")
        return self.values[target]

    def write(self, target: Target, value: Value) -> None:
        self.read(target)
        self.values[target] = value


class Stuck(Dial):
    def write(self, target: Target, value: Value) -> None:
        self.read(target)


class Rounds(Dial):
    def write(self, target: Target, value: Value) -> None:
        super().write(target, float(round(float(value))))


class Shared(Dial):
    def write(self, target: Target, value: Value) -> None:
        self.read(target)
        self.values.update(dict.fromkeys(self.values, value))


class OnlyUp(Dial):
    """As niceness for most users: it never goes back."""

    def write(self, target: Target, value: Value) -> None:
        super().write(target, max(float(value), float(self.read(target))))


class Raises(Dial):
    def read(self, target: Target) -> Value:
        return self.values[target]


class Invents(Dial):
    def read(self, target: Target) -> Value:
        return self.values.get(target, 0.0)

    def write(self, target: Target, value: Value) -> None:
        self.values[target] = value


class Refuses(Dial):
    def write(self, target: Target, value: Value) -> None:
        raise PermissionError("not yours")


class PerOddThing(Dial):
    per = "process"  # type: ignore[assignment]


BROKEN_KNOBS: list[tuple[type[Dial], str]] = [
    (Stuck, r"wrote 1.5 to a, but it reads 0.0"),
    (Rounds, r"wrote 1.5 to a, but it reads 2.0"),
    (Shared, r"writing 1.5 to a changed b from 0.0 to 1.5"),
    (OnlyUp, r"enforcing failed: .* wrote 1.5, but it reads 3.0"),
    (Raises, r"read of no such target, which does not exist, raised KeyError.* instead of TargetGone"),
    (Invents, r"read of no such target, which does not exist, gave 0.0 instead of TargetGone"),
    (Refuses, r"write of 1.5 to a raised PermissionError: not yours"),
    (PerOddThing, r"is per 'process', not one of thread, instance, group"),
]


@pytest.mark.parametrize(("knob", "says"), BROKEN_KNOBS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_knob_is_told_what_was_wrong_and_for_which_target(knob: type[Dial], says: str) -> None:
    values: dict[Target, Value] = {"a": 0.0, "b": 0.0}
    with pytest.raises(AssertionError, match=f"^knob 'dial': {says}"):
        check_knob(lambda: knob(values), ["a", "b"], [1.5, 3.0])


def test_a_good_knob_passes_and_finds_everything_as_it_was() -> None:
    values: dict[Target, Value] = {"a": 5.0, "b": float("nan")}
    check_knob(lambda: Dial(values), ["a", "b"], [1.5, 3.0])
    assert values["a"] == 5.0
    assert values["b"] != values["b"]
    words: dict[Target, Value] = {"a": "blue"}
    check_knob(lambda: Dial(words), ["a"], ["red", "green"], gone="nobody")
    assert words == {"a": "blue"}


def test_a_knob_that_fails_the_suite_is_put_back_as_far_as_it_goes() -> None:
    values: dict[Target, Value] = {"a": 0.0, "b": 0.0}
    with pytest.raises(AssertionError):
        check_knob(lambda: Rounds(values), ["a", "b"], [1.5, 3.0])
    assert values == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    ("targets", "values", "says"),
    [
        ([], [1.0, 2.0], "one target at least"),
        (["a"], [1.0, 1.0], "two different values at least"),
        ([ThreadRef(1)], [1.0, 2.0], "is per instance, but ThreadRef"),
    ],
)
def test_a_check_of_a_knob_that_would_check_nothing_says_so(
    targets: list[Target], values: list[Value], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_knob(lambda: Dial({"a": 0.0}), targets, values)


# ---------------------------------------------------------------- broken engines fail

TOPOLOGY = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))], engine="toy")


class Toy:
    """An engine in memory, whose time passes by looking at it."""

    name = "toy"
    offers = frozenset({"queue", "tuples_in"})

    def __init__(self) -> None:
        self.ticks = itertools.count(1.0)
        self.dial = Dial(dict.fromkeys(TOPOLOGY.ids, 0.0))

    def topology(self) -> Topology:
        return TOPOLOGY

    def sample(self, wanted: frozenset[str]) -> Sample:
        now = next(self.ticks)
        return Sample(now, {name: np.full(2, now) for name in wanted & self.offers}, {"total_queue": now})

    def knobs(self) -> Mapping[str, Knob]:
        return {"dial": self.dial}


class GoesBack(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        sample = super().sample(wanted)
        return replace(sample, columns={name: np.array([1.0, 1.0 / sample.time]) for name in sample.columns})


class Long(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        sample = super().sample(wanted)
        return replace(sample, columns={name: np.ones(3) for name in sample.columns})


class Withholds(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        return super().sample(wanted - {"queue"})


class Whole(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        sample = super().sample(wanted)
        return replace(sample, columns={name: np.ones(2, dtype=np.int64) for name in sample.columns})


class Strict(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        now = next(self.ticks)
        return Sample(now, {name: {"queue": np.ones(2), "tuples_in": np.full(2, now)}[name] for name in wanted})


class Fantasises(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        now = next(self.ticks)
        return Sample(now, {name: np.full(2, now) for name in wanted})


class AllAtOnce(Toy):
    """Can only give all it offers."""

    def sample(self, wanted: frozenset[str]) -> Sample:
        return super().sample(wanted if len(wanted) > 1 else frozenset())


class OffersTheUnknown(Toy):
    offers = frozenset({"queue", "mood"})


class ChangesUnnoticed(Toy):
    def topology(self) -> Topology:
        extra = Query(f"q{next(self.ticks)}", (Operator("a"),))
        return Topology.of([extra, Query("p", (Operator("a"),))], engine="toy")


class NeverRests(Toy):
    def topology(self) -> Topology:
        return replace(TOPOLOGY, version=int(next(self.ticks)))


class StandsStill(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        return replace(super().sample(wanted), time=3.0)


class TurnsBack(Toy):
    def sample(self, wanted: frozenset[str]) -> Sample:
        sample = super().sample(wanted)
        return replace(sample, time=-sample.time)


class Misnames(Toy):
    def knobs(self) -> Mapping[str, Knob]:
        return {"wheel": self.dial}


class HasStuckKnob(Toy):
    def knobs(self) -> Mapping[str, Knob]:
        return {"dial": Stuck(self.dial.values)}


class HasNoGroups(Toy):
    def knobs(self) -> Mapping[str, Knob]:
        self.dial.per = "group"
        return {"dial": self.dial}


BROKEN_ENGINES: list[tuple[type[Toy], str]] = [
    (GoesBack, r"counter 'tuples_in' of 'toy:q\.b\[0\]' went back from 1.0 to 0.5 between the times 1.0 and 2.0"),
    (Long, r"'queue' has shape \(3,\), but there are 2 instances"),
    (Withholds, r"offers 'queue', but did not give it when it was wanted"),
    (Whole, r"'queue' is of int64, not float64"),
    (Strict, r"sample\(\['no_such_metric', 'queue', 'tuples_in'\]\) raised KeyError"),
    (Fantasises, r"gave values for 'no_such_metric'"),
    (AllAtOnce, r"offers 'queue', but did not give it when it was wanted"),
    (OffersTheUnknown, r"offers 'mood', which is no metric"),
    (ChangesUnnoticed, r"its topology changed, but its version is still 0"),
    (NeverRests, r"its topology had another version in each of 10 samples"),
    (StandsStill, r"its time stood still at 3.0; let it pass with `pass_time`"),
    (TurnsBack, r"its time went back from -1.0 to -2.0"),
    (Misnames, r"knob 'wheel' calls itself 'dial'"),
    (HasNoGroups, r"has knob 'dial' per group, but no knob 'group' that makes groups"),
]


@pytest.mark.parametrize(("engine", "says"), BROKEN_ENGINES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_engine_is_told_what_was_wrong(engine: Callable[[], Engine], says: str) -> None:
    with pytest.raises(AssertionError, match=f"^engine 'toy': {says}"):
        check_engine(engine, values={"dial": [1.0, 2.0]})


# ---------------------------------------------------------------- engines whose metrics contradict each other fail

SHARED = Topology.of([Query("q", (Operator("a"), Operator("b", ("a",))))], parallelism={("q", "b"): 2}, engine="toy")


class Honest(Toy):
    """Each second 12 rows come, `a` takes 10 of them, and `b` 8 of these: one copy 5 of 6, the other 3 of 4."""

    offers = frozenset({"tuples_in", "tuples_out", "queue", "external_queue", "head_age"})

    def topology(self) -> Topology:
        return SHARED

    def sample(self, wanted: frozenset[str]) -> Sample:
        now = next(self.ticks)
        columns = {name: now * column for name, column in self.per_second(now).items()}
        return Sample(now, {name: columns[name] for name in wanted & self.offers})

    def per_second(self, now: float) -> dict[str, Floats]:
        return {
            "tuples_in": np.array([10.0, 5.0, 3.0]),
            "tuples_out": np.array([10.0, 5.0, 3.0]),
            "queue": np.array([0.0, 1.0, 1.0]),
            "external_queue": np.array([2.0, 0.0, 0.0]),
            "head_age": np.array([0.0, 1.0 / 6.0, 1.0 / 4.0]),
        }

    def knobs(self) -> Mapping[str, Knob]:
        return {}


class GuessesQueue(Honest):
    """It says what is usual."""

    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"queue": np.array([0.0, 2.0, 2.0]) / now}


class GuessesTaken(Honest):
    """It takes what was put out for what was taken in, too."""

    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"tuples_in": np.array([10.0, 6.0, 4.0])}


class LosesRows(Honest):
    """It does not count all that leaves an operator."""

    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"tuples_out": np.array([9.0, 5.0, 3.0])}


class GuessesLag(Honest):
    """What it says of Kafka shrinks faster than it takes rows from there."""

    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"external_queue": np.array([max(0.0, 100.0 - 20.0 * now) / now, 0.0, 0.0])}


class SeesNoAge(Honest):
    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"head_age": np.zeros(3)}


class OldWithoutRows(Honest):
    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"tuples_in": np.array([10.0, 6.0, 4.0]), "queue": np.zeros(3)}


class Owes(Honest):
    def per_second(self, now: float) -> dict[str, Floats]:
        return super().per_second(now) | {"queue": np.array([0.0, 3.0, -1.0])}


class MarksByName(Honest):
    def sample(self, wanted: frozenset[str]) -> Sample:
        return replace(super().sample(wanted), estimated={"queue": True})  # type: ignore[dict-item]


class IsLate(Honest):
    """Its queues are those of a second ago."""

    def per_second(self, now: float) -> dict[str, Floats]:
        true = super().per_second(now)
        return true | {"queue": true["queue"] * (now - 1.0) / now, "head_age": true["head_age"] * (now - 1.0) / now}


LIARS: list[tuple[type[Honest], str]] = [
    (GuessesQueue, r"'q\.b' has a queue of 4 at the time 1, but 10 rows were put out for it and it has taken in 8"),
    (GuessesTaken, r"'q\.b' has a queue of 2 at the time 1, but 10 rows were put out for it and it has taken in 10"),
    (LosesRows, r"'q\.b' has a queue of 2 at the time 1, but 9 rows were put out for it and it has taken in 8"),
    (
        GuessesLag,
        r"'q\.a' has an external queue of 80 at the time 1 and of 60 at 2, but has taken in 10 rows in between",
    ),
    (
        SeesNoAge,
        r"'head_age' of 'toy:q\.b\[1\]' is 0 at the time 5, but of the 4 rows that waited at 4 it has taken in 3",
    ),
    (OldWithoutRows, r"'toy:q\.b\[0\]' has an empty queue at the time 1, but 'head_age' is 0.166667"),
    (Owes, r"'queue' of 'toy:q\.b\[1\]' is -1 at the time 1"),
    (MarksByName, r"`estimated` of 'queue' is True, not true or false for each of 3 rows"),
    (IsLate, r"'q\.b' has a queue of 0 at the time 1, but 10 rows were put out for it and it has taken in 8"),
]


@pytest.mark.parametrize(("engine", "says"), LIARS, ids=lambda value: getattr(value, "__name__", ""))
def test_an_engine_whose_metrics_contradict_each_other_is_told_where(engine: Callable[[], Engine], says: str) -> None:
    with pytest.raises(AssertionError, match=f"^engine 'toy': {says}"):
        check_engine(engine)


def test_an_honest_engine_passes_however_a_stream_is_divided_among_copies() -> None:
    check_engine(Honest, rounds=20)


def test_what_is_marked_as_an_estimate_need_not_agree() -> None:
    class Estimates(GuessesQueue):
        def sample(self, wanted: frozenset[str]) -> Sample:
            return replace(super().sample(wanted), estimated={"queue": np.array([False, True, True])})

    check_engine(Estimates, rounds=20)


def test_values_may_be_apart_by_as_much_as_is_said_and_no_more() -> None:
    check_engine(IsLate, rounds=20, apart=1.0)
    with pytest.raises(AssertionError, match=r"has a queue of .*; within 0\.5 s that is"):
        check_engine(GuessesQueue, rounds=50, apart=0.5)
    with pytest.raises(AssertionError, match=r"was observed for 4 s; let more than 4 s pass"):
        check_engine(IsLate, apart=2.0)


def test_rows_in_an_output_queue_may_be_counted_on_either_side() -> None:
    class HoldsBack(Honest):
        offers = Honest.offers | {"output_queue"}
        inside = 0.0

        def per_second(self, now: float) -> dict[str, Floats]:
            true = super().per_second(now) | {"output_queue": np.array([1.0, 0.0, 0.0])}
            return true | {"queue": np.array([0.0, 0.5 + self.inside, 0.5])}

    check_engine(HoldsBack, rounds=3)
    for off in (0.6, -0.1):
        wrong = HoldsBack()
        wrong.inside = 2.0 * off
        with pytest.raises(AssertionError, match=r"'q\.b' has a queue of"):
            check_engine(lambda engine=wrong: engine, rounds=3)  # type: ignore[misc]


# ---------------------------------------------------------------- what an engine passes and fails besides


def test_a_good_engine_passes_and_its_knobs_are_as_they_were() -> None:
    engine = Toy()
    check_engine(lambda: engine, values={"dial": [1.0, 2.0]})
    assert set(engine.dial.values.values()) == {0.0}


def test_a_broken_knob_of_an_engine_is_told_by_its_name() -> None:
    with pytest.raises(AssertionError, match=r"^knob 'dial': wrote 1.0 to toy:q.a\[0\], but it reads 0.0"):
        check_engine(HasStuckKnob, values={"dial": [1.0, 2.0]})


def test_a_knob_without_a_scale_needs_values_to_be_checked_with() -> None:
    with pytest.raises(AssertionError, match=r"say which values knob 'dial' takes: values=\{'dial': \[...\]\}"):
        check_engine(Toy)


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"is no treadle\.loop\.Engine"):
        check_engine(object)  # type: ignore[type-var]


def test_a_failure_is_the_same_for_the_same_seed() -> None:
    told = []
    for _ in range(2):
        with pytest.raises(AssertionError) as error:
            check_policy(lambda rng: Infinite(), seed=5)
        told.append(str(error.value))
    assert told[0] == told[1]
