"""The driver on a real application that was not prepared for it: all that is seen here is seen from outside."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from applications import SparkProcess
from support import until
from treadle import jvm, testing
from treadle.decide.registry import create
from treadle.enforce import kernel
from treadle.engines import registry
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.queries.rest import Rest
from treadle.errors import TargetGone
from treadle.linux.cores import tree_seconds
from treadle.loop import Binding, Loop
from treadle.model import Instance, Role, Topology
from treadle.values import Sample


@pytest.fixture(scope="module")
def engine(attached: SparkProcess) -> Iterator[SparkEngine]:
    knobs = {"nice": kernel.make("nice")}
    with SparkEngine(Application.find(pid=attached.pid), priorities={"ch*": 5.0, "c*": 1.0}, knobs=knobs) as made:
        yield made


def of(topology: Topology, query: str) -> list[Instance]:
    return [instance for instance in topology.instances if instance.query == query]


def mains(topology: Topology, query: str) -> list[int]:
    return [t.tid for i in of(topology, query) for t in i.threads if t.role is Role.MAIN]


def placed(engine: SparkEngine, query: str, stages: int) -> bool:
    """Whether all is known of a query: its plan, the main thread of each stage, and threads of its shuffles."""
    instances = of(engine.topology(), query)
    names = " ".join(thread.name for instance in instances for thread in instance.threads)
    shuffled = all(f"streaming-shuffle-{side}" in names for side in ("writer", "reader"))
    planned = all("stage" not in instance.operators[0] for instance in instances)
    return len(mains(engine.topology(), query)) == stages and shuffled and planned


class Owners:
    """Whose each task thread is, told without the engine: by the stage in its name, and by what Spark's jobs say."""

    def __init__(self, engine: SparkEngine, attached: SparkProcess) -> None:
        self._engine, self._pid = engine, attached.pid
        self._rest = Rest(attached.told["ui"])
        self._query_of: dict[int, str] = {}

    def look(self) -> set[tuple[str, str]] | None:
        """(where the engine has put a thread, whose it is) of all main threads; None if that is not of one moment."""
        topology = self._engine.topology()
        names = {thread.tid: thread.name for thread in jvm.dump(self._pid, frames=0)}
        if self._engine.topology() is not topology:
            return None
        queries = [query.name for query in topology.queries if query.name != "driver"]
        return {(query, self._owner(names.get(tid, ""))) for query in queries for tid in mains(topology, query)}

    def _owner(self, name: str) -> str:
        found = re.search(r" in stage (\d+)\.", name)
        if found is None:
            return "nobody"
        stage = int(found[1])
        if stage not in self._query_of:
            self._query_of |= {each: job.query for job in self._rest.running_jobs() for each in job.stages}
        return self._query_of.get(stage, "over")


def test_queries_stages_and_operators_are_named_as_people_know_them(engine: SparkEngine) -> None:
    until(lambda: placed(engine, "chain", 3) and placed(engine, "count", 2))
    topology = engine.topology()
    assert [query.name for query in topology.queries] == ["chain", "count", "driver"]
    chain, count = of(topology, "chain"), of(topology, "count")
    assert [instance.operators[0] for instance in chain] == ["kafka in", "project h", "project key,value"]
    assert chain[-1].operators[-1] == "kafka out"
    assert [instance.operators[-1] for instance in count] == ["partial aggregate by digit", "noop out"]
    assert [query.priority for query in topology.queries] == [5.0, 1.0, 5.0]
    parts = {instance.operators[0] for instance in of(topology, "driver")}
    assert {"scheduler", "plan chain", "plan count"} <= parts
    assert "network" not in parts, "in local mode nobody talks by it"


