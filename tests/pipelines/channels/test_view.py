"""What is visible is never missed, never goes back while others delete, and its backlog is exact in rows."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.pipelines.channels.log import Writer, collect, register_consumer, set_position
from treadle.pipelines.channels.segment import Segment
from treadle.pipelines.channels.view import View

ViewOf = Callable[[Path], View]
SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture(params=[False, True], ids=["looking", "watching"])
def view_of(request: pytest.FixtureRequest) -> ViewOf:
    return lambda folder: View(folder, watch=request.param)


def ids(first: int, rows: int) -> pa.Table:
    return pa.table({"id": range(first, first + rows)})


def touch(folder: Path, *segments: Segment) -> None:
    for segment in segments:
        (folder / segment.name).write_bytes(b"x" * segment.bytes)


def test_a_folder_that_is_not_there_yet_is_an_empty_channel(tmp_path: Path, view_of: ViewOf) -> None:
    view = view_of(tmp_path / "later")
    assert (view.start, view.end, view.epoch, view.segments) == (0, 0, -1, [])
    assert not view.refresh()
    with Writer(tmp_path / "later", SCHEMA) as writer:
        writer.append(ids(0, 3))
    assert view.refresh()
    assert view.end == 3


def test_a_folder_that_vanishes_leaves_nothing_visible(tmp_path: Path, view_of: ViewOf) -> None:
    channel = tmp_path / "c"
    channel.mkdir()
    touch(channel, Segment(0, 5, 1.0, 1.0, 0))
    view = view_of(channel)
    channel.rename(tmp_path / "d")
    assert view.refresh()
    assert view.end == 0
    (tmp_path / "d").rename(channel)
    assert view.refresh()
    assert view.end == 5


def test_no_change_is_missed_however_quick_they_follow_each_other(tmp_path: Path, view_of: ViewOf) -> None:
    view = view_of(tmp_path)
    with Writer(tmp_path, SCHEMA) as writer:
        for first in range(0, 200, 2):
            writer.append(ids(first, 2))
            assert view.refresh()
            assert view.end == first + 2
            assert not view.refresh()


def test_a_second_change_under_the_same_mtime_is_seen(tmp_path: Path, view_of: ViewOf) -> None:
    fresh = time.time() + 3600
    touch(tmp_path, Segment(0, 5, 1.0, 1.0, 0))
    os.utime(tmp_path, (fresh, fresh))
    view = view_of(tmp_path)
    touch(tmp_path, Segment(5, 5, 1.0, 1.0, 1))
    os.utime(tmp_path, (fresh, fresh))
    assert view.refresh()
    assert view.end == 10


def test_a_quiet_channel_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view_of: ViewOf) -> None:
    touch(tmp_path, Segment(0, 5, 1.0, 1.0, 0))
    os.utime(tmp_path, (1e9, 1e9))
    view = view_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", lambda path: pytest.fail("listed"))
        assert not view.refresh()
    touch(tmp_path, Segment(5, 5, 1.0, 1.0, 1))
    assert view.refresh()
    assert view.end == 10


def test_foreign_files_and_unfinished_ones_are_not_seen(tmp_path: Path, view_of: ViewOf) -> None:
    touch(tmp_path, Segment(0, 5, 1.0, 1.0, 0))
    for name in ("notes.txt", "x.arrow", ".tmp-5", "schema.json", "writer.lock"):
        (tmp_path / name).write_text("x")
    (tmp_path / "positions").mkdir()
    view = view_of(tmp_path)
    assert [segment.end for segment in view.segments] == [5]
    assert not view.hidden


def test_a_gap_hides_what_follows_until_it_is_closed(tmp_path: Path, view_of: ViewOf) -> None:
    one, two, three = (Segment(first, 5, 1.0, 1.0, epoch) for first, epoch in ((0, 0), (5, 1), (10, 1)))
    touch(tmp_path, one, three)
    view = view_of(tmp_path)
    assert (view.end, view.hidden) == (5, [three])
    touch(tmp_path, two)
    assert view.refresh()
    assert (view.end, view.hidden) == (15, [])


def test_deletion_while_the_folder_is_listed_does_not_look_like_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [Segment(first, 5, 1.0, 1.0, first) for first in (0, 5, 10, 15)]
    touch(tmp_path, *segments)
    honest = os.listdir

    def torn(path: str) -> list[str]:
        """Sees the first segment, then somebody deletes two, then it goes on."""
        names = [name for name in honest(path) if name != segments[1].name]
        for segment in segments[:2]:
            (tmp_path / segment.name).unlink(missing_ok=True)
        return names if segments[0].name in names else honest(path)

    view = View(tmp_path)
    monkeypatch.setattr(os, "listdir", torn)
    assert view.rescan()
    assert (view.start, view.end, view.hidden) == (10, 20, [])


def test_what_was_collected_is_no_longer_part_of_it(tmp_path: Path, view_of: ViewOf) -> None:
    with Writer(tmp_path, SCHEMA) as writer:
        for first in range(0, 50, 10):
            writer.append(ids(first, 10))
    view = view_of(tmp_path)
    register_consumer(tmp_path, "c")
    set_position(tmp_path, "c", 25)
    assert collect(tmp_path) == 2
    assert view.refresh()
    assert (view.start, view.end) == (20, 50)
    assert view.backlog(0).rows == 30
    assert view.backlog(25).rows == 25


def test_nothing_left_to_read_has_no_age(tmp_path: Path, view_of: ViewOf) -> None:
    touch(tmp_path, Segment(0, 5, 1.0, 1.0, 0, 100))
    for position in (5, 99):
        rows, size, oldest, mean = view_of(tmp_path).backlog(position)
        assert (rows, size) == (0, 0)
        assert math.isnan(oldest)
        assert math.isnan(mean)


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 100)), max_size=8
    ),
    st.integers(0, 10),
    st.integers(0, 60),
)
def test_a_backlog_is_what_counting_row_by_row_gives(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int, int, int]], start: int, position: int
) -> None:
    folder = tmp_path_factory.mktemp("c")
    epochs = 1_700_000_000
    segments: list[Segment] = []
    for epoch, (rows, oldest, mean, size) in enumerate(parts):
        first = segments[-1].end if segments else start
        segments.append(Segment(first, rows, epochs + oldest / 1e6, epochs + mean / 1e6, epoch, size if rows else 0))
    segments = [s for s in segments if s.rows]
    touch(folder, *segments)
    left = [segment for segment in segments for row in range(segment.first, segment.end) if row >= position]
    found = View(folder).backlog(position)
    assert found.rows == len(left)
    if left:
        assert found.oldest == min(segment.oldest for segment in left)
        assert found.mean - epochs == pytest.approx(sum(s.mean - epochs for s in left) / len(left), abs=2e-6)
        whole = sum(segment.bytes / segment.rows for segment in left)
        assert whole - 1 <= found.bytes <= whole + 1e-6
