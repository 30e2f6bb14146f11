"""Turns the sample of an engine into a snapshot of all metrics that the policies want (Lachesis section 5.2, Alg. 3).

It follows a plan that was made once, computes each metric once per round, and keeps counters and averages for the next
round, by instance. It does not know where samples come from, nor what reads the snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextvars import Context, copy_context

import numpy as np

from treadle.errors import ConfigError, EngineError
from treadle.model import Floats, Topology
from treadle.observe.catalogue import METRICS
from treadle.observe.metric import Inputs, Metric
from treadle.observe.plan import Step, make_plan
from treadle.observe.smooth import Smoother, realign
from treadle.values import Sample, Snapshot


class Provider:
    """The metrics of one engine, round by round.

    `tau` is the time constant of the averages in seconds (0: none), `forget` the seconds for which a metric that is no
    longer measured keeps its last average. `engine` and `policy` are only names for errors.
    """

    def __init__(
        self,
        offers: Iterable[str],
        wanted: Iterable[str],
        *,
        tau: float = 2.0,
        forget: float = 60.0,
        metrics: Mapping[str, Metric] = METRICS,
        engine: str = "",
        policy: str = "",
    ) -> None:
        if not tau >= 0.0 or not forget > 0.0:
            raise ConfigError(f"tau can't be {tau} with forget {forget}", remedy="use tau >= 0 and forget > 0 seconds")
        self.plan: tuple[Step, ...] = make_plan(
            wanted, frozenset(offers), metrics=metrics, engine=engine, policy=policy
        )
        self.base = frozenset(step.name for step in self.plan if step.way is None)
        self._engine = engine
        self._topology = Topology((), ())
        self._time = math.nan
        self._before: dict[str, Floats] = {}
        self._kept: dict[str, Floats] = {}
        self._quiet = _without_warnings()
        self._steps = tuple(
            (step.name, step.way and step.way.formula, Smoother(0, tau, forget) if step.metric.smooth else None)
            for step in self.plan
        )

    @property
    def columns(self) -> frozenset[str]:
        """The metrics that its snapshots have."""
        return frozenset(step.name for step in self.plan)

    def update(self, topology: Topology, sample: Sample) -> Snapshot:
        """Compute all columns of the plan for a round. Any number is accepted in a sample, also NaN and infinity."""
        now = {
            name: self._taken(name, sample.columns, len(topology)) for name in self.base
        }  # first, since it raises for a bad sample, which must change nothing
        self._realign(topology)
        passed = sample.time - self._time
        seconds = passed if 0.0 < passed < math.inf else math.nan
        given = {name: self._taken(name, sample.given, len(topology)) for name in sample.given}
        totals = self._quiet.run(self._derive, now, Inputs(topology, now, self._before, seconds, self._kept), given)
        self._before, self._time = now, sample.time
        return Snapshot(topology, sample.time, now, {**totals, **sample.totals}, sample.estimated)

    def _derive(self, now: dict[str, Floats], inputs: Inputs, given: Mapping[str, Floats]) -> dict[str, float]:
        """Complete the columns of this round, which formulas read through `inputs`; return their totals.

        A `given` value replaces the derived one and is not averaged: its engine has chosen the time that it covers.
        """
        seconds = 0.0 if math.isnan(inputs.seconds) else inputs.seconds
        for name, formula, smoother in self._steps:
            column = formula(inputs) if formula else now[name]
            if smoother:
                column = smoother.step(column, seconds)
            if formula and name in given:
                column = np.where(np.isnan(given[name]), column, given[name])
            column.setflags(write=False)  # the next round reads it as `before`
            now[name] = column
        return _queue_totals(now)

    def _taken(self, name: str, sampled: Mapping[str, Floats], rows: int) -> Floats:
        """Return a sampled column as float64 of the right length; a copy, since an engine may reuse its buffers."""
        if name not in sampled:
            return np.full(rows, np.nan)
        try:
            column = np.array(sampled[name], dtype=np.float64)
        except (TypeError, ValueError):
            raise EngineError(
                f"metric '{name}' is not made of numbers", where=self._engine, remedy="sample floats, NaN for unknown"
            ) from None
        if column.shape != (rows,):
            raise EngineError(
                f"metric '{name}' has shape {column.shape}, but there are {rows} instances",
                where=self._engine,
                remedy="sample and topology must be of one moment: rediscover the topology, then sample again",
            )
        return column

    def _realign(self, topology: Topology) -> None:
        """Carry the history over to a topology with other rows or another order, by instance id."""
        last, self._topology = self._topology, topology
        if topology is last or topology.ids == last.ids:
            return
        source = np.array([last.row_of.get(name, -1) for name in topology.ids], dtype=np.int64)
        self._before = {name: realign(column, source) for name, column in self._before.items()}
        self._kept.update({name: realign(column, source) for name, column in self._kept.items()})
        for _, _, smoother in self._steps:
            if smoother:
                smoother.realign(source)


def _without_warnings() -> Context:
    """Return a `contextvars` context in which numpy gives no warnings. It is entered much faster than `np.errstate`."""
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


def _queue_totals(columns: Mapping[str, Floats]) -> dict[str, float]:
    """Return the sum and the variance of the known queues; the variance is the goal of QS (Lachesis section 6.2)."""
    if "queue" not in columns:
        return {}
    queue = columns["queue"]
    known = queue[~np.isnan(queue)]
    if len(known) == 0:
        return {"total_queue": math.nan if len(queue) else 0.0, "queue_variance": math.nan}
    return {"total_queue": float(known.sum()), "queue_variance": float(known.var())}