def test_stages_are_chained_and_helpers_are_with_their_mains(engine: SparkEngine) -> None:
    until(lambda: placed(engine, "chain", 3) and "kafka-producer" in str(of(engine.topology(), "chain")))
    topology = engine.topology()
    chain = of(topology, "chain")
    rows = [topology.row_of[instance.id] for instance in chain]
    edges = set(zip(topology.edges[0].tolist(), topology.edges[1].tolist(), strict=True))
    assert {(rows[0], rows[1]), (rows[1], rows[2])} <= edges
    for instance, kinds in zip(chain, [("writer",), ("writer", "reader"), ("reader", "producer")], strict=True):
        helpers = [thread.name for thread in instance.threads if thread.role is Role.HELPER]
        assert all(any(kind in name for name in helpers) for kind in kinds), (kinds, helpers)
        assert all(any(kind in name for kind in (*kinds, "discovery")) for name in helpers), (kinds, helpers)
    first, second = (next(t.name.split("-")[3] for t in i.threads if "-writer-" in t.name) for i in chain[:2])
    read = [next(t.name.split("-")[3] for t in i.threads if "-reader-" in t.name) for i in chain[1:]]
    assert read == [first, second]


def test_threads_are_those_of_the_kernel_and_none_is_left_to_the_jvm_itself(
    engine: SparkEngine, attached: SparkProcess
) -> None:
    until(lambda: placed(engine, "chain", 3))
    threads = engine.topology().threads
    alive = set(os.listdir(f"/proc/{attached.pid}/task"))
    assert {str(thread.tid) for thread in threads if thread.name.startswith("Executor")} <= alive
    assert all(thread.start_time > 0 for thread in threads)
    assert not [thread.name for thread in threads if "GC Thread" in thread.name or "Compiler" in thread.name]


def test_cpu_time_wait_and_queues_are_measured_live(engine: SparkEngine) -> None:
    wanted = frozenset({"cpu_time", "run_wait", "queue"})

    def worked() -> bool:
        rows = [engine.topology().row_of[instance.id] for instance in of(engine.topology(), "chain")]
        sample = engine.sample(wanted)
        return len(rows) == 3 and bool((sample.columns["cpu_time"][rows] > 0.0).all())

    until(worked)
    sample = engine.sample(wanted)
    chain = [engine.topology().row_of[instance.id] for instance in of(engine.topology(), "chain")]
    assert (sample.columns["run_wait"][chain] >= 0.0).all()
    assert (sample.columns["queue"][chain] >= 0.0).all()


def test_what_each_source_has_taken_from_kafka_is_known_in_the_middle_of_a_batch(engine: SparkEngine) -> None:
    wanted = frozenset({"external_queue", "tuples_in"})

    def moves() -> bool:
        topology, sample = engine.topology(), engine.sample(wanted)
        sources = [row for row, i in enumerate(topology.instances) if i.operators[0] == "kafka in"]
        lag, taken = sample.columns["external_queue"][sources], sample.columns["tuples_in"][sources]
        return len(sources) == 2 and bool((taken > 0).all()) and bool((lag >= 0).all())

    until(moves)


def test_rows_between_stages_are_counted_in_the_middle_of_a_batch(engine: SparkEngine) -> None:
    """What a stage has put out and the next one has not taken in is what waits there; the engine itself counts none."""
    wanted = frozenset({"tuples_in", "tuples_out", "queue", "head_age", "latency", "output_queue"})

    def counted() -> bool:
        topology, found = engine.topology(), engine.sample(wanted).columns
        start, end, _ = topology.edges
        ends = [(a, b) for a, b in zip(start.tolist(), end.tolist(), strict=True) if found["tuples_in"][b] > 0]
        if len(ends) < 2 or any(np.isnan(found["latency"][after]) for _, after in ends):
            return False  # how old rows are is known once it has been seen how fast the source is read
        for before, after in ends:
            waits = found["tuples_out"][before] - found["tuples_in"][after]
            assert found["queue"][after] == pytest.approx(max(0.0, waits), abs=1.0)
            assert found["head_age"][after] >= 0.0
            assert found["latency"][after] >= 0.0
        services = [row for row, each in enumerate(topology.instances) if each.query == "driver"]
        assert np.isnan(found["tuples_in"][services]).all()
        return True

    until(counted)


