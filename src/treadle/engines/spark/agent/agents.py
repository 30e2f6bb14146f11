"""Treadle's agents inside Spark's JVMs: loads them, sets when they sample, and receives their reports.

`java/treadle/Agent.java` says what an agent does. To sample threads and jobs takes a fraction of a millisecond and
stops no thread, so an agent does it just before each round, and the report has arrived when the round starts. Stacks,
which stop all threads for a moment, are sampled less often. The agent connects to us by a socket that only the JVM's
user and we can open, and ends when the connection ends, for whatever reason.
"""

from __future__ import annotations

import logging
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import resources
from pathlib import Path

from treadle.durations import Backoff
from treadle.engines.spark.agent.reports import Reports
from treadle.errors import EngineError, TargetGone, TreadleError
from treadle.jars import Jar
from treadle.jvm import classes, loading
from treadle.linux.files import bounded
from treadle.linux.files.target_files import temporary_folder
from treadle.linux.sockets import peer

log = logging.getLogger("treadle.engines.spark")

START = 10.0
"""Maximum seconds for a loaded agent to connect."""
LEAD = 0.008
"""Seconds by which a sample comes before its round, enough to arrive in time. A late one counts in the next round."""
ROUNDS = 20
"""Rounds after which the sampling times are checked."""
TRIES = 6
BACKOFF = Backoff(0.2, 10.0)
"""Attempts to load an agent, and the pause in seconds before each retry, which doubles."""
PROTOCOL = 11
"""The protocol version that an agent must report: a loaded class stays even when its jar is replaced."""
NO_TURNS = (0, 0.0)
_TIMES = struct.Struct(">qqqqq")
_MANIFEST = "Agent-Class: treadle.Agent\n"


