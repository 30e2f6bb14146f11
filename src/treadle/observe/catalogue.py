"""All metrics that Treadle knows: their units, their kinds after Haren (Table 1), and the formulas that derive them.

It says what can be derived from what, not which way is taken: that depends on the engine (`plan.py`). Counters only
grow; one that goes down belongs to a restarted instance, and metrics derived from it are unknown for that round.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from treadle.model import Floats
from treadle.observe import graph
from treadle.observe.metric import Formula, Inputs, Kind, Metric, Way

LONGEST_PAUSE = 10.0
"""Seconds for which a `ratio` keeps the growth of `top` while `bottom` stands still: counters may grow in steps, one
for each message or batch. After a longer pause that growth belongs to no tuple: an idle operator also uses some CPU."""
FINEST_COST = 1e-9
"""Least cost of a path, in CPU seconds per tuple. Clocks resolve no less, and a cost of 0 would make the rate infinite.
"""

_OWN = Kind.DYNAMIC
_MEASURED = Kind.DYNAMIC | Kind.INTRINSIC
_FED = Kind.DYNAMIC | Kind.ON_UPSTREAM
_DRAINED = Kind.DYNAMIC | Kind.ON_DOWNSTREAM
_BETWEEN = Kind.DYNAMIC | Kind.ON_UPSTREAM | Kind.ON_DOWNSTREAM
_PATH = Kind.DYNAMIC | Kind.ON_DOWNSTREAM | Kind.INTRINSIC


def change(inputs: Inputs, counter: str) -> Floats:
    """Return how much a counter grew since the last round; unknown where it is new or went down."""
    if counter not in inputs.before:
        return np.full(len(inputs.topology), np.nan)
    grown: Floats = inputs.now[counter] - inputs.before[counter]
    grown[grown < 0.0] = np.nan
    return grown


def ratio(top: str, bottom: str) -> Formula:
    """Return a formula: the growth of `top` per unit of growth of `bottom`; unknown while `bottom` stands still.

    The growth of `top` in such rounds is added in the next round in which `bottom` grows.
    """
    growth, pause = f"{top} without {bottom}", f"pause of {bottom} for {top}"

    def formula(inputs: Inputs) -> Floats:
        divisor = change(inputs, bottom)
        grown = change(inputs, top) + _kept(inputs, growth)
        stood = divisor == 0.0
        waited = np.where(stood, _kept(inputs, pause) + _or(np.array(inputs.seconds), 0.0), 0.0)
        inputs.kept[growth] = np.where(stood & (waited <= LONGEST_PAUSE), grown, 0.0)
        inputs.kept[pause] = waited
        quotient: Floats = grown / divisor
        quotient[stood] = np.nan
        return quotient

    return formula


def _kept(inputs: Inputs, name: str) -> Floats | float:
    """Return a kept column, 0 where it is unknown."""
    return _or(inputs.kept[name], 0.0) if name in inputs.kept else 0.0


def per_second(counter: str) -> Formula:
    """Return a formula: the growth of a counter per second."""

    def formula(inputs: Inputs) -> Floats:
        speed: Floats = change(inputs, counter) / inputs.seconds
        return speed

    return formula


def _queue(inputs: Inputs) -> Floats:
    """Tuples that upstreams have sent, less those taken in: Lachesis' way for Flink, which does not count queues."""
    waiting = graph.received(inputs.topology, _steady(inputs, "tuples_out")) - _steady(inputs, "tuples_in")
    return np.maximum(waiting, 0.0)


def _queue_growth(inputs: Inputs) -> Floats:
    if "queue" not in inputs.before:
        return np.full(len(inputs.topology), np.nan)
    return (inputs.now["queue"] - inputs.before["queue"]) / inputs.seconds


def _global_selectivity(inputs: Inputs) -> Floats:
    return graph.global_selectivity(inputs.topology, inputs.now["selectivity"])


def _next_cost(inputs: Inputs) -> Floats:
    """Return the cost of a tuple with its part of the batch's fixed cost.

    The fixed cost is divided among the tuples that wait here and those that arrive after all upstreams have run.
    """
    topology, now = inputs.topology, inputs.now
    if np.isnan(now["batch_cost"]).all():
        return now["cost"].copy()
    queue, kept = _or(now["queue"], 0.0), _or(now["selectivity"], 1.0)
    coming = queue
    for _ in topology.levels:
        coming = queue + _or(graph.received(topology, coming * kept), 0.0)
    fixed = now["batch_cost"] / np.maximum(coming, 1.0)
    return now["cost"] + np.where(np.isnan(fixed) | np.isnan(now["queue"]), 0.0, fixed)