def test_no_stacks_are_asked_for_while_all_tasks_are_counted(engine: SparkEngine, attached: SparkProcess) -> None:
    """To look at them stops the JVM."""

    def asks_for_none() -> bool:
        engine.topology()
        agent = engine.agents.of(attached.pid)
        return agent is not None and agent.told[2:3] == (0.0,)

    until(asks_for_none)


def test_the_same_threads_are_the_same_version(engine: SparkEngine, attached: SparkProcess) -> None:
    versions: list[int] = []

    def stood_still() -> bool:
        names = [thread[:2] for thread in jvm.dump(attached.pid)]
        versions[:] = [engine.topology().version for _ in range(10)]
        return names == [thread[:2] for thread in jvm.dump(attached.pid)] and not engine._layout.waits

    until(lambda: stood_still() and len(set(versions)) == 1)


def test_short_batches_hand_threads_on_and_the_rows_stay(engine: SparkEngine, attached: SparkProcess) -> None:
    """`count` begins a batch every two seconds: other stages, other shuffles, and whichever pooled threads are free."""
    until(lambda: placed(engine, "count", 2))
    ids = [instance.id for instance in of(engine.topology(), "count")]
    seen: set[tuple[str, ...]] = set()
    compared: set[tuple[str, str]] = set()
    owners = Owners(engine, attached)

    def changed_three_times() -> bool:
        topology = engine.topology()
        assert [instance.id for instance in of(topology, "count")] == ids
        compared.update(owners.look() or ())
        assert not compared & {("count", "chain"), ("chain", "count")}
        seen.add(tuple(t.name for i in of(topology, "count") for t in i.threads if "-writer-" in t.name))
        time.sleep(0.02)
        return len(seen - {()}) > 3 and compared >= {("count", "count"), ("chain", "chain")}

    until(changed_three_times)


def test_a_query_that_stops_leaves_and_one_that_starts_comes(engine: SparkEngine, attached: SparkProcess) -> None:
    attached.start("late", "count", 30)
    until(lambda: placed(engine, "late", 2))
    assert "plan late" in {instance.operators[0] for instance in of(engine.topology(), "driver")}
    owners, right = Owners(engine, attached), {("chain", "chain"), ("count", "count")}
    until(lambda: owners.look() == {*right, ("late", "late")})
    attached.stop("late")
    until(lambda: "late" not in [query.name for query in engine.topology().queries])
    until(lambda: owners.look() == right)  # its threads are idle, or have been given to `count`
    assert placed(engine, "chain", 3)


def test_micro_batches_are_one_instance_whose_rows_cpu_and_backlog_are_counted(
    engine: SparkEngine, attached: SparkProcess
) -> None:
    """`dear` takes at most 200 rows of Kafka at a time, burns for each, and keeps most."""
    wanted = frozenset({"tuples_in", "tuples_out", "queue", "external_queue", "head_age", "cpu_time"})
    attached.start("dear", "dear", 0)
    try:

        def counted() -> bool:
            topology = engine.topology()
            found = engine.sample(wanted).columns
            rows = [row for row, each in enumerate(topology.instances) if each.query == "dear"]
            if len(rows) != 1 or topology.instances[rows[0]].operators != ("micro-batch",):
                return False
            taken, left, queue, outside, age, cpu = (
                found[name][rows[0]]
                for name in ("tuples_in", "tuples_out", "queue", "external_queue", "head_age", "cpu_time")
            )
            if not (taken > 200 and left > 0 and queue >= 0):
                return False
            assert left <= taken
            assert queue == outside
            assert (age > 0) is (queue > 0)
            assert cpu > 0
            return True

        until(counted)
    finally:
        attached.stop("dear")


