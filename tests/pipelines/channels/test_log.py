"""A channel has the rows that were appended, keeps them for its consumers, and says what is wrong with it."""

from __future__ import annotations

import datetime as dt
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from treadle.errors import ConfigError, EngineError
from treadle.pipelines.channels.log import (
    View,
    Writer,
    collect,
    positions,
    prepare,
    read,
    register_consumer,
    remove_consumer,
    set_position,
    verify,
)
from treadle.pipelines.channels.segment import Segment, store

SCHEMA = pa.schema([("id", pa.int64())])


def ids(first: int, rows: int) -> pa.Table:
    return pa.table({"id": range(first, first + rows)}, schema=SCHEMA)


def shown(folder: Path) -> list[int]:
    numbers: list[int] = read(folder).column("id").to_pylist()
    return numbers


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    """A channel of ten segments of ten rows."""
    with Writer(tmp_path, SCHEMA) as writer:
        for first in range(0, 100, 10):
            writer.append(ids(first, 10))
    return tmp_path


def test_rows_are_read_back_exactly_as_sliced(ten: Path) -> None:
    for start, end in ((0, 100), (0, 0), (100, 100), (5, 6), (9, 11), (10, 20), (15, 87), (95, 100)):
        assert read(ten, start, end).column("id").to_pylist() == list(range(start, end))
    assert read(ten).schema == SCHEMA
    for start, end in ((0, 101), (5, 4), (-1, 3)):
        with pytest.raises(EngineError, match="it has 0 to 100"):
            read(ten, start, end)


def test_a_segment_tells_its_rows_epoch_and_arrival(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
    early = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    rows = [{"id": i, "at": early + dt.timedelta(seconds=i)} for i in range(3)]
    with Writer(tmp_path, schema) as writer:
        one = writer.append(rows, born="at")
        two = writer.append(pd.DataFrame(rows), born=(7.0, 8.0), epoch=5)
        three = writer.append(rows)
    assert one is not None
    assert two is not None
    assert three is not None
    assert (one.first, one.rows, one.epoch) == (0, 3, 0)
    assert (one.oldest, one.mean) == (early.timestamp(), early.timestamp() + 1)
    assert (two.first, two.epoch, two.oldest, two.mean) == (3, 5, 7.0, 8.0)
    assert (three.first, three.epoch) == (6, 6)
    assert three.oldest == three.mean > early.timestamp()
    assert [segment.bytes for segment in View(tmp_path).segments] == [one.bytes, two.bytes, three.bytes]
    assert not verify(tmp_path)


def test_an_epoch_that_is_committed_is_ignored_also_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        with Writer(tmp_path, SCHEMA) as writer:
            for epoch in (3, 3, 7, 5, 7):
                writer.append(ids(epoch, 1), epoch=epoch)
            assert (writer.epoch, writer.end) == (7, 2)
    assert shown(tmp_path) == [3, 7]


def test_no_rows_are_no_segment(tmp_path: Path) -> None:
    with Writer(tmp_path, SCHEMA) as writer:
        assert writer.append([]) is None
        assert writer.append(ids(0, 0), epoch=4) is None
        assert writer.epoch == -1
    assert shown(tmp_path) == []


def test_what_can_not_be_appended_leaves_the_channel_as_it_is(tmp_path: Path) -> None:
    with Writer(tmp_path, SCHEMA) as writer:
        with pytest.raises(EngineError, match="column 'id' is string"):
            writer.append(pa.table({"id": ["a"]}))
        writer.append(ids(0, 1))
    with pytest.raises(EngineError, match="closed"):
        writer.append(ids(1, 1))
    assert shown(tmp_path) == [0]


def test_a_channel_of_another_schema_is_refused_by_the_column(ten: Path) -> None:
    for fields, complaint in (
        ([("id", pa.string())], "column 'id'"),
        ([("id", pa.int64()), ("more", pa.int64())], "column 'more'"),
        ([("other", pa.int64())], "column 'other'"),
    ):
        with pytest.raises(EngineError, match=complaint):
            Writer(ten, pa.schema(fields))
    Writer(ten, SCHEMA).close()


def test_a_folder_that_can_not_be_one_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EngineError, match="could not be written"):
        Writer(tmp_path / "file", SCHEMA)
    with pytest.raises(EngineError, match="no channel here"):
        read(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="limit_rows can't be 0"):
        Writer(tmp_path, SCHEMA, limit_rows=0)


def test_positions_are_kept_by_consumer(ten: Path) -> None:
    assert positions(ten) == {}
    assert register_consumer(ten, "a") == 0
    set_position(ten, "a", 35)
    assert register_consumer(ten, "a") == 35
    assert collect(ten) == 3
    assert register_consumer(ten, "b") == 30
    assert positions(ten) == {"a": 35, "b": 30}
    remove_consumer(ten, "a")
    remove_consumer(ten, "a")
    assert positions(ten) == {"b": 30}


def test_names_and_positions_that_make_no_sense_are_refused(ten: Path) -> None:
    for name in ("", ".hidden", "a/b", "../x"):
        with pytest.raises(ConfigError, match="consumer's name"):
            set_position(ten, name, 0)
    with pytest.raises(ConfigError, match="position of 'a' can't be -1"):
        set_position(ten, "a", -1)
    register_consumer(ten, "a")
    (ten / "positions" / "a").write_text("many")
    with pytest.raises(EngineError, match="'many' is not a row number"):
        collect(ten)
    assert [problem.kind for problem in verify(ten)] == ["position"]


