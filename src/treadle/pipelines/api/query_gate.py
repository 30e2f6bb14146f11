"""The gate for existing Structured Streaming applications, with any source and the same policies as for pipelines.

The application wraps the `foreachBatch` function of each query, which takes one line. Spark calls this function when it
has planned a batch, and there the batch waits for a slot. Backlogs are read from Spark's progress reports. The
application itself starts and stops its queries.
"""

from __future__ import annotations

import atexit
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from treadle.control import control_socket
from treadle.control.settings import Changeable, Settings
from treadle.decide.assignment import NONE
from treadle.decide.batch import BatchSizer
from treadle.decide.policy import Policy
from treadle.durations import Duration, seconds
from treadle.enforce import Knob
from treadle.enforce.gate.gate import Gate
from treadle.enforce.gate.owner_knob import OwnerKnob
from treadle.enforce.gate.rank_knob import GateKnob
from treadle.enforce.gate.slots import starting_slots
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop
from treadle.loop.trouble import Attempts
from treadle.model import Operator, Query, Topology
from treadle.pipelines.gating.assigning import PERIOD, UNASSIGNED, Assign, Assigning
from treadle.pipelines.gating.gated_query import GatedQuery, Wish
from treadle.pipelines.gating.query_priorities import QueryPriorities
from treadle.pipelines.gating.ranking import Ranking
from treadle.pipelines.gating.steering import Steering
from treadle.pipelines.hops.hop_engine import ALL_METRICS, MEASURES, OFFERS
from treadle.pipelines.hops.options import LEAST_PERIOD, policy_of
from treadle.pipelines.nodes import node as checks
from treadle.pipelines.spark import jvm
from treadle.pipelines.spark.output_rows import OutputRows
from treadle.pipelines.spark.queries import Stopped
from treadle.text import visible
from treadle.values import Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("treadle.pipelines")

OBJECTIVES = ("latency", "output_rate", "total_queue", "queue_variance")
"""The objectives for learning policies. Queue objectives are unknown if sources report no offsets in rows."""

BatchFunction = Callable[["DataFrame", int], None]
"""A function for `foreachBatch`."""

TICK = 0.02
SLOW_TICK = 1.0
"""Seconds between polls of Spark: which queries have ended, which batches are done."""
LONGEST_PAUSE = 10.0
"""Longest pause in seconds before a failed part of the control thread's work is tried again."""


def gate(
    spark: SparkSession,
    policy: str | Policy = "multi-class",
    slots: int | Literal["auto"] = "auto",
    period: Duration = "100ms",
    *,
    patience: Duration = "5s",
    express: int = 0,
    assign: object = NONE,
    assign_period: Duration = PERIOD,
    rules: Sequence[Mapping[str, Any]] = (),
) -> QueryGate:
    """Schedule the queries of this application that use a wrapped batch function.

    `policy` is any of `treadle policies` or a Policy object, `slots` how many batches run at once (or "auto"),
    `period` how often the policy decides. A query that has waited longer than `patience` may run before more urgent
    ones, in at most one of ten grants. `express` is the number of extra slots for queries that are more urgent than all
    running ones. `assign` puts queries into groups of a slot each, every `assign_period`: "none", "random",
    "round-robin", "load-balance", "adaptive", or a function f(snapshot, groups). `rules` give sets of queries a policy,
    a priority and a period of their own, as in `[{"queries": "alerts-*", "policy": "fcfs", "priority": 10}]`: the first
    rule that matches a query's name counts.

    >>> with treadle.gate(spark, policy="highest-rate") as gate:            # doctest: +SKIP
    ...     payments.writeStream.foreachBatch(gate.wrap(store, priority=5)).start()
    ...     spark.streams.awaitAnyTermination()
    """
    turns = Assign(assign, seconds(assign_period, what="assign_period", where="gate", least=LEAST_PERIOD))
    return QueryGate(spark, policy, slots, period, patience=patience, express=express, assign=turns, rules=rules)


