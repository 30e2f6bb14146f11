"""The purpose of a thread of a Spark process, from its name alone: which stage, which shuffle, which query's planner.

Thread names of Spark, Netty, Kafka and HotSpot are known here, and nothing of queries or plans. In Real-Time Mode a
stage's task thread is what Lachesis calls an operator's thread; shuffle writers, readers and flushers are the helper
threads of Lachesis-RT.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from treadle.model import Role


class Kind(StrEnum):
    """What a thread is for."""

    TASK = "task"
    """Runs a partition of a stage: the main thread of an operator."""
    IDLE = "idle"
    """A pooled task thread that waits for its next task."""
    WRITER = "shuffle-writer"
    """Sends the output of a stage to the next one."""
    FLUSHER = "shuffle-flusher"
    """Sends rows that a writer has buffered for too long."""
    READER = "shuffle-reader"
    """Receives the input of a stage from the one before."""
    PLANNER = "planner"
    """Plans the batches of one streaming query, in the driver."""
    PRODUCER = "kafka-producer"
    """Sends rows to Kafka, for all queries that share its producer."""
    SERVICE = "service"
    """A thread of Spark that batches wait for; `service` names the part of Spark."""
    BACKGROUND = "background"
    """Any other thread; no batch waits for it: listeners, the UI, heartbeats, clean-up, idle pools."""
    PYTHON = "python"
    """Feeds a Python worker of a task, or watches over it."""
    RUNTIME = "runtime"
    """A thread of the JVM itself, such as for garbage collection or signals."""


class Named(NamedTuple):
    """A parsed thread name. Fields that a kind does not have are -1 or empty."""

    kind: Kind
    stage: int = -1
    partition: int = -1
    """The partition of a task; for a helper of a shuffle, the one on the map side (writer) or reduce side (reader)."""
    shuffle: int = -1
    task: int = -1
    query: str = ""
    """The name of a planner's query; empty if its user gave it none."""
    query_id: str = ""
    run: str = ""
    """The runId of a planner's query, which is the job group of all its jobs."""
    service: str = ""

    @property
    def role(self) -> Role:
        """Tasks, planners and services run code of their own (main); helpers move the output of others."""
        return Role.HELPER if self.kind in _HELPERS else Role.MAIN


ANSWERS = "jvm"
"""The service that answers requests to a JVM: thread dumps, MBeans. At a safepoint all threads wait for it."""
COMPILERS = "compilers"
"""The service that compiles code that the JVM runs often."""
STARTS = ("scheduler", "checkpoint")
"""The services that, like a query's planner, have to finish their work before a batch starts."""
NETWORK = "network"
"""The service for communication between the processes of a cluster. In local mode its threads are idle."""
SERVICES = (ANSWERS, COMPILERS, *STARTS, NETWORK, "python gateway")
"""The parts of Spark itself, as operators of the pseudo query of the driver."""

_HELPERS = frozenset({Kind.WRITER, Kind.FLUSHER, Kind.READER, Kind.PRODUCER, Kind.PYTHON})
_OF_TASK = r"[Tt]ask (\d+)\.\d+ in stage (\d+)\.\d+ \(TID (\d+)\)"

