"""Pipelines on a standalone cluster: a master, two workers, and Kafka between the hops or in real time.

Most of a minute each, for `make soak`, which sets `TREADLE_SOAK`; queries on clusters are in `test_placement` too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusters import daemon, environment, listens
from support import named, until
from treadle import jars
from treadle.broker import Broker, free_port
from treadle.pipelines.channels.cluster import client_config

LONG = 240.0
ROWS = 500


pytestmark = pytest.mark.skipif("TREADLE_SOAK" not in os.environ, reason="most of a minute: make soak")


@pytest.fixture
def cluster(tmp_path: Path, slots: int) -> Iterator[str]:
    """The address of a master that has two workers of so many slots each."""
    port = free_port()
    with ExitStack() as stack:
        stack.enter_context(daemon(tmp_path, "master.Master", "--port", str(port)))
        until(lambda: listens(port))
        master = f"spark://127.0.0.1:{port}"
        for number in (1, 2):
            folder = tmp_path / f"worker-{number}"
            size = ("--cores", str(slots), "--memory", "1g", "--work-dir", str(folder))
            stack.enter_context(daemon(tmp_path, "worker.Worker", *size, master))
        yield master


@pytest.mark.parametrize("slots", [1])
def test_a_pipeline_with_kafka_channels_runs_on_two_workers(cluster: str, broker: Broker, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    jars.fetch("spark-kafka")
    topic = named("cluster")
    producer = Producer(client_config(broker.bootstrap))
    for a in range(ROWS):
        producer.produce(topic, json.dumps({"a": a}))
    assert producer.flush(60) == 0
    _run("cluster_pipeline.py", tmp_path, cluster, broker, topic)
    rows = [row for file in (tmp_path / "out").glob("*.json") for row in json.loads(file.read_text())]
    assert sorted(row["a"] for row in rows) == list(range(ROWS))
    assert all(row["third"] == row["a"] % 3 for row in rows)
    workers = [tmp_path / f"worker-{number}" for number in (1, 2)]
    assert all(any(Path(row["place"]).is_relative_to(worker) for worker in workers) for row in rows)
    assert all(list(worker.glob("app-*/*")) for worker in workers), "each worker had an executor"


@pytest.mark.parametrize("slots", [4])
def test_in_real_time_the_executors_shed_what_they_have_no_cpu_for(
    cluster: str, broker: Broker, tmp_path: Path
) -> None:
    shedding, whole = map(
        json.loads, _run("cluster_realtime.py", tmp_path, cluster, broker, named("cluster")).splitlines()
    )
    assert shedding["sinks"]["out"]["accuracy"] < 0.9
    assert shedding["streams"]["numbers>out"]["rows"] > 0, "the executors have counted"
    assert whole["sinks"]["out"]["promised"] == 1.0


def _run(script: str, folder: Path, master: str, broker: Broker, topic: str) -> str:
    """What it prints, to its end."""
    file = Path(__file__).with_name(script)
    command = [sys.executable, str(file), str(folder), master, broker.bootstrap, topic]
    done = subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
