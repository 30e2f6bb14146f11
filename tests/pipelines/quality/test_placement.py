"""Queries on the workers of a real cluster: a worker that is added, a query that moves, a worker that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import treadle
from clusters import environment
from support import named, until
from treadle import jars
from treadle.bench.quality.scenario_run import PARTITIONS, make_topics
from treadle.bench.quality.standalone import Standalone
from treadle.broker import Broker
from treadle.errors import ConfigError
from treadle.pipelines.channels.cluster import client_config
from treadle.pipelines.quality import placement
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.spark.workers import Look

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIGHT, HEAVY = 500, 12_000


class Placed:
    """The pipeline of `placed_pipeline.py` on a cluster that has one worker, `first`, so far."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        from confluent_kafka import Producer

        self.folder = folder
        self.sent = 0
        self.cluster = Standalone(folder)
        self.cluster.add("first", {0})
        self._topic = named("placed")
        make_topics(broker.bootstrap, [self._topic])
        self._producer = Producer(client_config(broker.bootstrap))
        self.send(10)
        script = Path(__file__).with_name("placed_pipeline.py")
        command = [sys.executable, str(script), str(folder), self.cluster.master, broker.bootstrap, self._topic]
        with (folder / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
                cwd=folder,
            )

    def send(self, rows: int, hashes: int = LIGHT) -> None:
        for a in range(self.sent, self.sent + rows):
            self._producer.produce(self._topic, json.dumps({"a": a, "hashes": hashes}), partition=a % PARTITIONS)
        self.sent += rows
        assert self._producer.flush(60) == 0

    @contextmanager
    def flowing(self, hashes: int = LIGHT) -> Iterator[None]:
        """Rows come all the time."""
        over = threading.Event()

        def fill() -> None:
            while not over.wait(0.1):
                self.send(5, hashes)

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def ask(self, order: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.folder / "driver.log").read_text()[-3000:]
        return json.loads(answer)

    def workers(self) -> dict[str, list[str]]:
        """Who is where."""
        return {name: worker["hops"] for name, worker in self.ask("status")["workers"].items()}

    def rows(self, sink: str) -> list[dict[str, Any]]:
        return [row for file in (self.folder / sink).glob("*.json") for row in json.loads(file.read_text())]

    def runs_on(self, sink: str, *workers: str) -> bool:
        """Whether the last batch was worked on there, and nowhere else."""
        files = sorted((self.folder / sink).glob("*.json"), key=lambda file: int(file.stem))
        places = {row["place"] for row in json.loads(files[-1].read_text())}
        return {Path(place).relative_to(self.folder).parts[0] for place in places} == set(workers)

    def complete(self) -> bool:
        """All rows are worked off, and none was lost or came twice."""
        assert self.ask("drain")
        return all(sorted(row["a"] for row in self.rows(sink)) == list(range(self.sent)) for sink in ("one", "two"))

    def close(self) -> None:
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()
            self.cluster.close()


@pytest.fixture(scope="module")
def placed(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Placed]:
    jars.fetch("spark-kafka")
    started = Placed(tmp_path_factory.mktemp("placed"), broker)
    yield started
    started.close()


@pytest.mark.skipif(
    not os.environ.get("TREADLE_SOAK"), reason="takes a minute; what is decided is tested in test_moves"
)
def test_a_worker_that_is_added_while_another_has_too_much_to_do_is_used(placed: Placed) -> None:
    until(lambda: placed.workers() == {"first": ["one", "two", "two"]})
    with placed.flowing(HEAVY):
        until(lambda: len(placed.rows("two")) > 50)
        placed.cluster.add("second", {1})
        until(lambda: placed.workers().get("second"))
        moved = placed.workers()["second"][0]
        until(lambda: not placed.runs_on(moved, "first"))
    assert placed.complete()


def test_a_query_that_moves_to_a_worker_which_was_added_and_back_loses_no_row_and_has_none_twice(
    placed: Placed,
) -> None:
    until(placed.workers)
    if "second" not in placed.workers():
        placed.cluster.add("second", {1})
    with placed.flowing():
        until(lambda: placed.rows("one"))
        until(lambda: "second" in placed.workers())
        for worker in ("second", "first"):
            placed.ask(f"move one {worker}")
            until(lambda worker=worker: placed.runs_on("one", worker))  # type: ignore[misc]
    assert placed.complete()
    assert {move["target"] for move in placed.ask("status")["moves"]} == {"first", "second"}