_TASK = re.compile(f"Executor task launch worker for {_OF_TASK}")
_WRITER = re.compile(r"streaming-shuffle-writer-(\d+)-(\d+)\b")
_READER = re.compile(r"streaming-shuffle-(?:reader|task-discovery-thread|client-creation\S*)-(\d+)-(\d+)\b")
_FLUSHER = re.compile(r"time-based-flush-for-shuffle-writer-(\d+)-(\d+)")
_PLANNER = re.compile(r"stream execution thread for (?:(.*) )?\[id = ([0-9a-f-]+), runId = ([0-9a-f-]+)\]", re.DOTALL)
_PYTHON = re.compile(
    r"(?:stdout writer|stderr reader|Writer|Reader|(?:Idle )?(?:Worker )?Monitor) for \S*python|" + _OF_TASK
)
_PYTHON_TASK = re.compile(_OF_TASK)
_SERVICE_OF = (
    (
        "scheduler",
        re.compile(
            r"dag-scheduler-|task-result-getter|dispatcher-(?!Heartbeat)|streaming-shuffle-location|"
            r"broadcast-exchange|subquery-|kafka-admin-client"  # planners get the newest offsets by the last one
        ),
    ),
    ("checkpoint", re.compile(r"ChecksumCheckpoint|async-log-(?!purge)|microbatch")),
    (NETWORK, re.compile(r"rpc-|shuffle-|files-|netty-|streaming-shuffle|map-output-dispatcher")),
    ("python gateway", re.compile(r"Thread-\d+$|py4j")),  # Python's work on a batch (foreachBatch) runs in these
)
_ANSWERS = re.compile(r"VM Thread|Attach Listener|treadle-agent|[Jj]olokia|HTTP-Dispatcher")
_COMPILERS = re.compile(r"C[12] CompilerThread|JVMCI")
_RUNTIME = re.compile(
    r"GC Thread|G1 |VM |Sweeper thread|Reference Handler|Finalizer|Common-Cleaner|"
    r"Signal Dispatcher|Service Thread|Monitor Deflation|Notification Thread|SIG\w+ handler|"
    r"[ZX](?:Worker|Director|Driver|Stat|Uncommitter|Unmapper)|"
    r"ZGC|Shenandoah|ParGC|Concurrent |JFR |RMI |JMX |DestroyJavaVM|process reaper|"
    r"StrDedup|server-timer|Cleaner-\d"
)


@lru_cache(maxsize=4096)
def parse_thread_name(name: str) -> Named:
    """Parse a thread name. Names repeat in every dump, so results are cached."""
    if found := _TASK.match(name):
        partition, stage, task = map(int, found.groups())
        return Named(Kind.TASK, stage=stage, partition=partition, task=task)
    if name.startswith(("Executor task launch worker", "Executor task idle worker")):
        return Named(Kind.IDLE)
    for kind, pattern in ((Kind.WRITER, _WRITER), (Kind.READER, _READER), (Kind.FLUSHER, _FLUSHER)):
        if found := pattern.match(name):
            shuffle, partition = map(int, found.groups())
            return Named(kind, partition=partition, shuffle=shuffle)
    if found := _PLANNER.match(name):
        query, query_id, run = found.groups()
        return Named(Kind.PLANNER, query=query or "", query_id=query_id, run=run)
    if name.startswith("kafka-producer-network-thread"):
        return Named(Kind.PRODUCER)
    if _PYTHON.search(name):
        return _of_python(name)
    if _ANSWERS.match(name):
        return Named(Kind.SERVICE, service=ANSWERS)
    if _COMPILERS.match(name):
        return Named(Kind.SERVICE, service=COMPILERS)
    if _RUNTIME.match(name):
        return Named(Kind.RUNTIME)
    service = next((service for service, pattern in _SERVICE_OF if pattern.match(name)), "")
    return Named(Kind.SERVICE, service=service) if service else Named(Kind.BACKGROUND)


def is_hidden(name: str) -> bool:
    """Whether this is the name of a JIT compiler thread.

    Java's own lists of threads leave such threads out, though a thread dump shows a Java thread number for each.
    """
    return _COMPILERS.match(name) is not None


def runs_task(name: str) -> bool:
    """Whether a thread of this name may be the main thread of a task."""
    return name.startswith("Executor task launch")


def stable_thread_name(name: str, named: Named) -> str:
    """Return the name without the parts that change with every task, so that a pooled thread keeps one name."""
    return "Executor task launch worker" if named.kind in (Kind.TASK, Kind.IDLE) else name


def _of_python(name: str) -> Named:
    """Parse the name of a JVM thread that serves a Python worker; it contains the name of the worker's task, if any."""
    if found := _PYTHON_TASK.search(name):
        partition, stage, task = map(int, found.groups())
        return Named(Kind.PYTHON, stage=stage, partition=partition, task=task)
    return Named(Kind.PYTHON)
