"""What was found is on disk before anything is written, and from any moment of it there is a way back."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.decide.policies import QueueSize
from treadle.enforce import Change, Column, Enforcer, Knob, Per, Target, Value
from treadle.enforce.recovery import journal_book
from treadle.enforce.recovery.journal import ROOMY, Journal
from treadle.enforce.recovery.journal_book import Process, Recipe, host, read, start_time, world
from treadle.enforce.recovery.journal_folder import journal_folders
from treadle.enforce.recovery.leftovers import journals, leftovers, put_back
from treadle.errors import EngineError, RightsError, TargetGone
from treadle.loop import Binding, Loop
from treadle.model import Instance, Operator, Query, Role, ThreadRef, Topology
from treadle.values import Sample

A, B = "a", "b"
T = ThreadRef(7, 5, 99, Role.HELPER, "the 'Größte'\nthread")


class Lasting:
    """A stand-in for a setting that outlives its process, in memory. It tells before and after each write."""

    def __init__(self, values: dict[Target, Value], name: str = "nice", per: Per = "instance", **options: Any) -> None:
        self.name = name
        self.per: Per = per
        self.options: Mapping[str, Any] = options
        self.values = values
        self.refuses: set[Target] = set()

    def read(self, target: Target) -> Value:
        if target not in self.values:
            raise TargetGone(f"{target} has ended")
        return self.values[target]

    def write(self, target: Target, value: Value) -> None:
        self.read(target)
        self.moment()
        if target in self.refuses:
            raise RightsError("refused")
        self.values[target] = value
        self.moment()

    def moment(self) -> None:
        """For those who look."""


class OneThread:
    """A stand-in for an engine, in memory: one operator, run by one thread."""

    name = "one"
    offers = frozenset({"queue"})
    in_process = True

    def __init__(self) -> None:
        self.thread = ThreadRef(1, 1, 1)
        self._knobs = {"nice": Lasting({self.thread: 3.0}, per="thread")}
        query = Query("q", (Operator("o"),))
        self._topology = Topology((query,), (Instance("q", ("o",), threads=(self.thread,)),))

    def topology(self) -> Topology:
        return self._topology

    def sample(self, wanted: frozenset[str]) -> Sample:
        return Sample(time.monotonic(), {"queue": np.array([4.0])})

    def knobs(self) -> Mapping[str, Knob]:
        return self._knobs

    def nice(self) -> Value:
        return self._knobs["nice"].read(self.thread)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "state") as opened:
        yield opened


def column(*values: float) -> Column:
    return np.array(values, dtype=np.float64)


def turn(enforcer: Enforcer, targets: tuple[Target, ...], *values: float) -> None:
    enforcer.apply(enforcer.diff(targets, column(*values)))


def without_owner(path: Path, copy: Path) -> Path:
    """The journal as it is now, of an owner that is dead."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[0] = lines[0].replace(b"%d,%d" % (os.getpid(), start_time(os.getpid())), b"0,0")
    copy.write_bytes(b"".join(lines))
    copy.chmod(0o600)
    return copy


