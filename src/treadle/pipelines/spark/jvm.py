"""Compiles and loads Treadle's Java classes into Spark's JVM, and receives their calls.

The classes (`channels/java`) read and write embedded channels, park a hop until it may run, drop rows, measure and
place tasks, and write checkpoint files without forking. This module knows how to reach them from Python, and nothing of
pipelines.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.jvm import classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("treadle.pipelines")

CHANNEL = "treadle.Channel"
"""The data source of embedded channels, as Spark's `format`."""
CHECKPOINTS = "treadle.LocalCheckpoints"
WORKERS = "treadle.Workers"
"""The plugin by which executors report how busy their cores are."""
_KEEPS_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
"""A Spark setting. If true, Spark uses columns of a pandas UDF's input even after their reader has freed them."""


def jar() -> Path:
    """Return the path of the jar with the classes, compiled for this version of PySpark if necessary."""
    sources = Path(str(resources.files("treadle.pipelines.channels") / "java" / "treadle"))
    return classes.spark_jar("treadle", sources).path


def load(spark: SparkSession) -> Any:
    """Load the classes into the JVM of a session, even one started without them; return its `_jvm`."""
    guard_callbacks(spark)
    load_class(spark, CHANNEL, jar)
    spark.conf.set(_KEEPS_INPUT, "false")  # in any session: if true, rows of channels are freed while in use
    return spark.sparkContext._jvm


def load_class(spark: SparkSession, name: str, jar: Callable[[], Path]) -> None:
    """Load the classes of a jar into the JVM of a session, unless it has the class of this name already."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(name)
    except Exception:
        loader.addURL(jvm.java.io.File(str(jar())).toURI().toURL())


def guard_callbacks(spark: SparkSession) -> None:
    """From now on only the JVM of this session may call back into Python, as it does for `foreachBatch`.

    PySpark's callback server listens on a port of the loopback and takes calls from any client: any user of the machine
    could call our objects. Py4J supports tokens on both sides, but PySpark sets none.
    """
    from py4j.java_gateway import JavaObject
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    parameters = gateway.callback_server_parameters
    if parameters.auth_token is not None:
        return
    token = secrets.token_hex(32)
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)
    parameters.auth_token = token


def pid(spark: SparkSession) -> int:
    """The process id of a session's JVM."""
    running: Any = spark.sparkContext._jvm
    return int(running.java.lang.ProcessHandle.current().pid())


class Listener:
    """Receives calls from the Java classes. They come in threads of the JVM, so the callbacks must not block.

    Errors of the callbacks are logged, not raised.
    """

    def __init__(self, parked: Callable[[str, dict[str, Any]], None], ended: Callable[[str, str | None], None]) -> None:
        self._parked = parked
        self._ended = ended

    def parked(self, hop: str, report: str) -> None:
        try:
            self._parked(hop, json.loads(report))
        except Exception:
            log.exception("could not record that hop '%s' waits for its next batch", hop)

    def ended(self, run_id: str, error: str | None) -> None:
        try:
            self._ended(run_id, error)
        except Exception:
            log.exception("could not record that query %s has ended", run_id)

    class Java:
        """The Java interface, for py4j."""

        implements = ("treadle.Turn$Listener",)