def test_only_what_all_consumers_have_passed_is_deleted_and_never_the_last(ten: Path) -> None:
    assert collect(ten) == 0
    register_consumer(ten, "a")
    register_consumer(ten, "b")
    set_position(ten, "a", 100)
    assert collect(ten) == 0
    set_position(ten, "b", 29)
    assert collect(ten) == 2
    set_position(ten, "b", 100)
    assert collect(ten) == 7
    assert shown(ten) == list(range(90, 100))
    with Writer(ten, SCHEMA) as writer:
        assert (writer.end, writer.epoch) == (100, 9)


class Waiting:
    """A clock for somebody who waits: each sleep is one step of what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.time = 0.0
        self.meanwhile = meanwhile

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.meanwhile()


@pytest.mark.parametrize("limits", [{"limit_rows": 20}, {"limit_bytes": 1}])
def test_a_full_channel_makes_the_writer_wait_for_its_slowest_consumer(tmp_path: Path, limits: dict[str, int]) -> None:
    register_consumer(tmp_path, "slow")
    register_consumer(tmp_path, "quick")
    done = iter(range(1, 21))
    clock = Waiting(lambda: set_position(tmp_path, "slow", next(done)))
    with Writer(tmp_path, SCHEMA, clock=clock, **limits) as writer:
        writer.append(ids(0, 20))
        set_position(tmp_path, "quick", 20)
        assert writer.full
        writer.append(ids(20, 1), timeout=60)
    assert positions(tmp_path)["slow"] == (1 if "limit_rows" in limits else 20)
    assert shown(tmp_path) == list(range(21))


def test_who_waits_for_a_full_channel_is_told_when_it_is_closed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, SCHEMA, limit_rows=1)
    writer.append(ids(0, 1))
    told: list[EngineError] = []

    def wait() -> None:
        try:
            writer.append(ids(1, 1))
        except EngineError as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    writer.close()
    waiting.join(30)
    assert "closed" in str(told[0])
    assert shown(tmp_path) == [0]


def test_a_channel_that_stays_full_is_an_error_in_the_end_and_nothing_is_lost(tmp_path: Path) -> None:
    clock = Waiting(lambda: None)
    with Writer(tmp_path, SCHEMA, limit_rows=5, clock=clock) as writer:
        writer.append(ids(0, 5))
        with pytest.raises(EngineError, match="still full after 3 s"):
            writer.append(ids(5, 5), timeout=3)
        assert clock.time >= 3
        register_consumer(tmp_path, "c")
        set_position(tmp_path, "c", 1)
        assert not writer.full
        writer.append(ids(5, 5))
    assert shown(tmp_path) == list(range(10))


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond the limit, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_space_nothing_half_written_is_left_and_the_next_append_works(tmp_path: Path) -> None:
    with Writer(tmp_path, SCHEMA) as writer:
        writer.append(ids(0, 10))
        before = sorted(os.listdir(tmp_path))
        with small_files(4096), pytest.raises(EngineError, match="no space left") as caught:
            writer.append(ids(10, 10_000))
        assert "make space" in caught.value.remedy
        assert sorted(os.listdir(tmp_path)) == before
        segment = writer.append(ids(10, 10_000))
    assert segment is not None
    assert segment.epoch == 1
    assert shown(tmp_path) == list(range(10_010))


def test_a_damaged_segment_stops_the_reader_there_and_stays(ten: Path) -> None:
    hurt = ten / View(ten).segments[4].name
    hurt.write_bytes(hurt.read_bytes()[:50])
    with pytest.raises(EngineError, match="rows 40 to 50 is damaged"):
        read(ten)
    assert read(ten, 0, 40).num_rows == 40
    assert read(ten, 50, 100).num_rows == 50
    assert [(problem.kind, problem.path) for problem in verify(ten)] == [("damaged", hurt)]


def test_verify_lists_what_is_wrong_and_a_new_writer_cleans_up_what_was_interrupted(ten: Path) -> None:
    assert verify(ten) == []
    (ten / ".tmp-x").write_text("torn")
    (ten / "strange.arrow").write_text("not ours")
    store(ten / Segment(105, 5, 1.0, 1.0, 10).name, ids(105, 5))
    store(ten / Segment(110, 5, 1.0, 1.0, 10).name, ids(110, 5))
    assert sorted(problem.kind for problem in verify(ten)) == ["foreign", "gap", "gap", "leftover"]
    with Writer(ten, SCHEMA) as writer:
        assert (writer.end, writer.epoch) == (100, 9)
    assert [problem.kind for problem in verify(ten)] == ["foreign"]
    (ten / "schema.json").write_text("")
    assert sorted(problem.kind for problem in verify(ten)) == ["foreign", "schema"]


def test_what_a_writer_has_not_finished_is_no_problem_while_it_works(ten: Path) -> None:
    with Writer(ten, SCHEMA):
        (ten / ".tmp-x").write_text("half")
        assert verify(ten) == []
    assert [problem.kind for problem in verify(ten)] == ["leftover"]


def test_a_segment_that_was_taken_away_by_hand_does_not_cost_those_behind_it(ten: Path) -> None:
    lost = ten / View(ten).segments[4].name
    lost.rename(ten / "away")
    with pytest.raises(EngineError, match="rows from 40 to 50 are missing"):
        Writer(ten, SCHEMA)
    (ten / "away").rename(lost)
    Writer(ten, SCHEMA).close()
    assert shown(ten) == list(range(100))


def test_a_channel_that_somebody_fills_can_be_prepared_by_its_reader(tmp_path: Path) -> None:
    with Writer(tmp_path, SCHEMA) as writer:
        writer.append(ids(0, 1))
        prepare(tmp_path, SCHEMA)
        assert writer.end == 1
        with pytest.raises(EngineError, match="column"):
            prepare(tmp_path, pa.schema([("other", pa.int64())]))
