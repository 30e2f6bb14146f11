from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from support import until
from treadle import broker as library
from treadle.broker import Broker, Status
from treadle.cli import parts
from treadle.errors import ConfigError, EngineError

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
START = "import pathlib, sys; from treadle.broker import Broker; b = Broker.start(pathlib.Path(sys.argv[1]), "
START += "int(sys.argv[2]), timeout=180); print(b.pid, b.already)"


@pytest.fixture
def start(kafka_jars: list[Path], tmp_path: Path) -> Iterator[Callable[[], Broker]]:
    """Starts the broker of one folder, as often as wanted; at the end none is left."""
    port = library.free_port()
    yield lambda: Broker.start(tmp_path / "kafka", port, timeout=180)
    library.stop(tmp_path / "kafka")


def write(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(120) == 0


def read(broker: Broker, topic: str, count: int) -> list[bytes | None]:
    """The first `count` values of a topic, as a consumer group would get them."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": f"test-{topic}", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        messages = consumer.consume(count, timeout=120)
        assert [message.error() for message in messages] == [None] * count
        return [message.value() for message in messages]
    finally:
        consumer.close()


def test_what_is_produced_can_be_consumed(broker: Broker) -> None:
    write(broker, "there-and-back", b"one", b"two", b"three")
    assert read(broker, "there-and-back", 3) == [b"one", b"two", b"three"]


def test_a_running_broker_says_so(broker: Broker) -> None:
    log = str(broker.folder / "broker.log")
    assert library.status(broker.folder) == Status("running", str(broker.folder), log, broker.pid, broker.bootstrap)


def test_starting_a_running_broker_is_fine_and_says_so(broker: Broker) -> None:
    again = Broker.start(broker.folder, broker.port)
    assert again.already
    assert not broker.already
    assert (again.pid, again.bootstrap) == (broker.pid, broker.bootstrap)


def test_a_running_broker_is_not_moved_to_another_port(broker: Broker) -> None:
    with pytest.raises(EngineError, match=f"runs already, on port {broker.port}.*stop it first"):
        Broker.start(broker.folder, library.free_port(broker.port))


def test_it_listens_on_the_loopback_only(broker: Broker) -> None:
    handles = set()
    for handle in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # the broker opens and closes files all the time
            handles.add(os.readlink(handle))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in handles]
    assert {address.split(":")[0] for address in listening} <= LOOPBACK
    assert broker.port in {int(address.split(":")[1], 16) for address in listening}


def test_a_port_in_use_names_who_uses_it(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=rf"port {broker.port} is in use by process {broker.pid} \(java\)"):
        Broker.start(tmp_path, broker.port)
    with socket.create_server(("127.0.0.1", 0)) as mine:
        port = mine.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} is in use by process {os.getpid()} "):
            Broker.start(tmp_path, port)
    assert library.status(tmp_path).state == "stopped"


def test_two_starters_get_one_broker_which_outlives_them_and_kill_9(
    start: Callable[[], Broker], kafka_jars: list[Path], tmp_path: Path
) -> None:
    folder, port = tmp_path / "kafka", library.free_port()
    command = [sys.executable, "-c", START, str(folder), str(port)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate()[0].split() for process in both)
    assert [process.returncode for process in both] == [0, 0]
    broker = library.find(folder)
    assert broker is not None
    assert said == [[str(broker.pid), "False"], [str(broker.pid), "True"]]

    write(broker, "kept", b"before")
    os.kill(broker.pid, signal.SIGKILL)
    until(lambda: not broker.alive())
    assert library.status(folder).state == "died"
    assert library.find(folder) is None

    again = Broker.start(folder, port, timeout=180)
    assert again.pid != broker.pid
    assert not again.already
    broker.stop()  # the one that was killed: the new one is none of its business
    assert library.status(folder).state == "running"
    write(again, "kept", b"after")
    assert read(again, "kept", 2) == [b"before", b"after"]


def test_a_restart_keeps_the_data_and_what_hangs_is_killed(start: Callable[[], Broker]) -> None:
    first = start()
    write(first, "kept", b"before")
    first.stop()
    assert not first.alive()
    assert library.status(first.folder).state == "stopped"
    first.stop()

    second = start()
    assert second.pid != first.pid
    assert read(second, "kept", 1) == [b"before"]
    os.kill(second.pid, signal.SIGSTOP)
    until(lambda: library.status(second.folder).state == "silent")
    with pytest.raises(EngineError, match="no answer within 0 s"):
        Broker.start(second.folder, second.port, timeout=0)
    assert second.alive()
    second.stop(timeout=0.1)
    assert not second.alive()


def test_a_pid_that_now_belongs_to_another_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as innocent:
        record = {"pid": innocent.pid, "born": "another boot/1", "port": 9092}
        (tmp_path / "broker.json").write_text(json.dumps(record))
        assert library.status(tmp_path).state == "died"
        assert library.stop(tmp_path) is None
        assert innocent.poll() is None
        assert library.status(tmp_path).state == "stopped"
        innocent.kill()


def test_a_broker_that_can_not_start_says_why_and_leaves_nothing_running(
    kafka_jars: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=77\ncluster.id=x\n")
    with pytest.raises(EngineError, match=r"broker\.log: the broker ended: .*77"):
        Broker.start(tmp_path, library.free_port(), timeout=180)
    assert library.status(tmp_path).state == "stopped"


def test_an_interrupted_format_is_done_again(start: Callable[[], Broker], tmp_path: Path) -> None:
    (tmp_path / "kafka" / "data.new").mkdir(parents=True)
    (tmp_path / "kafka" / "data.new" / "meta.properties").write_text("torn")
    assert start().answers()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigError, match="is not a port"):
        Broker.start(tmp_path, port)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't be used"):
        Broker.start(tmp_path / "file", library.free_port())
    assert library.status(tmp_path / "file").state == "stopped"


def test_a_record_that_makes_no_sense_is_told(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text("{")
    with pytest.raises(ConfigError, match=r"broker\.json: can't read it.*remove this file"):
        library.status(tmp_path)


def test_the_commands_start_show_and_stop(broker: Broker, tmp_path: Path) -> None:
    here = ["--folder", str(broker.folder)]
    started = CliRunner().invoke(parts.kafka, ["start", "--port", str(broker.port), *here])
    assert f"Kafka runs already: {broker.bootstrap}" in started.output
    shown = json.loads(CliRunner().invoke(parts.kafka, ["status", "--json", *here]).output)
    assert shown["state"] == "running"
    assert shown["bootstrap"] == broker.bootstrap
    assert "running" in CliRunner().invoke(parts.kafka, ["status", *here]).output
    stopped = CliRunner().invoke(parts.kafka, ["stop", "--folder", str(tmp_path)])
    assert stopped.output == "Kafka does not run here\n"
