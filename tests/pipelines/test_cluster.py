"""The same pipeline on a standalone cluster: a master, two workers, and Kafka between the hops."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from treadle import jars
from treadle.broker import Broker, free_port
from treadle.pipelines.channels.cluster import client_config

LONG = 240.0
ROWS = 500
_OPENS = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master that has two workers of a core each."""
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(daemon(tmp_path, "master.Master", "--port", str(port)))
        until_open(port)
        master = f"spark://127.0.0.1:{port}"
        for number in (1, 2):
            folder = tmp_path / f"worker-{number}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder))
            stack.enter_context(daemon(tmp_path, "worker.Worker", *size, master))
        yield master


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    import pyspark

    home = Path(pyspark.__file__).parent
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENS]
    command = [jars.java(), "-Xmx256m", *opens, "-cp", f"{home}/jars/*", f"org.apache.spark.deploy.{name}"]
    command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
    with (folder / "daemons.log").open("ab") as log:
        started = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**environment(), "SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"},
        )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(30)


def environment() -> dict[str, str]:
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


def until_open(port: int) -> None:
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    pytest.fail("the master does not listen")


def test_a_pipeline_with_kafka_channels_runs_on_two_workers(cluster: str, broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    jars.fetch("spark-kafka")
    topic = f"cluster-{uuid.uuid4().hex[:8]}"
    producer = Producer(client_config(broker.bootstrap))
    for a in range(ROWS):
        producer.produce(topic, json.dumps({"a": a}))
    assert producer.flush(60) == 0
    script = Path(__file__).with_name("cluster_pipeline.py")
    command = [sys.executable, str(script), str(tmp_path), cluster, broker.bootstrap, topic]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [row for file in (tmp_path / "out").glob("*.json") for row in json.loads(file.read_text())]
    assert sorted(row["a"] for row in rows) == list(range(ROWS))
    assert all(row["third"] == row["a"] % 3 for row in rows)
    workers = [tmp_path / f"worker-{number}" for number in (1, 2)]
    assert all(any(Path(row["place"]).is_relative_to(worker) for worker in workers) for row in rows)
    assert all(list(worker.glob("app-*/*")) for worker in workers), "each worker had an executor"
