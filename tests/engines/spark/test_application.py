from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from applications import SparkProcess
from treadle.broker import Broker
from treadle.engines.spark.application import Application, Process
from treadle.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_driver_is_found_by_its_process(attached: SparkProcess) -> None:
    found = Application.find(pid=attached.pid)
    assert (found.name, found.ui) == (attached.told["name"], attached.told["ui"])
    assert found.local
    assert [(process.pid, process.driver) for process in found.processes] == [(attached.pid, True)]
    assert found.look_again() == found.processes


def test_a_python_application_is_found_by_the_process_of_python(attached: SparkProcess) -> None:
    assert Application.find(pid=int(attached.told["python"])) == Application.find(pid=attached.pid)


def test_it_is_found_by_name_and_by_the_address_of_its_ui(attached: SparkProcess) -> None:
    by_pid = Application.find(pid=attached.pid)
    assert Application.find(name=attached.told["name"]) == by_pid
    assert Application.find(ui=attached.told["ui"]) == by_pid
    assert Application.find(ui=attached.told["ui"].removeprefix("http://")).id == by_pid.id


def test_a_jvm_that_is_not_spark_is_one_clear_error(broker: Broker) -> None:
    with pytest.raises(EngineError, match=rf"process {broker.pid}: is a JVM, but runs no Spark application \(kafka"):
        Application.find(pid=broker.pid)


def test_a_process_that_is_no_jvm_is_one_clear_error() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(EngineError, match="is not a JVM"):
            Application.find(pid=process.pid)
        process.communicate(b"\n")


def test_no_process_and_no_application_are_clear_errors(attached: SparkProcess) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(EngineError, match="there is no such process"):
        Application.find(pid=gone.pid)
    with pytest.raises(EngineError, match=r"no Spark application is called 'nobody'.*running here: .*reads numbers"):
        Application.find(name="nobody")
    with pytest.raises(EngineError, match="does not answer"):
        Application.find(ui="http://127.0.0.1:1")


@pytest.mark.parametrize("given", [{}, {"pid": 1, "name": "a"}, {"name": "a", "ui": "b"}])
def test_one_way_to_name_it_is_asked_for(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="say which application"):
        Application.find(**given)  # type: ignore[arg-type]


def test_with_its_ui_off_it_says_how_to_turn_it_on(spark: SparkSession) -> None:
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    with pytest.raises(EngineError, match=r"its UI is off.*spark\.ui\.enabled=true"):
        Application.find(pid=pid)


def test_a_process_that_has_ended_or_was_replaced_is_left_out() -> None:
    me = Process(os.getpid(), 1, driver=True)  # that id, but another start
    assert Application("local-process-1", "n", "", (me,)).look_again() == ()
