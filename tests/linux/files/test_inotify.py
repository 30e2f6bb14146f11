"""The kernel's word on folders: every change in order, and a view that believes it sees what one that looks sees."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle.linux.files import inotify
from treadle.linux.files.inotify import CREATED, DELETED, MOVED_IN, MOVED_OUT
from treadle.pipelines.channels import log
from treadle.pipelines.channels.view import View

SCHEMA = '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'


def watched(folder: Path) -> inotify.Watch:
    found = inotify.watch(str(folder))
    assert found is not None
    return found


def test_changes_come_in_order_with_their_names_and_once(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    assert watch.take() == []
    (tmp_path / "a").touch()
    os.rename(tmp_path / "a", tmp_path / "b")
    os.unlink(tmp_path / "b")
    assert watch.take() == [(CREATED, "a"), (MOVED_OUT, "a"), (MOVED_IN, "b"), (DELETED, "b")]
    assert watch.take() == []
    watch.close()
    (tmp_path / "c").touch()
    assert watch.take() == []


def test_each_watch_hears_of_its_own_folder_and_two_of_one_folder_both_hear(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one, two, other = watched(tmp_path / "x"), watched(tmp_path / "x"), watched(tmp_path / "y")
    (tmp_path / "x" / "file").touch()
    assert (one.take(), two.take(), other.take()) == ([(CREATED, "file")], [(CREATED, "file")], [])
    one.close()
    (tmp_path / "x" / "more").touch()
    assert two.take() == [(CREATED, "more")]  # the other one's end is not its own
    two.close()
    other.close()


def test_a_folder_that_is_gone_ends_the_watch_and_one_that_never_was_has_none(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    watch = watched(tmp_path / "x")
    (tmp_path / "x").rmdir()
    assert watch.take() is None
    assert watch.ended
    assert inotify.watch(str(tmp_path / "nowhere")) is None


def test_when_too_much_happens_it_says_so_instead_of_a_part(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 50_000:
        watch.note(inotify._OVERFLOW, "")
    else:
        for number in range(most + 10):
            (tmp_path / str(number % 7)).touch()
            os.unlink(tmp_path / str(number % 7))
    assert watch.take() is None
    assert watch.take() == []
    watch.close()


def test_names_of_any_bytes_and_lengths_are_read(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    names = ["x" * 255, "ž", "a b", os.fsdecode(b"\xff")]
    for name in names:
        (tmp_path / name).touch()
    assert watch.take() == [(CREATED, name) for name in names]
    watch.close()


def test_without_inotify_nobody_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = inotify._Instance()
    os.close(instance._file)
    instance._file = -1
    assert instance.add(str(tmp_path)) is None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.sampled_from(["append", "collect", "read", "refresh", "rescan", "crash"]), max_size=25))
def test_a_view_that_is_told_sees_what_one_that_looks_sees(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("channel")
    writer = log.Writer(folder, SCHEMA)
    log.register_consumer(folder, "me")
    view = View(folder, watch=True)
    try:
        for step in steps:
            if step == "append":
                writer.append([{"a": 1}, {"a": 2}])
            elif step == "collect":
                log.collect(folder)
            elif step == "read":
                log.set_position(folder, "me", max(0, writer.end - 1))
            elif step == "refresh":
                view.refresh()
            elif step == "rescan":
                view.rescan()
            else:  # a later part is there before the one that closes the gap
                behind = folder / f"{writer.end + 2:020d}-1-0-0-99.arrow"
                behind.touch()
                view.refresh()
                behind.unlink()
        view.refresh()
        fresh = View(folder)
        assert (view.segments, view.hidden) == (fresh.segments, fresh.hidden)
        assert view.backlog(view.start + 1) == fresh.backlog(fresh.start + 1)
    finally:
        view.close()
        writer.close()


def test_several_threads_may_ask_one_view_while_it_grows(tmp_path: Path) -> None:
    with log.Writer(tmp_path, SCHEMA) as writer:
        view, done, wrong = View(tmp_path, watch=True), threading.Event(), list[object]()

        def look() -> None:
            last = 0
            try:
                while not done.is_set():
                    view.refresh()
                    rows = view.backlog(0).rows
                    if rows < last or rows % 3:
                        wrong.append((last, rows))
                    last = rows
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(150):
            writer.append([{"a": 1}] * 3)
        done.set()
        for thread in threads:
            thread.join()
        view.refresh()
        assert wrong == []
        assert view.backlog(0).rows == view.end == writer.end == 450
        view.close()