class TestWriting:
    def test_a_target_is_in_the_journal_before_it_is_written_to(self, journal: Journal) -> None:
        seen: list[tuple[Value, tuple[Value | None, ...]]] = []

        class Looks(Lasting):
            def moment(self) -> None:
                (kept,) = read(journal.path).kept.values()
                seen.append((kept.found, kept.ours))

        enforcer = Enforcer(Looks({T: 3.0}), journal=journal)
        turn(enforcer, (T,), 5.0)
        turn(enforcer, (T,), 6.0)
        assert seen == [(3.0, (5.0,)), (3.0, (5.0,)), (3.0, (5.0, 6.0)), (3.0, (5.0, 6.0))]
        assert [kept.target for kept in read(journal.path).kept.values()] == [T]
        enforcer.restore()
        assert read(journal.path).kept == {}

    def test_many_targets_take_one_write(self, journal: Journal) -> None:
        targets = tuple(ThreadRef(tid, 1, tid) for tid in range(200))
        enforcer = Enforcer(Lasting(dict.fromkeys(targets, 0.0)), journal=journal)
        for values in (np.ones(200), np.full(200, 2.0)):
            changes = enforcer.diff(targets, values)
            before = _write_calls()
            enforcer.apply(changes)
            assert _write_calls() - before == 1
        before = _write_calls()
        enforcer.restore()
        assert _write_calls() - before == 1

    def test_a_target_that_cannot_be_noted_is_not_written_to(self, journal: Journal) -> None:
        knob = Lasting({A: 0.0})
        enforcer = Enforcer(knob, journal=journal)
        changes = enforcer.diff((A,), column(1))
        good = os.dup(journal._file)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, journal._file)
        (failure,) = enforcer.apply(changes).failures
        assert "can't be written" in str(failure)
        assert (knob.values, enforcer.held, len(journal)) == ({A: 0.0}, (), 0)
        os.dup2(good, journal._file)
        os.close(good)
        os.close(full)
        turn(enforcer, (A,), 1.0)
        assert knob.values == {A: 1.0}
        (kept,) = read(journal.path).kept.values()
        assert (kept.target, kept.found, kept.ours) == (A, 0.0, (1.0,))
        enforcer.restore()

    def test_a_dry_run_writes_nothing(self, journal: Journal) -> None:
        before = journal.path.read_bytes()
        enforcer = Enforcer(Lasting({A: 0.0}), dry_run=True, journal=journal)
        turn(enforcer, (A,), 1.0)
        enforcer.restore()
        assert journal.path.read_bytes() == before

    def test_a_knob_that_ends_with_its_process_is_not_in_it(self, journal: Journal) -> None:
        knob = Lasting({A: 0.0})
        del knob.options
        enforcer = Enforcer(knob, journal=journal)
        turn(enforcer, (A,), 1.0)
        assert len(journal) == 0

    def test_what_ended_or_was_left_to_others_is_forgotten(self, journal: Journal) -> None:
        knob = Lasting({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob, journal=journal)
        turn(enforcer, (A, B), 1.0, 1.0)
        changes = enforcer.diff((A, B), column(2.0, 1.0))
        del knob.values[A]
        knob.values[B] = 9.0
        enforcer.apply(changes)
        assert [kept.target for kept in read(journal.path).kept.values()] == [B]
        assert enforcer.restore().left == (Change(B, "nice", 1.0, 9.0),)
        assert len(journal) == len(read(journal.path).kept) == 0

    def test_it_stays_small_while_threads_come_and_go_for_days(self, journal: Journal) -> None:
        values: dict[Target, Value] = {T: 4.0}
        enforcer = Enforcer(Lasting(values), journal=journal)
        largest = 0
        for batch in range(300):
            threads = tuple(ThreadRef(tid, 1, batch) for tid in range(20))
            values.update(dict.fromkeys(threads, 0.0))
            targets = (T, *threads)
            enforcer.retarget(targets)
            turn(enforcer, targets, float(batch % 2), *([1.0] * 20))
            for thread in threads[:10]:
                del values[thread]
            largest = max(largest, journal.path.stat().st_size)
        assert largest < ROOMY + 10_000
        assert {kept.target: kept.found for kept in read(journal.path).kept.values()} == {
            **dict.fromkeys(threads, 0.0),
            T: 4.0,
        }
        assert [path.name for path in journal.path.parent.iterdir()] == [journal.path.name]
        enforcer.restore()

    def test_it_is_gone_when_all_is_put_back_and_stays_when_not(self, tmp_path: Path) -> None:
        knob = Lasting({A: 0.0})
        with Journal.open(tmp_path) as journal:
            enforcer = Enforcer(knob, journal=journal)
            turn(enforcer, (A,), 1.0)
            knob.refuses = {A}
            assert len(enforcer.restore().failures) == 1
        assert list(tmp_path.iterdir()) == [journal.path]
        with Journal.open(tmp_path) as second:
            assert second.path != journal.path
        assert list(tmp_path.iterdir()) == [journal.path]

    def test_a_loop_hands_it_to_its_enforcers_and_tends_it(self, journal: Journal) -> None:
        class Counts:
            checks = 0

            def check(self) -> None:
                self.checks += 1

            def stop(self) -> None:
                self.checks = -1

        engine = OneThread()
        journal.keeper = keeper = Counts()
        with Loop([engine], [Binding(QueueSize(), "nice", 1.0)], journal=journal) as loop:
            loop.round()
            assert [kept.target for kept in read(journal.path).kept.values()] == [engine.thread]
            loop.round(force=True)
            assert keeper.checks >= 2
        assert len(journal) == 0
        journal.close()
        assert keeper.checks == -1

    def test_a_loop_that_runs_dry_leaves_it_alone(self, journal: Journal) -> None:
        before = journal.path.read_bytes()
        with Loop([OneThread()], [Binding(QueueSize(), "nice", 1.0)], journal=journal, dry_run=True) as loop:
            assert len(loop.round()) == 1
        assert journal.path.read_bytes() == before


class TestStayingInPlace:
    @pytest.fixture(autouse=True)
    def _looks_each_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("treadle.enforce.recovery.journal.LOOK", 0.0)

    def test_a_file_that_was_removed_is_written_anew_with_all_that_was_found(self, journal: Journal) -> None:
        enforcer = Enforcer(Lasting({A: 0.0, B: 2.0}), journal=journal)
        turn(enforcer, (A, B), 1.0, 1.0)
        path, before = journal.path, read(journal.path)
        shutil.rmtree(path.parent)
        journal.tend()
        assert (journal.path, read(path)) == (path, before)
        turn(enforcer, (A, B), 3.0, 3.0)
        assert [kept.ours for kept in read(path).kept.values()] == [(1.0, 3.0), (1.0, 3.0)]
        enforcer.restore()

    def test_a_file_that_was_put_in_its_place_is_replaced(self, journal: Journal) -> None:
        before = read(journal.path)
        journal.path.unlink()
        journal.path.symlink_to("/etc/passwd")
        journal.tend()
        assert read(journal.path) == before
        assert not journal.path.is_symlink()

    def test_where_no_folder_can_be_had_rounds_end_with_one_clear_error(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, folder = OneThread(), journal.path.parent
        with Loop([engine], [Binding(QueueSize(), "nice", 1.0)], journal=journal) as loop:
            loop.round()
            assert engine.nice() != 3.0
            shutil.rmtree(folder)
            folder.touch()
            monkeypatch.setattr("treadle.enforce.recovery.journal.journal_folders", list)
            with pytest.raises(EngineError, match="can't be written again"):
                loop.round(force=True)
        assert engine.nice() == 3.0

    def test_what_can_not_be_put_back_is_written_down_also_if_the_file_was_removed_just_before(
        self, tmp_path: Path
    ) -> None:
        knob = Lasting({A: 0.0})
        with Journal.open(tmp_path / "state") as journal:
            enforcer = Enforcer(knob, journal=journal)
            turn(enforcer, (A,), 1.0)
            knob.refuses = {A}
            enforcer.restore()
            shutil.rmtree(tmp_path / "state")
        assert [kept.target for kept in read(journal.path).kept.values()] == [A]


class TestReading:
    def test_a_line_that_was_not_finished_is_left_out_wherever_it_is_cut(self, journal: Journal) -> None:
        enforcer = Enforcer(Lasting({A: 0.0, B: 2.0}), journal=journal)
        turn(enforcer, (A, B), 1.0, 1.0)
        text = journal.path.read_bytes()
        copy = journal.path.with_name("copy")
        sizes = set()
        for end in range(len(text) + 1):
            copy.write_bytes(text[:end])
            book = read(copy)
            assert {kept.target: kept.found for kept in book.kept.values()}.items() <= {A: 0.0, B: 2.0}.items()
            sizes.add(len(book.kept))
        assert sizes == {0, 1, 2}
        copy.unlink()
        enforcer.restore()

    def test_a_torn_line_in_the_middle_spoils_only_itself(self, journal: Journal) -> None:
        enforcer = Enforcer(Lasting({A: 0.0, B: 2.0}), journal=journal)
        turn(enforcer, (A,), 1.0)
        os.write(journal._file, b'["set",[1],[')
        journal._torn = True
        turn(enforcer, (A, B), 3.0, 3.0)
        assert {kept.target: kept.ours for kept in read(journal.path).kept.values()} == {A: (1.0, 3.0), B: (3.0,)}
        enforcer.restore()

    def test_a_recipe_makes_the_knob_again(self, journal: Journal) -> None:
        enforcer = Enforcer(Lasting({A: 0.0}, "shares", base="x", parent="/"), journal=journal)
        turn(enforcer, (A,), 1.0)
        assert list(read(journal.path).recipes.values()) == [Recipe("shares", {"base": "x", "parent": "/"})]
        enforcer.restore()


class TestWayBack:
    @settings(max_examples=40)
    @given(st.data())
    def test_from_every_moment_there_is_a_way_back(self, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
        """A kill may come before or after any write; a put_back from there leaves everything as it was found."""
        folder = tmp_path_factory.mktemp("journals")
        targets: tuple[Target, ...] = (A, B, T)
        number = st.sampled_from([0.0, 1.0, 2.0, 5.0])
        found = {target: data.draw(number) for target in targets}
        with Journal.open(folder) as journal:

            class Killed(Lasting):
                def moment(self) -> None:
                    copy = without_owner(journal.path, folder / "copy")
                    rest = Lasting(dict(self.values))
                    put_back(copy, make=lambda recipe: rest)
                    assert rest.values == {target: found[target] for target in self.values}
                    assert not copy.exists()

            knob = Killed(dict(found))
            enforcer = Enforcer(knob, journal=journal)
            for _ in range(data.draw(st.integers(1, 5))):
                some = data.draw(st.none() | st.lists(st.sampled_from(targets)))
                if some is None:
                    knob.refuses = data.draw(st.sets(st.sampled_from(targets), max_size=1))
                    turn(enforcer, targets, *data.draw(st.lists(number, min_size=3, max_size=3)))
                    knob.refuses = set()
                else:
                    enforcer.restore(some)
            enforcer.restore()
            assert knob.values == found
        assert list(folder.iterdir()) == []

    def test_what_somebody_else_has_changed_since_is_left_alone(self, journal: Journal, tmp_path: Path) -> None:
        knob = Lasting({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob, journal=journal)
        turn(enforcer, (A, B), 1.0, 1.0)
        turn(enforcer, (A, B), 2.0, 2.0)
        knob.values[B] = 9.0
        (outcomes,) = put_back(without_owner(journal.path, tmp_path / "copy"), make=lambda recipe: knob)
        assert knob.values == {A: 0.0, B: 9.0}
        assert outcomes.left == (Change(B, "nice", 2.0, 9.0),)
        enforcer.restore()

    def test_what_was_noted_but_never_written_to_is_left_as_it_is(self, journal: Journal, tmp_path: Path) -> None:
        knob = Lasting({A: 0.0, B: 0.0})
        enforcer = Enforcer(knob, journal=journal)
        turn(enforcer, (A,), 1.0)
        journal.note(knob, [(B, 0.0)], [])
        knob.values[B] = 5.0
        put_back(without_owner(journal.path, tmp_path / "copy"), make=lambda recipe: knob)
        assert knob.values == {A: 0.0, B: 5.0}
        enforcer.restore()

    def test_real_time_goes_first_and_membership_last_and_then_groups(self, journal: Journal, tmp_path: Path) -> None:
        order: list[str] = []

        class Tells(Lasting):
            def moment(self) -> None:
                order.append(self.name)

            def close(self) -> None:
                order.append(f"close {self.name}")

        knobs = {name: Tells({A: 0.0}, name) for name in ("group", "nice", "shares", "rt")}
        enforcers = [Enforcer(knob, journal=journal) for knob in knobs.values()]
        for enforcer in enforcers:
            turn(enforcer, (A,), 1.0)
        order.clear()
        put_back(without_owner(journal.path, tmp_path / "copy"), make=lambda recipe: knobs[recipe.name])
        assert list(dict.fromkeys(order)) == ["rt", "shares", "nice", "group"] + [
            f"close {name}" for name in ("rt", "shares", "nice", "group")
        ]
        for enforcer in enforcers:
            enforcer.restore()

    def test_what_fails_stays_written_down(self, journal: Journal, tmp_path: Path) -> None:
        knob = Lasting({A: 0.0})
        enforcer = Enforcer(knob, journal=journal)
        turn(enforcer, (A,), 1.0)
        copy = without_owner(journal.path, tmp_path / "copy")
        knob.refuses = {A}
        assert len(put_back(copy, make=lambda recipe: knob)[0].failures) == 1

        def broken(recipe: Recipe) -> Lasting:
            raise EngineError("no such thing any more")

        assert len(put_back(copy, make=broken)[0].failures) == 1
        knob.refuses = set()
        put_back(copy, make=lambda recipe: knob)
        assert (knob.values, copy.exists()) == ({A: 0.0}, False)
        assert put_back(copy) == ()
        enforcer.restore()

    def test_the_journal_of_a_living_process_is_not_touched(self, journal: Journal) -> None:
        assert leftovers([journal.path.parent]) == []
        with pytest.raises(EngineError, match="still runs"):
            put_back(journal.path)

    def test_journals_of_an_earlier_boot_of_this_machine_are_removed(self, tmp_path: Path) -> None:
        old, elsewhere = tmp_path / "1-0.journal", tmp_path / "2-0.journal"
        here = read(_written(tmp_path / "now")).world
        old.write_text(json.dumps(["owner", 1, 1, 1, "another boot pid:[1]"]) + "\n")
        elsewhere.write_text(json.dumps(["owner", 1, 1, 1, f"{here.split()[0]} pid:[1]"]) + "\n")
        other_host = tmp_path / "3-0.journal"
        other_host.write_text(json.dumps(["owner", 1, 1, 1, "another boot pid:[1]", f"not-{host()}"]) + "\n")
        assert leftovers([tmp_path]) == []
        assert (old.exists(), elsewhere.exists(), other_host.exists()) == (False, True, True)


DEAD = json.dumps(["owner", 1, 2**22 + 1, 1, world()]) + "\n"
"""The journal of a process that has ended."""
NOBODY = 65534


class TestFolder:
    def test_it_is_where_the_user_says(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TREADLE_STATE", str(tmp_path / "mine"))
        assert journal_folders()[0] == tmp_path / "mine"
        with Journal.open() as journal:
            assert journal.path.parent == tmp_path / "mine"
            assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
            assert journal.path.stat().st_mode & 0o777 == 0o600

    def test_else_it_is_one_that_outlives_a_logout_rather_than_the_runtime_folder(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("TREADLE_STATE", raising=False)
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        root = [Path("/run/treadle")] if os.geteuid() == 0 else []
        lasting = [*root, tmp_path / ".local/state/treadle"]
        assert journal_folders() == [*lasting, tmp_path / "treadle"]
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
        assert journal_folders() == lasting
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        assert journal_folders() == [*root, tmp_path / "treadle"]

    def test_one_that_can_not_be_written_to_is_passed_over_unless_the_user_named_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        folders = [tmp_path / "file/inside", tmp_path / "good"]
        monkeypatch.delenv("TREADLE_STATE", raising=False)
        monkeypatch.setattr("treadle.enforce.recovery.journal_folder.journal_folders", lambda: folders)
        with Journal.open() as journal:
            assert journal.path.parent == tmp_path / "good"
        monkeypatch.setenv("TREADLE_STATE", str(folders[0]))
        with pytest.raises(RightsError, match="can't be made"):
            Journal.open()

    def test_a_folder_where_others_can_write_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        with pytest.raises(RightsError, match="chmod 700"):
            Journal.open(tmp_path)

    def test_a_journal_where_others_can_write_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "1-0.journal"
        path.write_text("")
        path.chmod(0o666)
        with pytest.raises(RightsError, match="others can write"):
            put_back(path)

    def test_a_home_of_another_user_in_the_environment_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        _only_root()
        for name in ("TREADLE_STATE", "XDG_RUNTIME_DIR"):
            monkeypatch.delenv(name, raising=False)
        os.chown(tmp_path, NOBODY, NOBODY)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))  # as `sudo -E` leaves it
        assert journal_folders() == [Path("/run/treadle"), Path(pwd.getpwuid(0).pw_dir) / ".local/state/treadle"]

    def test_journals_in_a_folder_where_others_can_write_are_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "1-0.journal"
        path.write_text(DEAD)
        assert leftovers([tmp_path]) == list(journals([tmp_path])) == [path]
        tmp_path.chmod(0o777)
        assert leftovers([tmp_path]) == list(journals([tmp_path])) == []
        tmp_path.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(tmp_path, NOBODY, NOBODY)
            assert leftovers([tmp_path]) == list(journals([tmp_path])) == []

    def test_a_journal_that_is_no_ordinary_file_is_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "real").write_text(DEAD)
        (tmp_path / "1-0.journal").symlink_to(tmp_path / "real")
        os.mkfifo(tmp_path / "2-0.journal", 0o600)  # to open it for reading would wait for a writer
        assert leftovers([tmp_path]) == []
        for path in journals([tmp_path]):
            with pytest.raises(OSError, match=r"ordinary file|symbolic link"):
                read(path)

    def test_a_journal_without_end_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal_book, "LARGEST", 10)
        (tmp_path / "1-0.journal").write_text(DEAD)
        assert leftovers([tmp_path]) == []


def test_a_process_is_known_by_its_start_time() -> None:
    here = Process(os.getpid(), start_time(os.getpid()))
    assert here.alive
    assert not Process(here.pid, here.start_time + 1).alive
    assert not Process(2**22 + 1, 1).alive


def _only_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")


def _written(folder: Path) -> Path:
    journal = Journal.open(folder)
    copy = journal.path.with_name("kept")
    copy.write_bytes(journal.path.read_bytes())
    journal.close()
    return copy


def _write_calls() -> int:
    """How often this thread has asked the kernel to write."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscw"))