def test_what_is_counted_no_more_is_unknown(attached: SparkProcess) -> None:
    """As after the death of an agent: figures that stood still would be taken for true."""
    metrics = frozenset({"tuples_in", "tuples_out", "output_queue", "latency"})

    # Without Kafka's own figures, which go on.
    with SparkEngine(Application.find(pid=attached.pid), knobs={}, mbeans=False) as own:

        def known() -> list[bool]:
            own.topology()
            found = own.sample(metrics).columns
            return [bool(np.isfinite(found[metric]).any()) for metric in sorted(metrics)]

        until(lambda: all(known()))
        own.agents.counts = 0.0
        until(lambda: not any(known()))
        assert not own.sample(metrics).given
        own.agents.counts = 0.2
        until(lambda: all(known()))


def test_jobs_between_two_looks_count_as_those_that_are_seen(engine: SparkEngine, attached: SparkProcess) -> None:
    """A job of `dear` takes less than a tenth of a second, and the second agent looks twice a second."""
    attached.start("slow", "dear", 0)

    def counted(engine: SparkEngine) -> tuple[float, float]:
        rows = [row for row, each in enumerate(engine.topology().instances) if each.query == "slow"]
        columns = engine.sample(frozenset({"cpu_time", "tuples_in"})).columns
        return (columns["tuples_in"][rows[0]], columns["cpu_time"][rows[0]]) if rows else (math.nan, math.nan)

    try:
        with SparkEngine(Application.find(pid=attached.pid), knobs={}, period=0.5, counts_period=0.5) as slow:
            until(lambda: counted(engine)[0] > 300.0 and counted(slow)[0] > 300.0)  # the first batches are compiled
            first = counted(engine), counted(slow)

            def agree() -> bool:
                (rows, cpu), (rows_of_slow, cpu_of_slow) = (
                    (now[0] - begin[0], now[1] - begin[1])
                    for begin, now in zip(first, (counted(engine), counted(slow)), strict=True)
                )
                return min(rows, rows_of_slow) >= 300.0 and cpu_of_slow / rows_of_slow == pytest.approx(
                    cpu / rows, rel=0.4
                )

            until(agree)
    finally:
        attached.stop("slow")


def test_jobs_of_users_are_no_cost_of_a_query_whose_name_or_number_contains_their_group(
    engine: SparkEngine, attached: SparkProcess
) -> None:
    attached.start("high", "plain", 5)

    def used() -> float:
        """Once it is known: while others work the agent may say nothing for a moment."""
        found: list[float] = []

        def known() -> bool:
            rows = [row for row, each in enumerate(engine.topology().instances) if each.query == "high"]
            cpu = engine.sample(frozenset({"cpu_time"})).columns["cpu_time"]
            found[:] = [float(cpu[row]) for row in rows]
            return bool(found) and found[0] > 0.0

        until(known)
        return found[0]

    try:
        before, all_before = used(), tree_seconds(attached.pid)
        for group in ("high", "a", "stream"):
            attached.work(group)
        worked = tree_seconds(attached.pid) - all_before
        assert used() - before < 0.3 * worked
    finally:
        attached.stop("high")


def test_python_workers_belong_to_the_tasks_that_need_them(engine: SparkEngine, attached: SparkProcess) -> None:
    """A query in micro-batches: its short tasks come and go, the Python process that works for them stays."""
    attached.start("snake", "python", 0)
    try:

        def works() -> bool:
            snake = of(engine.topology(), "snake")
            names = [thread.name for instance in snake for thread in instance.threads]
            return "python worker" in names

        until(works)
        (instance,) = of(engine.topology(), "snake")
        assert instance.operators == ("micro-batch",)

        def costs_more_than_spark_counts() -> bool:
            instances = engine.topology().instances
            sample = engine.sample(frozenset({"cpu_time", "batch_cost"}))
            for run, row in engine.batch_rows.items():
                if instances[row].query == "snake" and run in engine.batches and "cost" in sample.given:
                    found = sample.given["cost"][row] + np.nan_to_num(sample.columns["batch_cost"][row])
                    counted = engine.batches[run].cost + np.nan_to_num(engine.batches[run].batch_cost)
                    return bool(found > 1.05 * counted)
            return False

        until(costs_more_than_spark_counts)
    finally:
        attached.stop("snake")
    until(lambda: not of(engine.topology(), "snake"))