def _or(column: Floats, other: float) -> Floats:
    """Replace unknown values by another."""
    return np.where(np.isnan(column), other, column)


def _global_cost(cost: str) -> Formula:
    return lambda inputs: graph.global_cost(inputs.topology, inputs.now[cost], inputs.now["selectivity"])


def _global_rate(inputs: Inputs) -> Floats:
    """The goal of HR: S_i / C_i, results for each second of CPU spent on a tuple from i onwards (Lachesis Fig. 4)."""
    return inputs.now["global_selectivity"] / np.maximum(inputs.now["global_cost"], FINEST_COST)


def _steady(inputs: Inputs, counter: str) -> Floats:
    """Return a counter, unknown where it went down."""
    column = inputs.now[counter]
    if counter not in inputs.before:
        return column
    return np.where(column < inputs.before[counter], np.nan, column)


_ALL = (
    Metric("tuples_in", "tuples", "taken in since the start; for a source, taken from outside", _OWN),
    Metric("tuples_out", "tuples", "put out since the start", _OWN),
    Metric("cpu_time", "s", "CPU time used since the start", _OWN),
    Metric("busy_time", "s", "time spent at work since the start, on the CPU or waiting for it", _OWN),
    Metric("batches", "batches", "let run since the start, where an operator has to ask before each batch", _OWN),
    Metric("batch_cost", "s", "time that a batch takes apart from its tuples", _MEASURED),
    Metric("run_wait", "s", "time spent runnable but waiting for a CPU since the start", _OWN),
    Metric("output_queue", "tuples", "put out, but not yet moved on", _DRAINED),
    Metric("external_queue", "tuples", "waiting outside the engine for a source (Kafka lag)", _OWN),
    Metric("head_age", "s", "age of the oldest tuple in the input queue", _BETWEEN),
    Metric("mean_age", "s", "mean age of the tuples in the input queue", _BETWEEN),
    Metric("latency", "s", "age of the tuples that are taken in now, since they came into the system", _BETWEEN),
    Metric(
        "queue",
        "tuples",
        "waiting in the input queue",
        _FED,
        (Way(("tuples_in", "tuples_out"), _queue),),
    ),
    Metric(
        "queue_growth",
        "tuples/s",
        "growth of the input queue, negative while it shrinks",
        _FED,
        (Way(("queue",), _queue_growth),),
        smooth=True,
    ),
    Metric(
        "cost",
        "s/tuple",
        "CPU time for each tuple taken in",
        _MEASURED,
        (
            Way(("cpu_time", "tuples_in"), ratio("cpu_time", "tuples_in")),
            Way(("busy_time", "tuples_in"), ratio("busy_time", "tuples_in")),
        ),
        smooth=True,
    ),
    Metric(
        "next_cost",
        "s/tuple",
        "CPU time for each tuple of the next batch, its fixed part divided among them",
        _MEASURED,
        (Way(("cost", "batch_cost", "queue", "selectivity"), _next_cost),),
    ),
    Metric(
        "selectivity",
        "tuples/tuple",
        "tuples put out for each one taken in",
        _MEASURED,
        (Way(("tuples_in", "tuples_out"), ratio("tuples_out", "tuples_in")),),
        smooth=True,
    ),
    Metric(
        "rate",
        "tuples/s",
        "tuples taken in each second",
        _OWN,
        (Way(("tuples_in",), per_second("tuples_in")),),
        smooth=True,
    ),
    Metric(
        "cpu",
        "CPUs",
        "share of a CPU used",
        _OWN,
        (Way(("cpu_time",), per_second("cpu_time")),),
        smooth=True,
    ),
    Metric(
        "busy",
        "s/s",
        "share of the time spent at work, on the CPU or waiting for it",
        _OWN,
        (Way(("busy_time",), per_second("busy_time")),),
        smooth=True,
    ),
    Metric(
        "wait",
        "s/s",
        "share of the time spent waiting for a CPU",
        _OWN,
        (Way(("run_wait",), per_second("run_wait")),),
        smooth=True,
    ),
    Metric(
        "global_selectivity",
        "results/tuple",
        "results at the sinks for each tuple taken in here",
        _PATH,
        (Way(("selectivity",), _global_selectivity),),
    ),
    Metric(
        "global_cost",
        "s/tuple",
        "mean CPU time for a tuple taken in here, from here to the sinks",
        _PATH,
        (
            Way(("next_cost", "selectivity"), _global_cost("next_cost")),
            Way(("cost", "selectivity"), _global_cost("cost")),
        ),
    ),
    Metric(
        "global_rate",
        "results/s",
        "results for each second of CPU spent from here to the sinks",
        _PATH,
        (Way(("global_selectivity", "global_cost"), _global_rate),),
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
