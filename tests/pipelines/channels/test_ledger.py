from __future__ import annotations

import math
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.errors import EngineError
from treadle.pipelines.channels.ledger import (
    MOST_PARTS,
    ArrivalStats,
    Ledger,
    Part,
    Parts,
    joined,
    least,
    line,
    thinned,
)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: what is synced a thousand times here costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def part(start: int, end: int, *, void: bool = False, batch: int = -1, at: int = 0) -> Part:
    return Part({0: (start, end)}, at, at, 10 * (end - start), batch, void)


def row_of(*lengths: tuple[int, bool]) -> Parts:
    """Parts that follow each other, of these lengths, void or not."""
    made, at = Parts(), 0
    for number, (length, void) in enumerate(lengths):
        made.add(part(at, at + length, void=void, at=1_000_000 * (number + 1)))
        at += length
    return made


def void_offsets(parts: Parts) -> set[int]:
    return {offset for each in parts.voids({}) for offset in range(*each.spans[0])}


lengths = st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=30)


@given(lengths, st.integers(0, 600), st.integers(0, 600))
def test_ages_between_two_positions_count_exactly_the_rows_that_are_not_void(
    pieces: list[tuple[int, bool]], one: int, other: int
) -> None:
    parts = row_of(*pieces)
    kept = [not void for length, void in pieces for _ in range(length)]
    start, end = sorted((one, other))
    assert sum(ages.rows for ages in parts.ages({0: start}, {0: end})) == sum(kept[start:end])


@given(lengths, st.integers(0, 600))
def test_a_backlog_is_what_the_ages_say(pieces: list[tuple[int, bool]], position: int) -> None:
    parts = row_of(*pieces)
    backlog, ages = parts.backlog({0: position}), parts.ages({0: position})
    assert backlog.rows == sum(each.rows for each in ages)
    assert backlog.bytes == 10 * backlog.rows
    if ages:
        assert backlog.oldest == min(each.oldest for each in ages) / 1e6
    else:
        assert math.isnan(backlog.oldest)


@given(lengths, st.integers(0, 600))
def test_to_tell_neighbours_as_one_changes_no_count_and_no_void_row(
    pieces: list[tuple[int, bool]], position: int
) -> None:
    parts = row_of(*pieces)
    fewer = Parts(thinned(parts.found))
    assert fewer.backlog({0: position}).rows == parts.backlog({0: position}).rows
    assert void_offsets(fewer) == void_offsets(parts)


def test_many_parts_are_told_as_fewer() -> None:
    parts = Parts()
    for number in range(3 * MOST_PARTS):
        parts.add(part(number, number + 1))
    assert len(parts.found) <= MOST_PARTS + 1
    assert parts.backlog({0: 10}).rows == 3 * MOST_PARTS - 10


def test_two_parts_as_one_have_the_mean_of_their_rows() -> None:
    assert joined(part(0, 10, at=100), part(10, 40, at=500)) == Part({0: (0, 40)}, 100, 400, 400)


def test_parts_that_all_have_passed_are_forgotten_but_for_the_last() -> None:
    parts = row_of((5, False), (5, True), (5, False))
    parts.forget({0: 15})
    assert [each.spans[0] for each in parts.found] == [(10, 15)]
    assert parts.ends == {0: 15}


def test_the_slowest_reader_is_told_partition_by_partition() -> None:
    assert least([{0: 5, 1: 9}, {0: 7, 1: 2}]) == {0: 5, 1: 2}
    assert least([{0: 5}, {1: 2}]) == {0: 0, 1: 0}