def test_a_query_of_two_instances_works_on_two_workers_at_once(placed: Placed) -> None:
    with placed.flowing():
        placed.ask("move one first")
        placed.ask("move two first")
        until(lambda: placed.runs_on("two", "first"))
        placed.ask("move two second")
        until(lambda: placed.runs_on("two", "first", "second"))
        assert placed.workers() == {"first": ["one", "two"], "second": ["two"]}
    assert placed.complete()


def test_an_assignment_decides_which_worker_a_query_runs_on(placed: Placed) -> None:
    """Groups are workers, in the order of the status."""
    with placed.flowing():
        order = list(placed.workers())
        for group in (1, 0, 1):
            placed.ask(f"assign one={group}")
            until(lambda group=group: placed.runs_on("one", order[group]))  # type: ignore[misc]
            assert placed.ask("status")["moves"][-1]["why"] == "it was assigned"
        assert placed.ask("move one first") == "'one' can't move: an assignment has chosen its worker"
        assert placed.ask("move one nowhere") == "'one' can't move to 'nowhere'"
        slots = [(group["slots"], group["hops"]) for group in placed.ask("assign one=1")]
        assert slots == [(2, 0), (2, 1)]  # each worker has one core
        placed.ask("assign")
    assert placed.complete()


def test_a_query_whose_worker_dies_in_the_middle_of_its_move_ends_up_on_another_and_loses_nothing(
    placed: Placed,
) -> None:
    with placed.flowing():
        placed.ask("move one first")
        placed.cluster.kill("first")
        until(lambda: placed.workers() == {"second": ["one", "two", "two"]})
        for sink in ("one", "two"):
            before = len(placed.rows(sink))
            until(lambda sink=sink, before=before: len(placed.rows(sink)) > before)  # type: ignore[misc]
            assert placed.runs_on(sink, "second")
    assert placed.complete()
    assert placed.ask("status")["moves"][-1]["why"] == "its worker was lost"


class NoWorkers:
    """A cluster none of whose workers has come yet."""

    def look(self, now: float) -> Look:
        return Look(now, {}, {})

    def get(self, _query: str) -> str | None:
        return None

    def set(self, query: str, worker: str | None) -> None:
        raise AssertionError((query, worker))


@pytest.mark.parametrize("minimum", [0.5, None])
def test_a_placed_run_makes_promises_once_and_leaves_nothing_of_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minimum: float | None
) -> None:
    made: list[Promises] = []
    monkeypatch.setattr(placement, "can_place", lambda _: True)
    monkeypatch.setattr(placement, "Table", lambda _: NoWorkers())
    monkeypatch.setattr(Promises, "__init__", noting(Promises.__init__, made))
    p = treadle.Pipeline(named("once"))
    p.feed("rows", schema="id long")
    p.write("out", reads="rows", format="noop", min_accuracy=minimum)
    with p.start(spark, folder=tmp_path, placement=treadle.place()) as run:
        assert made == [run.promises]
        assert isinstance(run.promises, placement.Placement)
        run.feed("rows").append([{"id": 1}])
        until(lambda: run.hops["out"].batches, run)
    assert not [stream for stream in made[0]._shedding.counts() if stream.startswith(p.name)]
    with pytest.raises(ConfigError, match=r"'nobody' is not a query of this run.*use one of out"):
        p.start(spark, folder=tmp_path, placement=treadle.place(prefer={"nobody": ["first"]}))
    with pytest.raises(ConfigError, match=r"instances: 'nobody' is not a query of this run.*use one of out"):
        p.start(spark, folder=tmp_path, placement=treadle.place(instances={"nobody": 2}))
    with pytest.raises(ConfigError, match=r"instances: 'out' can't have 0.*use a whole number from 1 on"):
        treadle.place(instances={"out": 0})
    with pytest.warns(DeprecationWarning, match=r"use pipeline\.start\(spark, placement=treadle\.place"):
        old = treadle.pipelines.placement.start(p, spark, folder=tmp_path)
    with old:
        assert isinstance(old.promises, placement.Placement)
    assert not spark.streams.active


def noting(method: Callable[..., None], made: list[Promises]) -> Callable[..., None]:
    def init(self: Promises, *arguments: Any) -> None:
        method(self, *arguments)
        made.append(self)

    return init
