"""The agent tells of a running application what dumps and the UI tell, and leaves nothing behind."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from applications import SparkProcess
from support import until
from treadle import jvm
from treadle.broker import Broker
from treadle.engines.spark.agent.agents import Agent, Agents
from treadle.engines.spark.agent.reports import Told
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.engines.spark.queries.plan import parse
from treadle.engines.spark.queries.rest import Rest
from treadle.engines.spark.threads.thread_names import COMPILERS, Kind, parse_thread_name, runs_task
from treadle.engines.spark.threads.thread_table import ThreadTable
from treadle.errors import TreadleError

HOW_LONG = 10.0


@pytest.fixture
def agents(attached: SparkProcess) -> Iterator[Agents]:
    loaded = Agents(stacks=0.1)
    loaded.keep([attached.pid])
    loaded.settle(HOW_LONG)
    loaded.look()
    yield loaded
    loaded.close()


def threads(agents: Agents, attached: SparkProcess) -> Mapping[int, Told]:
    agent = agents.of(attached.pid)
    return {} if agent is None else agent.threads


def test_it_tells_of_every_java_thread_by_its_name(agents: Agents, attached: SparkProcess) -> None:
    def same() -> bool:
        dump = {(thread.number, thread.name) for thread in jvm.dump(attached.pid) if is_of_spark(thread.name)}
        agents.look()
        told = threads(agents, attached)
        return {(number, thread.name) for number, thread in told.items() if is_of_spark(thread.name)} == dump

    def is_of_spark(name: str) -> bool:
        """Java knows nothing of the JVM's own."""
        named = parse_thread_name(name)
        return named.kind is not Kind.RUNTIME and named.service != COMPILERS and name != "VM Thread"

    until(same)  # some come and go between the two


def test_it_is_told_of_another_period(agents: Agents, attached: SparkProcess) -> None:
    agent = agents.of(attached.pid)
    assert agent is not None
    for period in (0.2, 0.02):
        before, _, *_ = agent.told
        agents.period = period
        agents.look()
        first, told, *_ = agent.told
        assert told == period
        assert first != before  # its samples are timed by the new rounds


def test_it_tells_what_tasks_are_doing_as_a_dump_does(agents: Agents, attached: SparkProcess) -> None:
    agent = agents.of(attached.pid)
    assert agent is not None

    def same() -> bool:
        """Those that wait for the same all the time: others do something else a moment later."""
        agents.look()
        dumped = {thread.number: thread for thread in jvm.dump(attached.pid, frames=8) if runs_task(thread.name)}
        both = [(dumped[number], stack) for number, stack in agent.stacks.items() if number in dumped]
        alike = any(thread.stack == stack.frames and thread.state == stack.state for thread, stack in both)
        return alike and agent.sampled > 3

    until(same)
    assert all(runs_task(agent.threads[number].name) for number in agent.stacks.keys() & agent.threads.keys())
    assert {len(stack.frames) for stack in agent.stacks.values()} == {8}


def test_it_tells_of_jobs_and_plans_what_the_ui_tells(agents: Agents, attached: SparkProcess) -> None:
    def same() -> bool:
        shown = {(job.run, job.query, job.stages, job.execution) for job in rest.running_jobs()}
        agents.look()
        jobs = agents.driver.jobs.values() if agents.driver else ()
        return bool(shown) and {(job.run, job.query, job.stages, job.execution) for job in jobs} == shown

    rest = Rest(Application.find(pid=attached.pid).ui)
    until(same)
    assert agents.driver is not None
    chain = next(job for job in agents.driver.jobs.values() if job.query == "chain")
    assert parse(agents.driver.plans[chain.execution]) == rest.plan(chain.execution)


def test_it_tells_whose_each_shuffle_is(agents: Agents, attached: SparkProcess) -> None:
    def writers() -> set[int]:
        agents.look()
        named = [parse_thread_name(told.name) for told in threads(agents, attached).values()]
        return {each.shuffle for each in named if each.kind is Kind.WRITER}

    driver = agents.driver
    assert driver is not None
    chain = next(job for job in driver.jobs.values() if job.query == "chain")
    mine = {shuffle: stage for shuffle, stage in driver.shuffles.items() if stage in chain.stages}
    assert sorted(mine.values()) == list(chain.stages[:-1])
    until(lambda: mine.keys() <= writers())


