"""Usage of CPU and memory by Spark's JVM, including the CPU of its ended children, and by this process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from treadle.linux import stat
from treadle.pipelines.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Mean number of cores in use over `seconds`, and resident memory at their end."""

    seconds: float
    spark_cores: float
    """Cores of the JVM and of the ended processes that it forked."""
    treadle_cores: float
    memory_gb: float


class Meter:
    """Measures the usage of Spark's JVM and of this process, from the meter's creation to each `read`."""

    def __init__(self, spark: SparkSession) -> None:
        self._pid = jvm.pid(spark)
        self._began = time.monotonic()
        self._jvm, self._own = self._times()

    def read(self) -> Usage:
        took = time.monotonic() - self._began
        jvm, own = self._times()
        memory = _resident(self._pid) + _resident(os.getpid())
        return Usage(took, (jvm - self._jvm) / took, (own - self._own) / took, memory / 2**30)

    def _times(self) -> tuple[float, float]:
        return stat.tree_times(stat.read(self._pid)), time.process_time()


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
