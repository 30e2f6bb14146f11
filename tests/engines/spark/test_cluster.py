"""A standalone cluster: a master, two workers, and the executors of an application found on this host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from applications import SparkProcess
from clusters import daemon, listens
from support import LONG, until
from treadle.broker import Broker, free_port
from treadle.engines.spark.application import Application
from treadle.engines.spark.engine import SparkEngine
from treadle.errors import EngineError
from treadle.model import Role


@pytest.fixture(scope="module")
def distributed(
    attached: SparkProcess, broker: Broker, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkProcess]:
    """An application with the same name as the other one, whose `chain` runs on two executors of two slots each."""
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    with ExitStack() as stack:
        stack.enter_context(daemon(folder, "master.Master", "--port", str(port)))
        until(lambda: listens(port))
        master = f"spark://127.0.0.1:{port}"
        for number in (1, 2):
            size = ("--cores", "2", "--memory", "1g", "--work-dir", str(folder / f"worker-{number}"))
            stack.enter_context(daemon(folder, "worker.Worker", *size, master))
        config = ("spark.executor.memory=512m", "spark.executor.cores=2")
        started = stack.enter_context(SparkProcess(folder, broker, topic, *config, master=master))
        started.start("spread", "chain", 300)
        yield started


def test_the_executors_of_an_application_are_found_and_its_stages_are_on_them(distributed: SparkProcess) -> None:
    found = Application.find(pid=distributed.pid)
    until(lambda: len(found.look_again()) == 3)
    with SparkEngine(found, mbeans=False, knobs={}) as engine:

        def placed() -> set[int]:
            """The processes of the main threads of all three stages."""
            threads = [t for i in engine.topology().instances if i.query == "spread" for t in i.threads]
            mains = [thread for thread in threads if thread.role is Role.MAIN]
            return {thread.pid for thread in mains} if len(mains) == 3 else set()

        until(placed)
        executors = {process.pid for process in found.look_again() if not process.driver}
        assert placed() == executors  # three tasks, two slots each
        assert distributed.pid not in executors
        names = [instance.operators[0] for instance in engine.topology().instances if instance.query == "driver"]
        assert names.count("network") == 3  # one for each process
        assert "plan spread" in names


def test_one_executor_alone_is_found_by_its_process(distributed: SparkProcess) -> None:
    whole = Application.find(pid=distributed.pid)
    until(lambda: len(whole.look_again()) == 3)
    pid = next(process.pid for process in whole.look_again() if not process.driver)
    alone = Application.find(pid=pid)
    assert (alone.id, alone.name, alone.ui) == (whole.id, distributed.told["name"], whole.ui)
    assert [(process.pid, process.driver) for process in alone.processes] == [(pid, False)]
    with SparkEngine(alone, mbeans=False, knobs={}) as engine:

        def here() -> list[int]:
            topology = engine.topology()
            return [thread.pid for i in topology.instances if i.query == "spread" for thread in i.threads]

        until(here)
        assert set(here()) == {pid}


def test_two_applications_of_one_name_are_told_apart_by_process(distributed: SparkProcess) -> None:
    with pytest.raises(
        EngineError, match=r"2 applications are called 'reads [^']*': process \d+, process \d+ .*by its pid"
    ):
        Application.find(name=distributed.told["name"])
    assert Application.find(ui=distributed.told["ui"]).id == distributed.told["id"]


def test_an_executor_that_dies_is_left_out_and_the_new_one_comes(distributed: SparkProcess) -> None:
    found = Application.find(pid=distributed.pid)
    until(lambda: len(found.look_again()) == 3)
    with SparkEngine(found, mbeans=False, knobs={}) as engine:
        until(lambda: len({thread.pid for thread in engine.topology().threads}) == 3)
        killed = next(process.pid for process in found.look_again() if not process.driver)
        os.kill(killed, signal.SIGKILL)
        limit = time.monotonic() + LONG
        while killed in {thread.pid for thread in engine.topology().threads}:
            assert time.monotonic() < limit
        until(lambda: len({thread.pid for thread in engine.topology().threads}) == 3)
        assert killed not in {thread.pid for thread in engine.topology().threads}
