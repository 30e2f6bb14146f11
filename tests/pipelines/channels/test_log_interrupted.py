"""Whatever is interrupted, the rows of a channel are those that were committed, in order, none lost and none twice."""

from __future__ import annotations

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
from treadle.pipelines.channels.log import View, Writer, collect, positions, read, register_consumer, set_position
from treadle.pipelines.channels.segment import Segment

SCHEMA = pa.schema([("id", pa.int64())])


def ids(first: int, rows: int) -> pa.Table:
    return pa.table({"id": range(first, first + rows)}, schema=SCHEMA)


def shown(folder: Path) -> list[int]:
    numbers: list[int] = read(folder).column("id").to_pylist()
    return numbers


class Killed(BaseException):
    """Stands for the end of the process: nothing at all happens after it."""


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """The process ends at that half step of its changes to the disk: before one, or after it; a file is torn then."""
    left = steps

    def fuse(real: Callable[..., object], torn: Callable[[Path], None] | None = None) -> Callable[..., object]:
        def step(path: Path, *rest: object) -> object:
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 2
            made = real(path, *rest)
            if left < 0:
                if torn is not None:
                    torn(path)
                raise Killed
            return made

        return step

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(os, "rename", fuse(os.rename))
        patch.setattr(os, "unlink", fuse(os.unlink))
        store = fuse(segment.store, lambda path: os.truncate(path, 20))
        patch.setattr(segment, "store", store)
        patch.setattr("treadle.pipelines.channels.log.store", store)
        yield


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
TestInterrupted.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)


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
