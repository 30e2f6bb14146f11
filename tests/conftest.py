"""Real parts that tests of several modules share; each is made once, and only if a test asks for it."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from applications import SparkProcess, feed
from support import named
from treadle import jars
from treadle.broker import Broker, free_port
from treadle.linux.files import runtime_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """SIGINT as usual: what was started in the background ignores it, and so would all that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes, or the drawing of one, says how busy the machine is.
    settings.register_profile("treadle", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("treadle")


_NEEDS = {"kafka": {"broker", "kafka_jars"}, "spark": {"spark", "attached", "application"}, "jvm": {"jvm", "start"}}
"""Marker -> fixtures of which one says that a test has it."""
_STARTS = {
    "jvm": ("jvm/test_",),
    "spark": ("soak/test_soak", "bench/test_adaptive", "bench/quality", "bench/pipelines", "engines/spark/test_cluster",
              "pipelines/test_c", "pipelines/quality/test_placement", "pipelines/spark/test_session", "cli/test_run",
              "cli/test_kills", "attachment/test_livelock"),
    "root": ("enforce/kernel/", "enforce/recovery/test_guardian", "linux/files/test_target_files", "test_attachment",
             "cli/test_kills", "attachment/test_livelock"),
    "slow": ("engines/simulator/test_", "decide/adaptive/", "testing/", "bench/test_core", "bench/simulator"),
}  # fmt: skip
"""Marker -> beginnings of the paths of tests that start such parts themselves, or take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by what it needs; `unit` are those that need nothing."""
    here = Path(__file__).parent
    for item in items:
        place, fixtures = item.path.relative_to(here).as_posix(), set(getattr(item, "fixturenames", ()))
        found = {marker for marker, needed in _NEEDS.items() if needed & fixtures}
        found |= {marker for marker, places in _STARTS.items() if place.startswith(places)}
        if not found - {"slow"}:
            found.add("unit")
        for marker in sorted(found):
            item.add_marker(marker)


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


@pytest.fixture
def own_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for control sockets, whose paths must be short, in which nobody else's are."""
    folder = Path(tempfile.mkdtemp(prefix="treadle"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(runtime_folder, "places", lambda _: [folder / "own"])
    yield folder
    shutil.rmtree(folder)


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
