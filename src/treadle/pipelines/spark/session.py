"""Creates Spark sessions in which a small batch costs little, and gives the reason for each setting.

All settings are Spark's own and can be used without Treadle, except those that name Treadle's classes. They are
defaults: what the user sets, in `config=`, in `spark-defaults.conf` or with `spark-submit`, wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from treadle.enforce.gate.pools import LADDER, allocation_file
from treadle.enforce.gate.slots import usable_cores
from treadle.errors import ConfigError, EngineError
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_JOINED = {"spark.driver.extraClassPath": os.pathsep, "spark.jars": ",", "spark.plugins": ","}
"""Settings where our values are added to the user's, and the separator."""


class Setting(NamedTuple):
    """One setting, and the reason for it."""

    key: str
    value: str
    why: str


def settings(*, fair: bool = False, local: bool = True) -> tuple[Setting, ...]:
    """The settings that `session` changes. `local`: driver and tasks are one process, with files on local disks.

    `fair` adds Spark's FAIR scheduler with a ladder of pools.
    """
    found = [
        Setting("spark.sql.shuffle.partitions", "1", "a small batch needs one task, not 200"),
        Setting("spark.sql.streaming.pollingDelay", "100ms", "40 idle queries that poll every 10 ms burn a core"),
        Setting("spark.sql.streaming.noDataProgressEventInterval", "60s", "idle queries report once a minute"),
        Setting("spark.sql.streaming.numRecentProgressUpdates", "10", "each query keeps 100 reports otherwise"),
        Setting("spark.sql.streaming.minBatchesToRetain", "10", "fewer checkpoint files to list after each batch"),
        Setting("spark.sql.adaptive.enabled", "false", "a plan that lives for milliseconds is not worth replanning"),
        Setting("spark.ui.enabled", "false", "the page keeps every job and task of every batch in memory"),
        Setting("spark.ui.showConsoleProgress", "false", "no progress bars between log lines"),
        Setting("spark.sql.session.timeZone", "UTC", "one time zone for channels and results"),
        Setting("spark.driver.extraClassPath", str(jvm.jar()), "Treadle's classes for the driver"),
    ]
    if local:
        checkpoints = "checkpoint files are renamed into place without forking chmod; other file systems as usual"
        found += [
            Setting("spark.sql.streaming.checkpointFileManagerClass", jvm.CHECKPOINTS, checkpoints),
            Setting("spark.driver.memory", "2g", "for all hops together"),
        ]
    else:
        found += [
            Setting("spark.jars", str(jvm.jar()), "Treadle's classes for the executors"),
            Setting("spark.plugins", jvm.WORKERS, "executors report how busy their cores are"),
        ]
    if fair:
        found += [
            Setting("spark.scheduler.mode", "FAIR", "pools share the task slots by weight"),
            Setting("spark.scheduler.allocation.file", str(allocation_file()), f"the ladder: {len(LADDER)} pools"),
        ]
    return tuple(found)


def session(
    name: str = "treadle",
    *,
    master: str | None = None,
    config: Mapping[str, object] | None = None,
    fair: bool = False,
    cheap: bool = True,
) -> SparkSession:
    """Create a session for pipelines. With `cheap=False`, for comparisons, Spark's own settings are mostly kept.

    `master` defaults to local mode with four task slots for each core: tasks that wait for input hold a slot, and the
    gate decides how many batches run at once.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise EngineError("PySpark is not installed", remedy="pip install 'treadle[spark]'") from None
    if master is None:
        master = f"local[{4 * usable_cores()}]"
    local = master.startswith("local")
    if not local and not master.startswith(("spark://", "yarn", "k8s://")):
        raise ConfigError(f"master '{master}' is unknown", remedy="use local[4], spark://host:7077, yarn or k8s://…")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    wanted = {s.key: s.value for s in settings(fair=fair, local=local)}
    if not cheap:
        kept = (*_JOINED, "spark.driver.memory", "spark.ui.showConsoleProgress")
        wanted = {key: value for key, value in wanted.items() if key in kept or key.startswith("spark.scheduler.")}
    given = {key: str(value) for key, value in (config or {}).items()}
    for key, comma in _JOINED.items():
        if given.get(key) and key in wanted:
            given[key] = comma.join([given[key], wanted[key]])
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**wanted, **given}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def missing(spark: SparkSession) -> list[Setting]:
    """The settings in `settings` that a session was started without: hops work in it, but cost more."""
    context = spark.sparkContext
    local = str(context.master).startswith("local")
    conf = context.getConf()  # classes are loaded later just as well
    return [s for s in settings(local=local) if s.key not in _JOINED and conf.get(s.key) != s.value]


def folder_of(pipeline: str) -> Path:
    """The default folder of a pipeline's channels and checkpoints."""
    return Path(".treadle", pipeline)
