"""The conformance suite for engines: topology versions, offered metrics, counters that never fall, and knobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from treadle.decide.transform import SCALES
from treadle.enforce import Enforcer, Knob, Target, Value
from treadle.loop import Engine
from treadle.model import Topology
from treadle.observe import METRICS
from treadle.testing._agreement import Look, check_agreement
from treadle.testing._demand import blaming, demand
from treadle.testing.knob import check_knob
from treadle.values import Sample

COUNTERS = frozenset({"tuples_in", "tuples_out", "cpu_time", "busy_time", "batches", "run_wait"})
"""Metrics that count since the start of an instance, and so never fall."""
UNKNOWN = "no_such_metric"
MEMBERSHIP = "group"
GROUPS = ("treadle-check-a", "treadle-check-b")
TRIES = 10
"""Attempts to sample an engine while its topology changes."""

E = TypeVar("E", bound=Engine)


def check_engine(
    make: Callable[[], E],
    *,
    pass_time: Callable[[E], object] = lambda _: None,
    rounds: int = 5,
    values: Mapping[str, Sequence[Value]] | None = None,
    metrics: Collection[str] = METRICS,
    apart: float = 0.0,
) -> None:
    """Sample a running engine for some rounds, then set its knobs and restore them.

    `pass_time` lets time pass between two samples, for an engine with a clock that does not run by itself. `values` are
    the values to write to a knob, by the knob's name, if Treadle has no scale for the knob or the knob has narrower
    limits. `metrics` are the names that the engine may offer. Measured metrics must agree (see `_agreement`); values
    that are marked in `Sample.estimated` need not. Two values of one sample may be read up to `apart` seconds after
    each other: 0 for an engine that reads all values at one moment. All rounds together must last over 2 x `apart`.
    """
    with blaming("engine", "making it"):
        engine = make()
    demand(isinstance(engine, Engine), f"{engine!r}", "is no treadle.loop.Engine: it lacks a part of it")
    demand(isinstance(engine.name, str) and engine.name, f"{engine!r}", "has no name")
    who = f"engine '{engine.name}'"
    _check_offers(engine, metrics, who)
    check_agreement(_check_rounds(engine, pass_time, rounds, apart, who), apart, who)
    _check_wanted(engine, who)
    _check_knobs(engine, values or {}, who)


def _check_offers(engine: Engine, metrics: Collection[str], who: str) -> None:
    offers = engine.offers
    demand(isinstance(offers, frozenset), who, f"`offers` is {offers!r}, not a frozenset")
    for name in sorted(offers):
        demand(name in metrics, who, f"offers '{name}', which is no metric (see `treadle metrics`)")


def _check_rounds(engine: E, pass_time: Callable[[E], object], rounds: int, apart: float, who: str) -> list[Look]:
    versions: dict[int, Topology] = {}
    offers = engine.offers
    looks: list[Look] = []
    for number in range(rounds):
        topology, sample = _look(engine, offers, who)
        _check_topology(topology, versions, who)
        _check_columns(topology, sample, offers, who)
        demand(engine.offers == offers, who, f"offered {sorted(offers)} and then {sorted(engine.offers)}")
        if looks:
            before = looks[-1][1].time
            demand(sample.time >= before, who, f"its time went back from {before} to {sample.time}")
            _check_counters(*looks[-1], topology, sample, who)
        looks.append((topology, sample))
        if number + 1 < rounds:
            with blaming(who, "letting time pass"):
                pass_time(engine)
    first, last = looks[0][1].time, looks[-1][1].time
    demand(last > first, who, f"its time stood still at {first}; let it pass with `pass_time`")
    demand(
        last - first > 2.0 * apart, who, f"was observed for {last - first:g} s; let more than {2.0 * apart:g} s pass"
    )
    return looks


def _look(engine: Engine, wanted: frozenset[str], who: str) -> tuple[Topology, Sample]:
    """A topology and a sample that belongs to it."""
    for _ in range(TRIES):
        with blaming(who, "topology()"):
            topology = engine.topology()
        demand(isinstance(topology, Topology), who, f"topology() gave {topology!r}")
        with blaming(who, f"sample({sorted(wanted)})"):
            sample = engine.sample(wanted)
        demand(isinstance(sample, Sample), who, f"sample() gave {sample!r}")
        if engine.topology().version == topology.version:
            return topology, sample
    raise AssertionError(f"{who}: its topology had another version in each of {TRIES} samples")


def _check_topology(topology: Topology, versions: dict[int, Topology], who: str) -> None:
    with blaming(who, "ordering its topology"):
        demand(topology.levels is not None, who, "its topology has no order")
    seen = versions.setdefault(topology.version, topology)
    demand(seen == topology, who, f"its topology changed, but its version is still {topology.version}")


def _check_columns(topology: Topology, sample: Sample, wanted: frozenset[str], who: str) -> None:
    demand(math.isfinite(sample.time), who, f"sampled at the time {sample.time}")
    rows = len(topology)
    for name in sorted(wanted):
        demand(name in sample.columns, who, f"offers '{name}', but did not give it when it was wanted")
        column = sample.columns[name]
        demand(isinstance(column, np.ndarray), who, f"'{name}' is no array but {column!r}")
        demand(column.dtype == np.float64, who, f"'{name}' is of {column.dtype}, not float64")
        demand(column.shape == (rows,), who, f"'{name}' has shape {column.shape}, but there are {rows} instances")
    for name, rows_of_it in sample.estimated.items():
        is_mask = isinstance(rows_of_it, np.ndarray) and rows_of_it.dtype == np.bool_ and rows_of_it.shape == (rows,)
        demand(is_mask, who, f"`estimated` of '{name}' is {rows_of_it!r}, not true or false for each of {rows} rows")
    for name, total in sample.totals.items():
        demand(isinstance(total, float | int), who, f"total '{name}' is no number but {total!r}")


def _check_counters(old: Topology, earlier: Sample, new: Topology, later: Sample, who: str) -> None:
    ids = [name for name in new.ids if name in old.row_of]
    was, now = ([topology.row_of[name] for name in ids] for topology in (old, new))
    for name in sorted(COUNTERS & set(earlier.columns) & set(later.columns)):
        before, after = earlier.columns[name][was], later.columns[name][now]
        back = np.flatnonzero(after < before - 1e-9 * np.abs(before))
        if len(back):
            row = int(back[0])
            raise AssertionError(
                f"{who}: counter '{name}' of '{ids[row]}' went back from {before[row]} to {after[row]}"
                f" between the times {earlier.time} and {later.time}"
            )


def _check_wanted(engine: Engine, who: str) -> None:
    """Each offered metric can be requested alone, and a request for an unknown metric is not an error."""
    for name in sorted(engine.offers):
        topology, sample = _look(engine, frozenset({name}), who)
        _check_columns(topology, sample, frozenset({name}), who)
    topology, sample = _look(engine, engine.offers | {UNKNOWN}, who)
    _check_columns(topology, sample, engine.offers, who)
    invented = sample.columns.get(UNKNOWN, np.array([np.nan]))
    demand(np.isnan(invented).all(), who, f"gave values for '{UNKNOWN}', which it can't know")
    _look(engine, frozenset(), who)


# ---------------------------------------------------------------- knobs


def _check_knobs(engine: Engine, values: Mapping[str, Sequence[Value]], who: str) -> None:
    with blaming(who, "knobs()"):
        knobs = engine.knobs()
    for name, knob in knobs.items():
        demand(isinstance(knob, Knob), who, f"knob '{name}' is no treadle.enforce.Knob but {knob!r}")
        demand(knob.name == name, who, f"knob '{name}' calls itself '{knob.name}'")
    for name, knob in knobs.items():
        chosen = _values(name, values, who)
        if knob.per == "group":
            _check_group_knob(engine, knob, chosen, who)
        elif targets := _targets(engine, knob):
            _check_knob(knob, targets, chosen)


def _check_knob(knob: Knob, targets: Sequence[Target], values: Sequence[Value]) -> None:
    check_knob(lambda: knob, targets, values)


def _check_group_knob(engine: Engine, knob: Knob, values: Sequence[Value], who: str) -> None:
    """Check a knob on groups. A group exists only while it has members, so the check puts some targets into groups."""
    membership = engine.knobs().get(MEMBERSHIP)
    if membership is None:
        raise AssertionError(f"{who}: has knob '{knob.name}' per group, but no knob '{MEMBERSHIP}' that makes groups")
    members = _targets(engine, membership)[: len(GROUPS)]
    if not members:
        return
    enforcer = Enforcer(membership)
    groups = GROUPS[: len(members)]
    outcomes = enforcer.apply(enforcer.diff(members, np.array(groups, dtype=np.object_)))
    try:
        demand(not outcomes.failures, who, f"can't group: {'; '.join(map(str, outcomes.failures))}")
        _check_knob(knob, groups, values)
    finally:
        outcomes = enforcer.restore()
    demand(not outcomes.failures, who, f"can't ungroup: {'; '.join(map(str, outcomes.failures))}")


def _targets(engine: Engine, knob: Knob) -> tuple[Target, ...]:
    """The first few targets of a knob."""
    topology = engine.topology()
    return tuple(dict.fromkeys(topology.threads))[:3] if knob.per == "thread" else topology.ids[:3]


def _values(name: str, values: Mapping[str, Sequence[Value]], who: str) -> Sequence[Value]:
    if name in values:
        return values[name]
    if name == MEMBERSHIP:
        return GROUPS
    demand(name in SCALES, who, f"say which values knob '{name}' takes: values={{'{name}': [...]}}")
    numbers: list[float] = SCALES[name].apply(np.array([1.0, 2.0, 4.0])).tolist()
    return numbers