APART = 0.2
"""Seconds by which two figures may be apart: as many as between two readings of the counters."""


def passes(engine: SparkEngine) -> None:
    """Watch it until each query has begun a batch and ended one at least."""
    until(lambda: placed(engine, "chain", 3) and placed(engine, "count", 2))
    testing.check_engine(lambda: engine, pass_time=lambda _: time.sleep(0.02), rounds=150, apart=APART)


def test_it_is_an_engine_like_all_others_and_its_metrics_agree(attached: SparkProcess) -> None:
    knobs = {"nice": kernel.make("nice")}
    with SparkEngine(Application.find(pid=attached.pid), knobs=knobs) as engine:
        passes(engine)


class Exaggerates(SparkEngine):
    def sample(self, wanted: frozenset[str]) -> Sample:
        sample = super().sample(wanted)
        columns = {name: column + 20.0 * (name == "queue") for name, column in sample.columns.items()}
        return replace(sample, columns=columns)


def test_a_queue_that_its_counters_do_not_bear_out_is_found(attached: SparkProcess) -> None:
    """So there was something to compare in the application that passes."""
    with (
        Exaggerates(Application.find(pid=attached.pid), knobs={}) as engine,
        pytest.raises(AssertionError, match=r"has a queue of 2\d.*rows were put out for it and it has taken in \d"),
    ):
        passes(engine)


def test_the_loop_sets_real_priorities_and_puts_them_back(attached: SparkProcess) -> None:
    knobs = {"nice": kernel.make("nice")}
    with SparkEngine(Application.find(pid=attached.pid), knobs=knobs, mbeans=False) as engine:
        until(lambda: placed(engine, "chain", 3))
        binding = Binding(create("random"), "nice", 0.05, queries=("chain",))
        touched = mains(engine.topology(), "chain")
        found = [os.getpriority(os.PRIO_PROCESS, tid) for tid in touched]

        def turned() -> bool:
            loop.round(force=True)
            return [os.getpriority(os.PRIO_PROCESS, tid) for tid in touched] != found

        with Loop([engine], [binding]) as loop:
            until(turned)
        assert [os.getpriority(os.PRIO_PROCESS, tid) for tid in touched] == found


def test_without_an_agent_kafka_is_not_offered_and_nothing_is_loaded(attached: SparkProcess) -> None:
    with SparkEngine(Application.find(pid=attached.pid), mbeans=False, agent=False, knobs={}) as engine:
        assert engine.offers == {"cpu_time", "run_wait", "queue"}
        engine.topology()
        assert set(engine.sample(SparkEngine.OFFERS).columns) == {"cpu_time", "run_wait", "queue"}


def test_a_quiet_round_costs_far_less_than_a_dump(engine: SparkEngine, attached: SparkProcess) -> None:
    def cpu(what: object) -> float:
        began = time.thread_time()
        what()  # type: ignore[operator]
        return time.thread_time() - began

    until(lambda: placed(engine, "chain", 3))
    rounds = sorted(cpu(engine.topology) for _ in range(200))
    dumps = sorted(cpu(lambda: jvm.dump(attached.pid)) for _ in range(20))
    assert rounds[50] < 0.5 * dumps[5]


def test_an_application_that_has_ended_is_said_to_have_ended(attached: SparkProcess) -> None:
    gone = Application("local-process-1", "gone", attached.told["ui"], ())
    with SparkEngine(gone, mbeans=False, knobs={}) as engine, pytest.raises(TargetGone, match="'gone': has ended"):
        engine.topology()


def test_the_registry_has_it() -> None:
    kind = registry.get("spark")
    assert kind.start is SparkEngine
    assert kind.offers == SparkEngine.OFFERS
