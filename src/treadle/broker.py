"""A Kafka broker for development and tests: one KRaft node on the loopback, with its data in a folder.

A broker outlives the process that has started it. `answers` checks whether it serves clients, and `stop` ends exactly
the process that was started. This module knows nothing of topics, and is not meant for production.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from treadle import jars
from treadle.errors import ConfigError, EngineError, RightsError
from treadle.linux import stat
from treadle.linux.files import trusted
from treadle.linux.files.file_lock import alone
from treadle.linux.files.open_files import is_readable
from treadle.linux.sockets import listener

HOST = "127.0.0.1"
PORT = 9092
HEAP = "512m"


@dataclass(frozen=True)
class Status:
    """The state of a broker, seen from outside.

    `silent`: the process runs but does not answer, since it still starts or hangs. `died`: it ended without `stop`.
    """

    state: Literal["stopped", "silent", "running", "died"]
    folder: str
    log: str
    pid: int | None = None
    bootstrap: str | None = None


@dataclass(frozen=True)
class Broker:
    """A broker that was started: its process, identified by pid and start time (`born`), and its port."""

    folder: Path
    port: int
    pid: int
    born: str
    already: bool = False
    """Whether the broker ran already when `start` was called."""

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers` of clients."""
        return f"{HOST}:{self.port}"

    @classmethod
    def start(
        cls, folder: Path, port: int = PORT, *, timeout: float = 60.0, progress: jars.Progress | None = None
    ) -> Broker:
        """Start the broker of this folder, and return when it answers; fetch its jars first if they are missing.

        Data that an earlier broker of the folder has written is kept. A broker that runs already is returned.
        """
        if not 0 < port < 65536:
            raise ConfigError(f"{port} is not a port", remedy="use 1 to 65535")
        with _alone(folder):
            broker = find(folder)
            if broker is None:
                broker = _start(folder.absolute(), port, progress)
            elif broker.port != port:
                why = f"the broker of this folder runs already, on port {broker.port}"
                raise EngineError(why, where=str(folder), remedy="stop it first, or name another folder")
            else:
                broker = replace(broker, already=True)
            _wait_until_it_answers(broker, timeout)
        return broker

    def alive(self) -> bool:
        """Whether this very process still runs."""
        return _born(self.pid) == self.born

    def answers(self) -> bool:
        """Whether the broker serves clients: at its port a broker with the cluster id from its folder answers."""
        there = _cluster_at(self.port)
        return there is not None and there == _cluster_in(self.folder)

    def stop(self, timeout: float = 30.0) -> None:
        """End the broker: SIGTERM, then SIGKILL after `timeout` seconds. If it has ended before, that is no error."""
        with _alone(self.folder):
            _end(self, timeout)
            if find(self.folder) is None:  # otherwise another broker was started here since
                _record(self.folder).unlink(missing_ok=True)


def default_folder() -> Path:
    """The default folder for the broker's data."""
    return jars.home() / "kafka"


def find(folder: Path) -> Broker | None:
    """Return the broker that runs in this folder, None if none does."""
    broker = _recorded(folder)
    return broker if broker is not None and broker.alive() else None


def stop(folder: Path) -> Broker | None:
    """Stop the broker of this folder and return it; None if none ran."""
    broker = _recorded(folder)
    if broker is None:
        return None
    ran = broker.alive()
    broker.stop()
    return broker if ran else None


def status(folder: Path) -> Status:
    """Return the state of the broker of this folder."""
    place = folder.absolute()
    broker = _recorded(place)
    seen = Status("stopped" if broker is None else "died", str(place), str(_log(place)))
    if broker is None or not broker.alive():
        return seen
    return replace(seen, state="running" if broker.answers() else "silent", pid=broker.pid, bootstrap=broker.bootstrap)


def free_port(*taken: int) -> int:
    """Return a free port on the loopback, outside the range from which the kernel takes clients' ephemeral ports."""
    for port in random.SystemRandom().sample(range(20000, 32000), 200):
        with contextlib.suppress(OSError):
            _bind(port)
            if port not in taken:
                return port
    raise EngineError("no free port found", remedy="end some programs that listen on this host")