class QueryGate(Changeable):
    """The gate of one application. After `close`, or at the end of a `with` block, queries run on without the gate."""

    def __init__(
        self,
        spark: SparkSession,
        policy: str | Policy,
        slots: int | Literal["auto"],
        period: Duration,
        *,
        patience: Duration,
        express: int,
        assign: Assign = UNASSIGNED,
        rules: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        if getattr(spark, "_jsparkSession", None) is None:
            raise EngineError(
                "a Spark Connect session runs its batches in another process",
                where="gate",
                remedy="make the gate where the driver runs, with a classic session",
            )
        jvm.guard_callbacks(spark)
        self.spark = spark
        where = "the gate of an application"
        often = seconds(period, what="period", where="gate", least=LEAST_PERIOD)
        self._ranking = Ranking(policy_of(policy, OBJECTIVES, where), rules, often, OBJECTIVES, where)
        self._gate = Gate(
            starting_slots(slots), patience=seconds(patience, what="patience", where="gate"), express=express
        )
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._queries: dict[str, GatedQuery] = {}  # by Spark's run id
        self._costs = BatchSizer()
        self._output_rows = OutputRows(spark)
        self._version = 0
        self._priorities = QueryPriorities(self._running, self._rank_again, "the gate of an application")
        engine = _Engine(self)
        binding = Binding(self._ranking.policy, "rank", period=self._ranking.rounds)
        assigning = Assigning(self._gate, assign, where)
        self._loop = Loop([engine], [binding, assigning.binding()], metrics=ALL_METRICS)
        self._steering = Steering(
            self._gate, policy, elastic=slots == "auto", where=where, measured=OBJECTIVES, assigning=assigning
        )
        self._steering.begin(self._loop, self._ranking, more={"priorities": self._priorities.setting})
        self._thread = threading.Thread(target=self._control, name="treadle-control", daemon=True)
        self.name, self._server = control_socket.serve_application(str(spark.sparkContext.appName), self._commands())
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> QueryGate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wrap(
        self,
        function: BatchFunction,
        *,
        priority: float = 0.0,
        name: str | None = None,
        latency_goal: Duration | None = None,
    ) -> BatchFunction:
        """Return a function for `foreachBatch` that waits for its turn before each batch and then calls `function`.

        A higher `priority` is more urgent. `name` is the name of the query (default: its name in Spark). Outside of a
        streaming query, as in a test, the function does not wait.
        """
        where = f"gate, '{name or getattr(function, '__name__', 'function')}'"
        if not callable(function):
            raise ConfigError(
                f"can't wrap {function!r}", where="gate", remedy="give it a function of rows and a batch id"
            )
        wish = Wish(
            checks.check_priority(priority, where),
            checks.check_goal(latency_goal, where),
            None if name is None else checks.check_name(name, where),
        )

        @functools.wraps(function)
        def batch(rows: DataFrame, batch_id: int) -> None:
            query = self._query_of(rows, wish)
            if query is None:
                function(rows, batch_id)
                return
            query.offers(batch_id)
            with self._gate.turn_if_there(query.id) as granted:
                if not granted and not self._closed.is_set():
                    raise Stopped(f"query '{query.name}'")
                with query.running():
                    function(rows, batch_id)

        return batch

    @property
    def policy(self) -> str:
        """The current policy: its spec, or its name if it was set as an object."""
        return self._steering.policy

    def set_policy(self, spec: str | Policy) -> None:
        """Change the policy from the next round on; an unknown one, or one without its metrics, is refused."""
        self._steering.set_policy(spec)

    @property
    def slots(self) -> int:
        """How many batches may run at once."""
        return self._gate.slots

    def set_slots(self, count: int) -> None:
        """Set how many batches may run at once; this ends the automatic choice."""
        self._steering.set_slots(count)

    @property
    def settings(self) -> Settings:
        return self._steering.settings

    def status(self) -> dict[str, Any]:
        """The current state of gate and queries, as JSON values."""
        stats, queries = self._gate.stats, self._running()
        return {
            "pipeline": self.name,
            "layout": "application",
            "enforce": "gate",
            "policy": self.policy,
            "adaptive": self._steering.learned(),
            "slots": stats.slots,
            "waiting": len(stats.waiting),
            "running": len(stats.holding),
            **self._steering.assigned(),
            "hops": {
                query.name: {
                    **query.status(stats.hops.get(query.id), self._priorities.of(query)),
                    "rule": self._ranking.rule_of(query.name),
                }
                for query in queries
            },
        }

    def close(self) -> None:
        """Stop scheduling: waiting batches run now, and wrapped functions no longer wait."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            queries, self._queries = self._queries, {}
        for query in queries.values():
            self._gate.withdraw(query.id)
        if self._server is not None:
            self._server.close()
        self._thread.join()
        self._steering.close()
        atexit.unregister(self.close)

    # Queries

    def _query_of(self, rows: DataFrame, wish: Wish) -> GatedQuery | None:
        """Return the registered query of this batch; None outside of a query or if the gate is closed."""
        if self._closed.is_set():
            return None
        context = rows.sparkSession.sparkContext
        run = context.getLocalProperty("spark.jobGroup.id")
        known = self._queries.get(run or "")
        if known is not None:
            return known
        identity = context.getLocalProperty("sql.streaming.queryId")
        if identity is None:
            return None
        query = self._find(identity)
        known = self._queries.get(str(query.runId()))  # the batch function may have set another job group
        return known or self._register(GatedQuery(query, wish, self._costs, self._output_rows))

    def _find(self, identity: str) -> Any:
        """Return Spark's JVM object of a running query, from any session of this application."""
        own = self.spark.streams.get(identity)
        if own is not None:
            return own._jsq
        jvm: Any = self.spark.sparkContext._jvm
        everywhere = self.spark._jsparkSession.sharedState().activeStreamingQueries()
        query = everywhere.get(jvm.java.util.UUID.fromString(identity))
        if query is None:
            raise Stopped(f"query '{identity}'")
        return query

    def _register(self, query: GatedQuery) -> GatedQuery | None:
        rank = np.nan
        with self._lock:
            if self._closed.is_set():
                return None
            before = next((q for q in self._queries.values() if q.identity == query.identity), None)
            if before is not None:  # an earlier run, not yet seen to have ended
                del self._queries[before.run]
                rank = self._gate.rank(before.id)
                self._gate.withdraw(before.id)
            query.call({other.name for other in self._queries.values()})
            self._queries[query.run] = query
            self._version += 1
            self._gate.register(query.id)
            self._gate.set_rank(query.id, rank)
        log.info("query '%s' is scheduled", query.name, extra={"query": query.name})
        return query

    def _running(self) -> list[GatedQuery]:
        with self._lock:
            return list(self._queries.values())

    def _rank_again(self) -> None:
        """Make a new version of the topology, so that the next round sees the priorities of now."""
        with self._lock:
            self._version += 1

    def _forget(self, query: GatedQuery) -> None:
        with self._lock:
            if self._queries.pop(query.run, None) is None:
                return
            self._version += 1
        self._gate.withdraw(query.id)
        self._costs.forget(query.id)
        log.info("query '%s' has ended", query.name, extra={"query": query.name})

    # The control thread

    def _control(self) -> None:
        slow = time.monotonic()
        attempt = Attempts(TICK, LONGEST_PAUSE, log)
        with self._loop:
            while not self._closed.wait(TICK):
                attempt("ranking the queries", self._loop.round)
                if time.monotonic() >= slow:
                    slow = time.monotonic() + SLOW_TICK
                    attempt("steering", self._steering.step)
                    for query in self._running():
                        attempt(f"polling query '{visible(query.name)}'", functools.partial(self._tend, query))

    def _tend(self, query: GatedQuery) -> None:
        if query.active:
            query.look()
        else:
            self._forget(query)

    def _commands(self) -> dict[str, Callable[..., object]]:
        def stop(drain: bool = False) -> object:  # noqa: ARG001 (same arguments as for a pipeline)
            raise ConfigError(
                "treadle can't stop an application with a gate", where=self.name, remedy="stop its queries, or end it"
            )

        return {**self._steering.commands(), "status": self.status, "stop": stop}


class _Engine:
    """The engine of the control loop for the wrapped queries; each has one operator in the topology."""

    name = "spark"
    offers = OFFERS
    in_process = True

    def __init__(self, owner: QueryGate) -> None:
        self._owner = owner
        self._knobs: dict[str, Knob] = {"rank": GateKnob(owner._gate), "owner": OwnerKnob(owner._gate)}
        self._rows: tuple[GatedQuery, ...] = ()
        self._before: dict[str, tuple[int, float, int]] = {}
        self._sampled = time.monotonic()
        self._topology = Topology((), ())

    def topology(self) -> Topology:
        owner = self._owner
        with owner._lock:
            version, rows = owner._version, tuple(owner._queries.values())
        if version != self._topology.version:
            queries = [
                Query(row.name, (Operator(row.name),), owner._priorities.of(row), row.wish.latency_goal) for row in rows
            ]
            self._rows, self._topology = rows, Topology.of(queries, engine=self.name, version=version)
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        """Rows are in the order of the last returned topology."""
        now = time.time()
        table = np.array([row.measures(now) for row in self._rows], dtype=np.float64).reshape(-1, len(MEASURES))
        columns = dict(zip(MEASURES, table.T, strict=True))
        return Sample(time.monotonic(), {name: columns[name] for name in wanted}, self._totals())

    def _totals(self) -> dict[str, float]:
        """Return `latency`, the mean seconds from a batch's request for a slot to its end, and rows per second.

        Both are over the time since the last sample; latency is NaN without batches.
        """
        now, counts = time.monotonic(), {row.run: row.done for row in self._rows}
        grown = [np.subtract(done, self._before.get(run, (0, 0.0, 0))) for run, done in counts.items()]
        batches, seconds, rows = np.sum(grown, axis=0) if grown else (0.0, 0.0, 0.0)
        took, self._sampled, self._before = now - self._sampled, now, counts
        return {
            "latency": seconds / batches if batches else np.nan,
            "output_rate": rows / took if took > 0 else np.nan,
        }

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs
