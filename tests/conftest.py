"""Real parts that tests of several modules share; each is made once, and only if a test asks for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from applications import SparkProcess, feed
from support import named
from treadle import jars
from treadle.broker import Broker, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """SIGINT as usual: what was started in the background ignores it, and so would all that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes, or the drawing of one, says how busy the machine is.
    settings.register_profile("treadle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("treadle")


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """The jars of the Kafka broker, fetched into the user's cache if they are not there."""
    jars.fetch("kafka")
    return jars.paths("kafka")


@pytest.fixture(scope="session")
def jolokia_jars() -> list[Path]:
    """The agent that reads MBeans, fetched into the user's cache if it is not there."""
    jars.fetch("jolokia")
    return jars.paths("jolokia")


@pytest.fixture(scope="session")
def broker(kafka_jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running Kafka broker; topics are shared by all tests, so give yours names of their own."""
    started = Broker.start(tmp_path_factory.mktemp("kafka"), free_port(), timeout=180)
    yield started
    started.stop()


@pytest.fixture
def own_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for journals in which nobody else's are."""
    monkeypatch.setenv("TREADLE_STATE", str(tmp_path / "journals"))
    return tmp_path / "journals"


@pytest.fixture(scope="module")
def application(
    broker: Broker, jolokia_jars: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkProcess]:
    """A Spark application with the queries `high` and `low`, three stages each, in Real-Time Mode with little to do."""
    name = named("application")
    started = SparkProcess(tmp_path_factory.mktemp("application"), broker, name, f"spark.app.name={name}")
    feed(broker, started.topic, 200)
    for query in ("high", "low"):
        started.start(query, "chain", 20)
    yield started
    started.kill()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session with Treadle's settings; queries and tables are shared, so stop your own."""
    from treadle.pipelines.spark.session import session

    interrupt = signal.getsignal(signal.SIGINT)
    started = session("tests")
    signal.signal(signal.SIGINT, interrupt)  # PySpark's handler would wait for a Spark that others don't have
    yield started
    started.stop()