def _start(folder: Path, port: int, progress: jars.Progress | None) -> Broker:
    _check_free(port)
    classpath = str(jars.fetch("kafka", progress=progress)["kafka"] / "*")
    if progress is not None:
        progress("starting the broker", 1.0)
    java = [jars.java(), f"-Xmx{HEAP}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    java += ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-cp", classpath]
    try:
        _format(folder, java)
        (folder / "server.properties").write_text(_properties(port, "data"), "utf-8")
        if _log(folder).exists():
            _log(folder).replace(folder / "broker.log.1")
        pid = _launch([*java, "kafka.Kafka", "server.properties"], folder)
    except OSError as error:
        raise _unusable(folder, error) from error
    broker = Broker(folder, port, pid, _born(pid) or "")
    _keep(broker)
    return broker


def _format(folder: Path, java: list[str]) -> None:
    """Make and format the data folder, completely or not at all: it gets its final name at the end."""
    if (folder / "data").exists():
        return
    shutil.rmtree(folder / "data.new", ignore_errors=True)
    (folder / "format.properties").write_text(_properties(PORT, "data.new"), "utf-8")
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # An id may begin with "-", which would be taken for an option: hence "=".
    tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config=format.properties"]
    done = subprocess.run(
        [*java, *tool], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise EngineError(
            f"can't format the data folder: {words[-1] if words else 'no reason given'}",
            where=str(folder),
            remedy="name another folder",
        )
    (folder / "data.new").rename(folder / "data")
    (folder / "format.properties").unlink()


def _properties(port: int, data: str) -> str:
    """The configuration: one node that is broker and controller, and internal topics with one replica.

    The path of the data folder is relative to the working directory, so it needs no quoting, and folders can be moved.
    """
    control = free_port(port)
    return "\n".join(
        [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@{HOST}:{control}",
            "controller.listener.names=CONTROLLER",
            f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{control}",
            f"advertised.listeners=PLAINTEXT://{HOST}:{port}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            f"log.dirs={data}",
            "auto.create.topics.enable=true",
            "num.partitions=1",
            "group.initial.rebalance.delay.ms=0",
            # After kill -9 the controller registers a new broker only when the session of the killed one has expired.
            "broker.session.timeout.ms=5000",
            "broker.heartbeat.interval.ms=1000",
            "log.cleaner.dedupe.buffer.size=20000000",
            *(f"{topic}.{one}=1" for topic in _OWN_TOPICS for one in ("replication.factor", "num.partitions")),
            *(f"{topic}.min.isr=1" for topic in _OWN_TOPICS[1:]),
            "",
        ]
    )


_OWN_TOPICS = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")


def _launch(command: list[str], folder: Path) -> int:
    """Start the command in a new session, from a shell that ends at once; return its pid.

    So it outlives the terminal, and init, not this process, waits for its end: it leaves no zombie.
    """
    shell = 'log=$1; shift; "$@" >"$log" 2>&1 </dev/null & echo $!'
    arguments = ["/bin/sh", "-c", shell, "sh", _log(folder).name, *command]
    done = subprocess.run(arguments, cwd=folder, stdout=subprocess.PIPE, start_new_session=True, check=True)
    return int(done.stdout)


def _wait_until_it_answers(broker: Broker, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not broker.answers():
        gone = not broker.alive()
        if gone or time.monotonic() > deadline:
            why = f"the broker ended: {_last_words(broker.folder)}" if gone else f"no answer within {timeout:g} s"
            if not broker.already:  # a broker that ran before may serve other processes: leave it to its starter
                _end(broker, 5.0)
                _record(broker.folder).unlink(missing_ok=True)
            raise EngineError(
                why,
                where=str(_log(broker.folder)),
                remedy="read this log; stop the broker if it still runs",
            )
        time.sleep(0.05)


def _end(broker: Broker, patience: float) -> None:
    try:
        handle = os.pidfd_open(broker.pid)
    except ProcessLookupError:
        return
    try:
        # The pidfd always means the same process, so the process that passes this check is the one that is signalled.
        for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 10.0)):
            if not broker.alive():
                return
            signal.pidfd_send_signal(handle, number)
            if is_readable(handle, wait):
                return
    except ProcessLookupError:
        return
    except PermissionError:
        raise RightsError(
            f"process {broker.pid} belongs to another user", where=str(broker.folder), remedy="stop it as that user"
        ) from None
    finally:
        os.close(handle)
    raise EngineError(
        f"process {broker.pid} does not end, although it was killed", where=str(broker.folder), remedy="try again later"
    )