def test_it_tells_what_a_batch_took_and_put_into_kafka(agents: Agents, attached: SparkProcess) -> None:
    driver = agents.driver
    assert driver is not None

    def batch(query: str) -> tuple[float, float]:
        agents.look()
        batches = [driver.batches.get(key) for key, thread in driver.threads.items() if named(thread, query)]
        return next(filter(None, batches), (0.0, 0.0))

    def named(thread: Told, query: str) -> bool:
        return f"thread for {query} " in thread.name

    attached.start("brief", "chain", 2)
    try:
        until(lambda: batch("brief")[1] > 0.0 and batch("count")[0] > 0.0)
        assert batch("brief")[0] > 0.0
        assert batch("brief")[1] <= 1.0  # it drops some
        assert batch("count")[1] == -1.0  # it goes nowhere
        assert batch("chain") == (0.0, -1.0)  # its first batch takes minutes
        assert math.isnan(driver.selectivity)
    finally:
        attached.stop("brief")
    until(lambda: batch("brief") == (0.0, 0.0))


@pytest.mark.parametrize(
    ("batches", "selectivity"),
    [
        ([], math.nan),
        ([(0.0, 0.0)], math.nan),
        ([(10.0, 0.5)], 0.5),
        ([(10.0, 0.5), (30.0, 0.1), (0.0, 0.0)], 0.2),
        ([(10.0, 0.5), (0.0, -1.0)], math.nan),
    ],
)
def test_queries_count_by_their_rows_and_where_one_is_not_known_nothing_is(
    batches: list[tuple[float, float]], selectivity: float
) -> None:
    agent = Agent.__new__(Agent)
    agent.batches = dict(enumerate(batches))
    assert agent.selectivity == pytest.approx(selectivity, nan_ok=True)


def test_it_ends_with_whoever_asked_and_leaves_no_file(attached: SparkProcess) -> None:
    def loaded() -> int:
        return sum(thread.name == "treadle-agent" for thread in jvm.dump(attached.pid))

    until(lambda: loaded() == 0)  # that of the test before may be ending still
    files = set(Path("/tmp").glob(".treadle-*"))
    agent = Agent(attached.pid)
    until(lambda: loaded() == 1)
    assert set(Path("/tmp").glob(".treadle-*")) <= files
    agent.close()
    until(lambda: loaded() == 0)


def test_with_it_and_without_the_same_threads_are_in_the_same_places(attached: SparkProcess) -> None:
    def chain(engine: SparkEngine) -> set[tuple[str, tuple[int, ...]]]:
        rows = [instance for instance in engine.topology().instances if instance.query == "chain"]
        return {(row.operators[0], tuple(sorted(thread.tid for thread in row.threads))) for row in rows}

    application = Application.find(pid=attached.pid)
    with SparkEngine(application, knobs={}) as told, SparkEngine(application, knobs={}, agent=False) as asking:
        until(lambda: len(chain(told)) == 3 and chain(told) == chain(asking))
        assert told._directory.told
        assert not asking._directory.told


def test_threads_that_come_are_found_without_a_dump(agents: Agents, attached: SparkProcess) -> None:
    roster = ThreadTable(agents)
    first = {thread.number for thread in roster.look(0.0, [attached.pid])[attached.pid]}

    def found_by_memory() -> bool:
        """Each new batch of `count` has threads that are not in the first dump."""
        agents.look()
        now = {thread.number: thread for thread in roster.look(1.0, [attached.pid])[attached.pid]}
        new = [thread for number, thread in now.items() if number not in first]
        known = {thread.number: thread.tid for thread in jvm.dump(attached.pid)}
        same = [known[thread.number] == thread.tid for thread in new if thread.number in known]
        assert all(same)
        return bool(same)

    until(found_by_memory)
    roster.close()


def test_in_a_jvm_that_is_not_spark_it_knows_threads_only(broker: Broker) -> None:
    agent = Agent(broker.pid)
    assert "treadle-agent" in {told.name for told in agent.threads.values()}
    assert not agent.drives
    agent.close()


def test_a_process_that_is_none_is_said_to_be_so() -> None:
    with pytest.raises(TreadleError):
        Agent(2**22 + 1)
