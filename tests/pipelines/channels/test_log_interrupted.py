"""Whatever is interrupted, the rows of a channel are those that were committed, in order, none lost and none twice."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from treadle.errors import EngineError
from treadle.pipelines.channels import segment
from treadle.pipelines.channels.log import (
    View,
    Writer,
    collect,
    positions,
    read,
    register_consumer,
    set_position,
    verify,
)
from treadle.pipelines.channels.segment import Segment

SCHEMA = pa.schema([("id", pa.int64())])


def ids(first: int, rows: int) -> pa.Table:
    return pa.table({"id": range(first, first + rows)}, schema=SCHEMA)


def shown(folder: Path) -> list[int]:
    numbers: list[int] = read(folder).column("id").to_pylist()
    return numbers


class Killed(BaseException):
    """Stands for the end of the process: nothing at all happens after it."""


class Fuse:
    """Half steps that are left to a process: when it ends, a step is not begun or just done, a new file torn."""

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.blown = False

    def on(self, real: Callable[..., object], torn: Callable[[Path], None] | None = None) -> Callable[..., object]:
        def step(path: Path, *rest: object) -> object:
            self.left -= 1
            self.check()
            made = real(path, *rest)
            self.left -= 1
            if self.left < 0 and torn is not None:
                torn(path)
            self.check()
            return made

        return step

    def check(self) -> None:
        if self.left < 0:
            self.blown = True
            raise Killed


@contextmanager
def killed_after(steps: int) -> Iterator[Fuse]:
    """The process ends at that half step of its changes to the disk."""
    fuse = Fuse(steps)
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(os, "rename", fuse.on(os.rename))
        patch.setattr(os, "unlink", fuse.on(os.unlink))
        store = fuse.on(segment.store, lambda path: os.truncate(path, 20))
        patch.setattr(segment, "store", store)
        patch.setattr("treadle.pipelines.channels.log.store", store)
        yield fuse


def at_every_step(folder: Path, before: Callable[[Path], object], act: Callable[[Path], object]) -> Iterator[Path]:
    """A channel for each step at which `act` can be stopped, and one where it is not."""
    for steps in itertools.count():
        channel = folder / str(steps)
        before(channel)
        with killed_after(steps) as fuse:
            act(channel)
        yield channel
        if not fuse.blown:
            assert steps > 0
            return


def fill(channel: Path, segments: int = 0) -> None:
    """Segments of two rows each."""
    with Writer(channel, SCHEMA) as writer:
        for first in range(0, 2 * segments, 2):
            writer.append(ids(first, 2))


def append_once(channel: Path) -> None:
    """Rows 6 to 10 as epoch 3, by a process that may have tried before."""
    writer = Writer(channel, SCHEMA)
    try:
        writer.append(ids(6, 4), epoch=3)
    finally:
        writer.close()


def test_an_append_stopped_at_any_step_is_all_there_or_not_at_all_and_can_be_repeated(tmp_path: Path) -> None:
    for channel in at_every_step(tmp_path, lambda channel: fill(channel, 3), append_once):
        assert shown(channel) in (list(range(6)), list(range(10)))
        append_once(channel)
        assert shown(channel) == list(range(10))
        assert not verify(channel)


@pytest.mark.parametrize("there", [0, 2])
def test_an_epoch_of_several_parts_stopped_at_any_step_is_all_there_or_not_at_all(tmp_path: Path, there: int) -> None:
    for channel in at_every_step(
        tmp_path, lambda channel: fill(channel, there), lambda channel: publish(channel, 5, [2, 3, 1])
    ):
        assert View(channel).end in (2 * there, 2 * there + 6)
        fill(channel)
        publish(channel, 5, [2, 3, 1])
        assert shown(channel) == list(range(2 * there + 6))
        fill(channel)
        assert not verify(channel)


def test_cleaning_up_stopped_at_any_step_is_finished_by_the_next_writer(tmp_path: Path) -> None:
    def interrupted(channel: Path) -> None:
        fill(channel, 3)
        with killed_after(9):
            publish(channel, 3, [1, 1, 1, 1])
        with killed_after(13):
            publish(channel, 3, [1, 1, 1, 1])
        assert View(channel).hidden

    for channel in at_every_step(tmp_path, interrupted, append_once):
        append_once(channel)
        assert shown(channel) == list(range(10))
        assert not verify(channel)


def test_deletion_stopped_at_any_step_leaves_one_run_and_can_be_repeated(tmp_path: Path) -> None:
    def read_by_one(channel: Path) -> None:
        fill(channel, 6)
        set_position(channel, "c", 9)

    for channel in at_every_step(tmp_path, read_by_one, collect):
        start = View(channel).start
        assert start <= 8
        assert shown(channel) == list(range(start, 12))
        collect(channel)
        assert shown(channel) == list(range(8, 12))
        assert not verify(channel)


def publish(folder: Path, epoch: int, parts: list[int]) -> None:
    """What a Spark task set does: a file for each part, then renamed from the last to the first; an empty channel has a
    segment of no rows first, so that the last part alone is not taken for the start."""
    view = View(folder)
    if epoch <= view.epoch:
        return
    if not view.segments:
        os.rename(touched(folder / ".tmp-start"), folder / "00000000000000000000-0-0-0--1.arrow")
    ends = [view.end + sum(parts[: i + 1]) for i in range(len(parts))]
    for rows, end in zip(parts, ends, strict=True):
        segment.store(folder / f".tmp-{end}", ids(end - rows, rows))
    for rows, end in reversed(list(zip(parts, ends, strict=True))):
        os.rename(folder / f".tmp-{end}", folder / Segment(end - rows, rows, 1.0, 1.0, epoch).name)


def touched(path: Path) -> Path:
    path.touch()
    return path


def test_a_writer_interrupted_just_after_it_committed_knows_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    with Writer(tmp_path, SCHEMA) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append(ids(0, 4), epoch=0)
        assert writer.append(ids(0, 4), epoch=0) is None
        writer.append(ids(4, 2))
    assert shown(tmp_path) == list(range(6))


class Interrupted(RuleBasedStateMachine):
    """A writer, consumers and deletion, each of which may end at any step. A row's value is its number."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.written = 0
        self.read = {"a": 0, "b": 0}
        for name in self.read:
            register_consumer(self.folder, name)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(rows=st.integers(1, 5), steps=st.integers(0, 8), twice=st.booleans())
    def append(self, rows: int, steps: int, twice: bool) -> None:
        before = self.written
        with killed_after(steps):
            writer = Writer(self.folder, SCHEMA)
            try:
                epoch = writer.epoch + 1
                writer.append(ids(before, rows), epoch=epoch)
                if twice:
                    writer.append(ids(before, rows), epoch=epoch)
            finally:
                writer.close()
        self.settle(before, rows)

    @rule(parts=st.lists(st.integers(1, 4), min_size=1, max_size=4), steps=st.integers(0, 20))
    def append_in_parts(self, parts: list[int], steps: int) -> None:
        Writer(self.folder, SCHEMA).close()
        before, epoch = self.written, View(self.folder).epoch + 1
        with killed_after(steps):
            publish(self.folder, epoch, parts)
        self.settle(before, sum(parts))
        Writer(self.folder, SCHEMA).close()
        publish(self.folder, epoch, parts)
        self.written = before + sum(parts)

    @rule(name=st.sampled_from(["a", "b"]), part=st.floats(0, 1), steps=st.integers(0, 3))
    def consume(self, name: str, part: float, steps: int) -> None:
        to = self.read[name] + int(part * (self.written - self.read[name]))
        with killed_after(steps):
            set_position(self.folder, name, to)
        assert positions(self.folder)[name] in (self.read[name], to)
        self.read[name] = positions(self.folder)[name]

    @rule(steps=st.integers(0, 9))
    def delete(self, steps: int) -> None:
        with killed_after(steps):
            collect(self.folder)

    @rule()
    def fail_but_live(self) -> None:
        """A rename that fails is no end: the same writer goes on."""
        with Writer(self.folder, SCHEMA) as writer:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "rename", lambda source, target: os.stat("/nowhere/at/all"))
                with pytest.raises(EngineError, match="could not be written"):
                    writer.append(ids(self.written, 3))
            writer.append(ids(self.written, 2))
        self.written += 2

    def settle(self, before: int, rows: int) -> None:
        """All of an epoch or nothing; the writer is told so when it opens again."""
        self.written = View(self.folder).end
        assert self.written in (before, before + rows)

    @invariant()
    def all_is_there_once_and_in_order(self) -> None:
        if not hasattr(self, "folder"):
            return
        view = View(self.folder)
        assert view.end == self.written
        assert view.start <= min(self.read.values())
        if self.written:
            assert shown(self.folder) == list(range(view.start, self.written))


TestInterrupted = Interrupted.TestCase
TestInterrupted.settings = settings(max_examples=40, stateful_step_count=15)


FEED = """
import sys
from treadle.pipelines.channels.log import Writer
import pyarrow as pa
with Writer(sys.argv[1], pa.schema([("id", pa.int64())])) as writer:
    while True:
        epoch = writer.epoch + 1
        writer.append(pa.table({"id": range(epoch * 7, epoch * 7 + 7)}), epoch=epoch)
"""


def test_a_feed_that_is_killed_again_and_again_has_every_number_once(tmp_path: Path) -> None:
    register_consumer(tmp_path, "c")
    view = View(tmp_path)
    chance = random.Random(4)
    seen: list[int] = []
    for _ in range(5):
        until = view.end + chance.randint(1, 500)
        with subprocess.Popen([sys.executable, "-c", FEED, str(tmp_path)]) as feed:
            while view.end < until:
                view.refresh()
                assert feed.poll() is None
            feed.kill()
        view.refresh()
        seen += read(tmp_path, len(seen), view.end).column("id").to_pylist()
        set_position(tmp_path, "c", len(seen))
        collect(tmp_path)
    assert seen == list(range(len(seen)))
    assert len(seen) % 7 == 0