def _born(pid: int) -> str | None:
    """Return when a process started: boot id and ticks since boot. None if there is no such process, or it has ended.

    A killed process is a zombie while its threads still hold its port; its pidfd is readable once all have ended.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        began = int(stat.read(pid)[stat.STARTED])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return None if is_readable(handle) else f"{boot}/{began}"
    except (FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(handle)


def _record(folder: Path) -> Path:
    return folder.absolute() / "broker.json"


def _log(folder: Path) -> Path:
    return folder / "broker.log"


def _keep(broker: Broker) -> None:
    fresh = _record(broker.folder).with_suffix(".new")
    fresh.write_text(json.dumps({"pid": broker.pid, "born": broker.born, "port": broker.port}), "utf-8")
    fresh.replace(_record(broker.folder))


def _recorded(folder: Path) -> Broker | None:
    try:
        kept = json.loads(_record(folder).read_text("utf-8"))
        return Broker(folder.absolute(), int(kept["port"]), int(kept["pid"]), str(kept["born"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"can't read it: {error}", where=str(_record(folder)), remedy="remove this file") from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock with which only one process at a time starts or stops the broker of a folder."""
    with ExitStack() as stack:
        try:
            trusted.mkdir(folder)
            stack.enter_context(alone(folder / "broker.lock"))
        except OSError as error:
            raise _unusable(folder, error) from error
        yield


def _unusable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"can't be used: {error.strerror or error}", where=str(folder), remedy="name a folder you may write"
    )


def _last_words(folder: Path) -> str:
    lines = _log(folder).read_text("utf-8", errors="replace").splitlines() if _log(folder).exists() else []
    telling = [line for line in lines if "ERROR" in line or "FATAL" in line or "Exception" in line or "Error" in line]
    return (telling or lines or ["its log is empty"])[-1].strip()[:300]


def _cluster_in(folder: Path) -> str | None:
    with contextlib.suppress(FileNotFoundError):
        for line in (folder / "data" / "meta.properties").read_text("utf-8").splitlines():
            if line.startswith("cluster.id="):
                return line.removeprefix("cluster.id=")
    return None


def _cluster_at(port: int) -> str | None:
    """Return the id of the cluster that answers at this port with a live broker; None if there is none.

    The Metadata request (version 4, no topics) is made by hand, so that no client library is needed. An open port alone
    proves nothing: a broker listens before the controller has registered it.
    """
    request = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">ib", 0, 0)
    try:
        with socket.create_connection((HOST, port), timeout=2.0) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            with connection.makefile("rb") as answer:
                (size,) = struct.unpack(">i", answer.read(4))
                return _cluster_of(answer.read(min(size, 65536)))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def _cluster_of(body: bytes) -> str | None:
    at = 8  # after correlation id and throttle time
    (brokers,) = struct.unpack_from(">i", body, at)
    at += 4
    for _ in range(brokers):
        (host,) = struct.unpack_from(">h", body, at + 4)
        (rack,) = struct.unpack_from(">h", body, at + 6 + host + 4)
        at += 6 + host + 4 + 2 + max(rack, 0)
    (length,) = struct.unpack_from(">h", body, at)
    return body[at + 2 : at + 2 + length].decode() if brokers > 0 and length > 0 else None


def _bind(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


def _check_free(port: int) -> None:
    try:
        _bind(port)
    except PermissionError:
        raise RightsError(f"port {port} is for root", remedy="name a port above 1023") from None
    except OSError:
        who = listener(port)
        raise EngineError(f"port {port} is in use{who}", remedy="end that program, or name another port") from None