class Agent(Reports):
    """The agent in one JVM. The constructor loads it, which costs the JVM some hundredths of a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid}")
        self.pid = pid
        self.told: tuple[object, ...] = ()
        """The settings that were last sent: when to sample what, and the order of queries."""
        self._connection = call(pid, jar())
        end = time.monotonic() + START
        try:
            while not self.changes:
                self._hear(bounded.piece(self._connection, end, START))
            if self.protocol != PROTOCOL:
                raise EngineError(
                    "has the agent of another version of Treadle",
                    where=self.where,
                    remedy="restart the application, or attach with --no-agent",
                )
        except BaseException:
            self.close()
            raise
        self._connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def tell(
        self,
        first: float,
        period: float,
        stacks: float,
        counts: float,
        order: tuple[str, ...],
        turns: tuple[int, float],
    ) -> None:
        """Set when the agent samples: first at `first`, and then every `period` seconds.

        `first` is a time of the monotonic clock, which Java shares. `stacks` and `counts` are the seconds between two
        samples of stacks and of tasks' counters; 0: never. `order` has the runs of queries in the order in which their
        tasks get free slots and their batches begin; empty: Spark's own order. `turns` is the number of batches that
        may run at once (0: no limit), and the seconds between the beginnings of two batches of a query.
        """
        self.told = (first, period, stacks, counts, order, turns)
        slots, spacing = turns
        arranged = ",".join((str(slots), str(int(spacing * 1e3)), *order)).encode()
        times = (int(each * 1e9) for each in (first, period, stacks, counts))
        self._connection.send(_TIMES.pack(*times, len(arranged)) + arranged)

    def hear(self) -> None:
        """Receive and parse the bytes that have arrived; TargetGone if the agent has disconnected."""
        self._hear(self._connection.recv(bounded.PIECE))

    def _hear(self, some: bytes) -> None:
        if not some:
            raise TargetGone("the agent has disconnected", where=self.where)
        self.take(some)


class Agents:
    """The agents in all JVMs of an application. Background threads load them, so `keep` does not wait for them."""

    def __init__(self, *, loads: bool = True, period: float = 0.05, stacks: float = 0.0, counts: float = 0.0) -> None:
        """`period` is the time in seconds between two rounds; agents sample before each round.

        `stacks` and `counts` are the seconds between two samples of stacks and of tasks' counters; 0: never.
        """
        self._loads = loads
        self.period = period
        """Seconds between two rounds. May be changed at any time."""
        self._period = period
        self.stacks, self.counts = stacks, counts
        """Seconds between two samples of each kind; 0: never. Both may be changed at any time."""
        self.task_order: tuple[str, ...] = ()
        """Runs of queries, in the order in which their tasks get free slots. May be changed at any time."""
        self.turns = NO_TURNS
        """The number of batches that may run at once, and the seconds between the beginnings of two of one query."""
        self._agents: dict[int, Agent] = {}
        self._tried: dict[int, int] = {}
        """By process, the number of attempts to load its agent so far."""
        self._again: dict[int, float] = {}
        """By process, when to load its agent again after a failure: the JVM may have just started."""
        self._loading: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._speaking = select.epoll()
        self._lead = min(LEAD, period / 4)
        self._first = math.nan
        """The time of the agents' first sample; later samples follow in each period."""
        self._ages: list[float] = []
        """Age of the newest sample at each of the last rounds."""
        self.generation = 0
        """Grows with all reports and agents that are new, except for stacks and counters."""
        self.sampled = 0
        """Grows with new stacks."""
        self.counted = 0
        """Grows with new readings of tasks' counters."""

    def keep(self, pids: Iterable[int]) -> None:
        """Set the current processes, and load missing agents."""
        wanted, now = set(pids), time.monotonic()
        for pid in self._tried.keys() - wanted:
            del self._tried[pid]
            self._again.pop(pid, None)
            self._drop(pid)
        if self._loads:
            for pid in wanted:
                if pid not in self._tried or self._again.get(pid, math.inf) < now:
                    self._again.pop(pid, None)
                    self._tried[pid] = self._tried.get(pid, 0) + 1
                    thread = threading.Thread(target=self._load, args=(pid,), name="treadle-agent-load", daemon=True)
                    self._loading.append(thread)
                    thread.start()

    def settle(self, seconds: float) -> None:
        """Wait for agents that are being loaded, for at most `seconds`."""
        end = time.monotonic() + seconds
        for thread in self._loading:
            thread.join(max(0.0, end - time.monotonic()))
        self._loading = [thread for thread in self._loading if thread.is_alive()]

    def fileno(self) -> int:
        """A file descriptor that is readable when an agent has sent a report."""
        return self._speaking.fileno()

    def of(self, pid: int) -> Agent | None:
        """Return the agent in this process; None if there is none."""
        return self._agents.get(pid)

    @property
    def driver(self) -> Agent | None:
        """The agent in the driver, which reports jobs."""
        return next((agent for agent in list(self._agents.values()) if agent.drives), None)

    @property
    def tries_again(self) -> bool:
        """True if a failed agent load will be retried."""
        return bool(self._again)

    def look(self) -> None:
        """Receive all reports, and send new settings. Call this once per round: agents sample before the next call."""
        self._time(time.monotonic())
        told = (self._first, self._period, self.stacks, self.counts, self.task_order, self.turns)
        for agent in list(self._agents.values()):
            if agent.told != told:
                self._tried_with(agent, lambda agent: agent.tell(*told))
        for file, _ in self._speaking.poll(0):
            for agent in list(self._agents.values()):
                if agent.fileno() == file:
                    self._tried_with(agent, self._hear)

    def _time(self, now: float) -> None:
        """Adjust the sampling times. Rounds may be late, never early: the one with the youngest sample was on time."""
        if self._period != self.period:
            self._period, self._lead, self._first = self.period, min(LEAD, self.period / 4), math.nan
            self._ages.clear()
        if math.isnan(self._first):
            self._first = now + self._period - self._lead
        self._ages.append((now - self._first) % self._period)
        if len(self._ages) == ROUNDS:
            youngest = min(self._ages)
            if not 0.5 * self._lead < youngest < 1.5 * self._lead:
                self._first += youngest - self._lead
            self._ages.clear()

    def close(self) -> None:
        """End all agents."""
        with self._lock:
            self._closed = True
        for pid in list(self._agents):
            self._drop(pid)
        self._speaking.close()

    def _hear(self, agent: Agent) -> None:
        changes, sampled, counted = agent.changes, agent.sampled, agent.counted
        agent.hear()
        self.generation += agent.changes - changes
        self.sampled += agent.sampled - sampled
        self.counted += agent.counted - counted

    def _tried_with(self, agent: Agent, what: Callable[[Agent], None]) -> None:
        try:
            what(agent)
        except (OSError, TreadleError, ValueError) as error:
            if isinstance(error, EngineError):
                log.warning("%s; Spark's UI is used until the agent works", error, extra={"error": str(error)})
            self._try_again(agent.pid)  # unless its process has ended
            self._drop(agent.pid)
            self.generation += 1

    def _drop(self, pid: int) -> None:
        agent = self._agents.pop(pid, None)
        if agent is not None:
            agent.close()

    def _try_again(self, pid: int) -> bool:
        """Schedule a retry; False after the last attempt."""
        tried = self._tried.get(pid, 0)
        if 0 < tried < TRIES:
            self._again[pid] = time.monotonic() + BACKOFF.pause(tried)
        return tried < TRIES

    def _load(self, pid: int) -> None:
        try:
            agent = Agent(pid)
        except (TreadleError, OSError) as error:
            if not self._try_again(pid):
                log.info("no agent in process %d: %s", pid, error, extra={"process": pid, "error": str(error)})
            return
        with self._lock:
            if self._closed:
                agent.close()
            else:
                self._agents[pid] = agent
                self._speaking.register(agent.fileno(), select.EPOLLIN)
                self.generation += 1


def identify(pid: int) -> tuple[str, str]:
    """Return id and name of the application of this driver process; an error if it is no driver."""
    agent = Agent(pid)
    agent.close()
    if not agent.drives:
        raise EngineError("is not the driver of a Spark application", where=f"process {pid}")
    return agent.application


def jar() -> Jar:
    """The agent's jar, compiled on first use."""
    return classes.jar(
        "treadle-agent", Path(str(resources.files(__package__) / "java" / "treadle")), manifest=_MANIFEST
    )


def call(pid: int, own: Jar) -> socket.socket:
    """Load an agent from its jar, and accept its connection."""
    name, where = f".treadle-{secrets.token_hex(8)}", f"process {pid}"
    try:
        with temporary_folder(pid) as folder, folder.bind(name) as listening:
            try:
                listening.listen(1)
                listening.settimeout(START)
                loading.load(pid, own, f"/tmp/{name}", timeout=START)
                connection, _ = listening.accept()
            finally:
                with suppress(OSError):
                    folder.remove(name)
    except OSError as error:
        raise EngineError(
            f"the agent can't connect to Treadle: {error}", where=where, remedy="make its /tmp writable"
        ) from error
    caller = peer(connection).pid
    if caller != pid:
        connection.close()
        raise EngineError(f"process {caller} connected instead of the agent", where=where)
    connection.settimeout(START)
    return connection
