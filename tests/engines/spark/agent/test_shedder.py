"""Rows of running queries are dropped, and kept again, by an agent of which the application knows nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applications import SparkProcess, feed
from fuzzing import FUZZ, WORDS
from support import LONG, named, until
from treadle.broker import Broker
from treadle.engines.spark.agent.shedder import Report, Shedder, parse
from treadle.errors import EngineError, TargetGone

ROWS = 4000
"""In a batch: enough for one part in four to be told from one in three."""


@pytest.fixture(scope="module")
def topic() -> str:
    return named("rows")


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the query `each` writes what it had in its batches."""
    file = tmp_path_factory.mktemp("application") / "each.counts"
    file.touch()
    return file


@pytest.fixture(scope="module")
def application(counts: Path, broker: Broker, topic: str) -> Iterator[SparkProcess]:
    feed(broker, topic, 1)
    with SparkProcess(counts.parent, broker, topic) as started:
        started.start("micro", "micro", 0)
        started.start("each", "each", 0)
        yield started


def test_a_part_is_kept_from_the_next_batch_on_and_counted(
    application: SparkProcess, broker: Broker, topic: str
) -> None:
    with closing(Shedder(application.pid, LONG)) as shedder:
        run = report(shedder, "micro").run
        shedder.keep({run: 0.25})
        send_until(broker, topic, lambda: report(shedder, "micro").seen > 0)
        feed(broker, topic, ROWS)
        send_until(broker, topic, lambda: report(shedder, "micro").seen >= ROWS)
        found = report(shedder, "micro")
        assert 0.2 < found.kept / found.seen < 0.3
        assert report(shedder, "each").seen == 0  # it was told of the other one


def test_a_batch_that_is_looked_at_twice_has_lost_the_same_rows(
    application: SparkProcess, broker: Broker, topic: str, counts: Path
) -> None:
    with closing(Shedder(application.pid, LONG)) as shedder:
        shedder.keep({report(shedder, "each").run: 0.25})
        settle(counts, broker, topic)
        counts.write_text("")
        feed(broker, topic, ROWS)
        until(lambda: taken(counts) > 0)
        settle(counts, broker, topic)
    lines = [line.split() for line in counts.read_text().splitlines()]
    assert all(alike == "True" for _, _, alike in lines)
    assert 0.2 * ROWS < sum(int(count) for _, count, _ in lines) < 0.3 * ROWS


def test_whoever_is_killed_drops_nothing_any_more(
    application: SparkProcess, broker: Broker, topic: str, counts: Path
) -> None:
    code = (
        "from treadle.engines.spark.agent.shedder import Shedder; import sys\n"
        f"s = Shedder({application.pid}, {LONG})\n"
        "s.keep({r.run: 0.0 for r in s.look()}); s.look(); print('told', flush=True); sys.stdin.read()"
    )
    killed = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"told\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    counts.write_text("")
    send_until(broker, topic, lambda: taken(counts) > 0)
    counts.write_text("")
    feed(broker, topic, ROWS)
    until(lambda: taken(counts) >= ROWS)


def test_whoever_is_silent_drops_nothing_until_it_is_heard_again(
    application: SparkProcess, broker: Broker, topic: str, counts: Path
) -> None:
    """As a process that was stopped or hangs: the connection is open, but nothing comes."""
    with closing(Shedder(application.pid, patience=1.0)) as shedder:
        suspended: list[float] = []

        def asks_and_drops() -> bool:
            assert shedder.look()
            suspended.append(shedder.suspended)
            return last(counts) == 0

        shedder.look()
        shedder.keep({report(shedder, "each").run: 0.0})
        send_until(broker, topic, asks_and_drops)
        counts.write_text("")
        send_until(broker, topic, lambda: taken(counts) > 0)
        suspended.clear()
        send_until(broker, topic, asks_and_drops)
        assert suspended[0] >= 1.0


def test_a_line_that_can_not_be_read_is_left_out_and_the_others_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = json.dumps(
        {"runId": "a", "batchId": 1, "timestamp": "2026-01-01T00:00:00Z", "numInputRows": 3, "sources": []}
    )
    lines = [
        *("query\ta\tid\tgoes-on\t5\t4\tgood", f"progress\ta\t{good}", "query\tb\tid\tends\t0\t0\t"),
        *("query\tc\tid\tgoes-on\tmany\t4\todd", "query\td", "query\te\tid\tgoes-on\t5\t-4\todd", "nonsense"),
        *('progress\ta\t{"odd": "\x1b"}', "progress\tb", "progress", "silent", "silent\tlong"),
    ]
    ours, theirs = socket.socketpair()
    monkeypatch.setattr("treadle.engines.spark.agent.shedder.call", lambda *_: ours)
    monkeypatch.setattr("treadle.engines.spark.agent.shedder.jar", lambda: Path())
    theirs.sendall(b"shed\t2\n")
    with closing(Shedder(1, LONG)) as shedder, theirs:
        theirs.sendall("\n".join([*lines, "", ""]).encode())
        good_one, other = shedder.look()
        assert (good_one.name, good_one.seen, good_one.kept, good_one.ends) == ("good", 5, 4, False)
        assert [each.rows for each in good_one.progress] == [3]
        assert (other.name, other.ends) == ("query-id", True)
        theirs.sendall(b"\xff\n\n")
        assert shedder.look() == []
    assert caplog.text.count("is ignored") == 1


def test_a_driver_that_ends_is_gone(application: SparkProcess) -> None:
    with closing(Shedder(application.pid, LONG)) as shedder:
        assert shedder.look()
        application.kill()
        with pytest.raises(TargetGone):
            shedder.look()


def report(shedder: Shedder, name: str) -> Report:
    return next(each for each in shedder.look() if each.name == name)


def taken(counts: Path) -> int:
    return sum(int(line.split()[1]) for line in counts.read_text().splitlines())


def last(counts: Path) -> int | None:
    """Rows of the last batch."""
    lines = counts.read_text().splitlines()
    return int(lines[-1].split()[1]) if lines else None


def settle(counts: Path, broker: Broker, topic: str) -> None:
    """Until the batches of all that was sent are over."""
    for _ in range(2):
        before = len(counts.read_text().splitlines())
        send_until(broker, topic, lambda before=before: len(counts.read_text().splitlines()) > before)


def send_until(broker: Broker, topic: str, is_so: Any) -> None:
    """Batches begin only where there are rows."""

    def sent() -> bool:
        feed(broker, topic, 1)
        return bool(is_so())

    until(sent)


LINES = st.lists(
    st.tuples(st.sampled_from(["query", "progress", "other"]), st.lists(WORDS, max_size=7)).map(
        lambda line: "\t".join((line[0], *line[1]))
    ),
    max_size=4,
)


@FUZZ
@given(st.one_of(st.binary(), LINES.map(lambda lines: "\n".join(lines).encode(errors="replace"))))
def test_any_answer_is_survived(said: bytes) -> None:
    parse(said)


def test_an_answer_without_end_is_given_up() -> None:
    here, there = socket.socketpair()
    shedder = Shedder.__new__(Shedder)
    shedder.pid, shedder.patience, shedder._connection = os.getpid(), 1.0, here

    def flood() -> None:
        with suppress(OSError):
            while True:
                there.sendall(b"query\n" * 10_000)

    flooding = threading.Thread(target=flood)
    flooding.start()
    with pytest.raises(EngineError, match="more than"):
        shedder.look()
    here.close()
    flooding.join()
    there.close()