def test_a_ledger_is_the_same_when_it_is_opened_again(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger")
    first.record(part(0, 10, batch=3, at=7))
    first.record(part(10, 12, void=True))
    again = Ledger(tmp_path / "ledger")
    assert again.parts.found == [part(0, 10, batch=3, at=7), Part({0: (10, 12)}, void=True)]
    assert again.batch == 3
    assert again.parts.ages({0: 5}) == [ArrivalStats(5, 7, 7)]


def test_a_line_that_a_crash_has_torn_never_was(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger")
    first.record(part(0, 10, batch=0))
    whole = first.file.read_bytes()
    first.record(part(10, 20, batch=1))
    for length in range(len(whole), first.file.stat().st_size):
        (tmp_path / "torn").write_bytes(first.file.read_bytes()[:length])
        again = Ledger(tmp_path / "torn")
        assert again.batch == 0
        again.record(part(10, 30, batch=1))
        assert Ledger(tmp_path / "torn").parts.ends == {0: 30}


def test_a_ledger_stays_small_and_knows_its_last_batch(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for batch in range(1000):
        ledger.record(part(batch, batch + 1, batch=batch))
        ledger.prune({0: batch})
    ledger.record(part(1000, 1001, void=True))
    for _ in range(200):
        ledger.prune({0: 1001})
    assert len(ledger.file.read_text().splitlines()) < 150
    again = Ledger(tmp_path / "ledger")
    assert (again.batch, again.parts.ends) == (999, {0: 1001})


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A write beyond this size of a file fails, after as many bytes as fit: as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_any_byte_of_a_line_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.record(part(0, 10, batch=0))
    before = ledger.file.stat().st_size
    size = 2 * before + 10
    for limit in range(before, size):
        with files_up_to(limit):
            try:
                ledger.record(part(10, 20, batch=1))
            except EngineError as error:
                assert "make room" in error.remedy  # noqa: PT017 - there may be room enough
            else:
                break
        assert ledger.batch == 0
        assert Ledger(ledger.file).parts.ends == {0: 10}
    ledger.record(part(20, 30, batch=2))
    again = Ledger(ledger.file)
    assert (again.batch, again.parts.ends, len(again.parts.found)) == (2, {0: 30}, 3)


def test_a_disk_that_is_full_while_the_ledger_is_made_smaller_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    for batch in range(300):
        ledger.record(part(batch, batch + 1, batch=batch))
    with files_up_to(10):
        ledger.prune({0: 300})
    again = Ledger(ledger.file)
    assert (again.batch, again.parts.ends) == (299, {0: 300})
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]
    ledger.prune({0: 300})
    ledger.record(part(300, 301, batch=300))
    again = Ledger(ledger.file)
    assert (again.batch, again.parts.ends, len(again.parts.found)) == (300, {0: 301}, 2)


def lines_of(count: int) -> list[bytes]:
    """The lines of so many batches."""
    return [line(part(10 * batch, 10 * batch + 10, batch=batch)) for batch in range(count)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(1, 5), st.data())
def test_a_line_that_was_torn_anywhere_is_skipped_whatever_follows(
    tmp_path: Path, count: int, data: st.DataObject
) -> None:
    whole = lines_of(count)
    at = data.draw(st.integers(0, count - 1))
    cut = data.draw(st.integers(0, len(whole[at]) - 1))
    torn = whole[at][:cut] if data.draw(st.booleans()) else whole[at][cut + 1 :]
    file = tmp_path / "ledger"
    file.write_bytes(b"".join([*whole[:at], torn, *whole[at:]]))  # it was written again after the failure
    ledger = Ledger(file)
    assert ledger.batch == count - 1
    assert [each.batch for each in ledger.parts.found] == list(range(count))
    ledger.record(part(10 * count, 10 * count + 10, batch=count))
    assert Ledger(file).batch == count


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, 4), st.data())
def test_a_ledger_that_was_cut_off_anywhere_has_the_lines_before_and_goes_on(
    tmp_path: Path, count: int, data: st.DataObject
) -> None:
    whole = lines_of(count + 1)
    text = b"".join(whole)
    cut = data.draw(st.integers(len(text) - len(whole[-1]), len(text) - 1))
    file = tmp_path / "ledger"
    file.write_bytes(text[:cut])
    ledger = Ledger(file)
    assert ledger.batch == count - 1
    ledger.record(part(10 * count, 10 * count + 5, batch=count))
    assert file.read_bytes().count(b"\n") == count + 1
    assert Ledger(file).parts.ends == {0: 10 * count + 5}


def test_a_line_in_the_middle_that_is_lost_is_not_skipped(tmp_path: Path) -> None:
    whole = lines_of(3)
    (tmp_path / "ledger").write_bytes(whole[0] + whole[1][:20] + b"\n" + whole[2])
    with pytest.raises(EngineError, match="damaged: line 3 does not follow"):
        Ledger(tmp_path / "ledger")


def test_a_ledger_that_somebody_else_made_shorter_is_not_written_to(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    ledger.record(part(0, 10, batch=0))
    ledger.file.write_bytes(b"")
    with pytest.raises(EngineError, match="shorter"):
        ledger.record(part(10, 20, batch=1))


def test_what_is_recorded_is_on_the_disk_file_and_folders_before_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bytes]] = []
    really = os.fsync

    def fsync(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        synced.append((path, b"" if os.path.isdir(path) else Path(path).read_bytes()))
        really(file)

    monkeypatch.setattr(os, "fsync", fsync)
    ledger = Ledger(tmp_path / "made" / "too" / "ledger")
    ledger.record(part(0, 10, batch=0))
    assert (str(ledger.file), ledger.file.read_bytes()) in synced
    folders = [path for path, _ in synced]
    assert {str(tmp_path / "made" / "too"), str(tmp_path / "made"), str(tmp_path)} <= set(folders)
    synced.clear()
    ledger.record(part(10, 20, batch=1))
    assert synced == [(str(ledger.file), ledger.file.read_bytes())]
    synced.clear()
    for batch in range(2, 300):
        ledger.record(part(10 * batch, 10 * batch + 10, batch=batch))
    synced.clear()
    ledger.prune({0: 3000})
    assert [Path(path).name for path, _ in synced] == ["ledger.new", "too"]


def test_a_damaged_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("{}\n")
    with pytest.raises(EngineError, match="damaged"):
        Ledger(tmp_path / "ledger")
