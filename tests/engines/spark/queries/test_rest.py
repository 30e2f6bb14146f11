from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from applications import SparkProcess
from fuzzing import FUZZ, JSON, NUMBERS, objects
from support import until
from treadle.engines.spark.queries import rest as module
from treadle.engines.spark.queries.rest import Directory, Job, Rest
from treadle.errors import EngineError, TreadleError


def rest(attached: SparkProcess) -> Rest:
    return Rest(attached.told["ui"])


def job_of(attached: SparkProcess, query: str) -> Job:
    found: dict[str, Job] = {}
    until(lambda: query in found or found.update({job.query: job for job in rest(attached).running_jobs()}))
    return found[query]


def test_a_job_says_which_query_it_is_of_and_has_its_stages_in_order(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    assert len(job.stages) == 3
    assert list(job.stages) == sorted(job.stages)
    assert len(job.run) == len(job.query_id) == 36
    assert job.execution >= 0


def test_the_plan_of_a_running_batch_has_a_stage_for_each_of_the_job(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    plan = rest(attached).plan(job.execution)
    assert plan is not None
    assert plan.real_time
    assert len(plan.stages) == len(job.stages)
    assert plan.stages[0].operators[0] == "kafka in"
    assert plan.stages[-1].operators[-1] == "kafka out"
    assert [stage.kafka_in for stage in plan.stages] == [True, False, False]


def test_spark_is_asked_once_for_a_stage_and_not_again(attached: SparkProcess) -> None:
    job = job_of(attached, "chain")
    directory = Directory(rest(attached), patience=60.0)
    try:
        assert directory.job(job.stages[0]) is None
        assert directory.learn(job.stages)
        until(lambda: directory.job(job.stages[0]) == directory.job(job.stages[2]) == job)
        known = directory.generation
        assert directory.learn(job.stages)
        assert directory.generation == known
        assert [len(stage.operators) > 0 for stage in directory.plan(job).stages] == [True] * 3
    finally:
        directory.close()


def test_a_stage_that_nobody_knows_is_not_asked_for_in_every_round(attached: SparkProcess) -> None:
    directory = Directory(rest(attached), patience=0.0)
    asked = []
    directory._ask = lambda: asked.append(1)  # type: ignore[method-assign]
    try:
        for _ in range(1000):
            directory.learn([10**9])
        until(lambda: asked)
        assert len(asked) < 20
    finally:
        directory.close()


def test_an_answer_that_nobody_foresaw_does_not_end_the_asking() -> None:
    directory, known = Directory(Rest("http://127.0.0.1:1"), patience=0.0), Job(1, "run", "q", "id", (1,))
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("a plan like no other")
        directory._note([known], {})

    directory._ask = ask  # type: ignore[method-assign]
    try:
        until(lambda: directory.learn([1]) or directory.job(1) == known)
        assert len(asked) == 2
    finally:
        directory.close()


def test_an_ui_that_is_gone_is_a_clear_error() -> None:
    with pytest.raises(EngineError, match="does not answer"):
        Rest("http://127.0.0.1:1").applications()


class Server:
    """Answers each connection with the same bytes, whatever it is asked."""

    def __init__(self) -> None:
        self.answer = b""
        self.keeps_on = False
        self.closes = 0
        """So many connections are closed without an answer first."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    self.closes -= 1
                    if self.closes >= 0:
                        continue
                    connection.sendall(self.answer)
                    while self.keeps_on:
                        connection.sendall(b"x" * 1000)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server()) as started:
        yield started


@pytest.mark.parametrize(("closes", "answers"), [(1, True), (2, False)])
def test_a_busy_ui_that_closes_a_connection_is_asked_once_more(closes: int, answers: bool) -> None:
    with closing(Server()) as server:
        server.closes, server.answer = closes, b"HTTP/1.1 200 OK\r\n\r\n[]"
        if answers:
            assert Rest(server.address).applications() == []
        else:
            with pytest.raises(EngineError, match="does not answer"):
                Rest(server.address).applications()


HEADS = st.lists(
    st.one_of(
        st.sampled_from(["Transfer-Encoding: chunked", "Content-Type: x", "Location: /", "\x00", " folded"]),
        NUMBERS.map(lambda number: f"Content-Length: {number}"),
    ),
    max_size=3,
)
ANSWERS = st.builds(
    lambda status, heads, body: "\r\n".join((f"HTTP/1.1 {status}", *heads, "", "")).encode() + body,
    st.sampled_from(["200 OK", "302 Found", "404 No", "500 \x1b[2J", "99 x", "abc", "100 Continue", "200"]),
    HEADS,
    st.one_of(st.binary(max_size=30), JSON.map(lambda value: json.dumps(value).encode())),
)


@FUZZ
@example(answer=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-8000000000000001")
@given(answer=st.one_of(st.binary(max_size=60), ANSWERS))
def test_any_answer_is_survived(server: Server, answer: bytes) -> None:
    server.answer = answer
    with suppress(TreadleError):
        Rest(server.address, timeout=60.0).applications()


TEXTS = st.one_of(JSON.map(str), st.sampled_from(["a\nid = 0-a\nrunId = 1-b\nbatch = 7", "x-execution-root-id-7"]))
JOBS = st.lists(
    st.one_of(
        JSON,
        st.fixed_dictionaries(
            {"stageIds": st.one_of(JSON, st.lists(st.integers(), max_size=3))},
            optional={"jobTags": st.lists(TEXTS, max_size=2), "description": TEXTS, "submissionTime": TEXTS},
        ),
        objects("id", "name", "stages", "planDescription"),
    ),
    max_size=3,
)


@FUZZ
@given(st.one_of(JSON, JOBS))
def test_any_json_is_survived(said: object) -> None:
    rest = Rest("http://127.0.0.1:1")
    rest.application = "application"
    rest.page = lambda path: json.dumps(said)  # type: ignore[method-assign]
    for ask in (rest.applications, rest.title, rest.running_jobs, rest.running_batches, lambda: rest.plan(1)):
        with suppress(TreadleError):
            ask()


def test_an_answer_that_is_nested_without_end_is_an_error() -> None:
    rest = Rest("http://127.0.0.1:1")
    rest.page = lambda path: "[" * 1_000_000  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="JSON"):
        rest.applications()


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 100_000)
    with closing(Server()) as server:
        server.answer, server.keeps_on = b"HTTP/1.1 200 OK\r\n\r\n", True
        with pytest.raises(EngineError, match="more than 100000 bytes"):
            Rest(server.address, timeout=60.0).applications()


def test_an_answer_that_comes_too_slowly_is_given_up() -> None:
    """As a whole, though each of its bytes is in time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                while not over.wait(0.02):
                    connection.send(b"H")

        dripping = threading.Thread(target=drip)
        dripping.start()
        with pytest.raises(EngineError, match=r"within 0\.3 s"):
            Rest(f"http://127.0.0.1:{server.getsockname()[1]}", timeout=0.3).applications()
        over.set()
        dripping.join()
