"""Signals that end a program: everything is put back first, and the handlers of others are kept."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loop import worlds
from loop.worlds import FOUND, MemoryEngine, TestClock, World
from treadle.decide.policies import QueueSize
from treadle.enforce import Target, Value
from treadle.loop import Binding, Loop
from treadle.loop import signals as loop_signals
from treadle.values import Schedule, Snapshot

ENDING = [n for n in loop_signals.ENDING if signal.getsignal(n) != signal.SIG_IGN and n != signal.SIGABRT]
"""Not what Python ignores; SIGABRT is pytest's own here, through faulthandler."""


@contextlib.contextmanager
def handling(number: int, do: Callable[[], object] = lambda: None) -> Iterator[list[int]]:
    """A program's own handler, which goes on; the signals that it was called for."""
    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        handled.append(number)
        do()

    before = signal.signal(number, handle)
    try:
        yield handled
    finally:
        assert signal.getsignal(number) is handle
        signal.signal(number, before)


class TestSignals:
    @pytest.mark.parametrize("number", ENDING)
    def test_a_signal_puts_back_what_was_found(self, world: World, number: int) -> None:
        before = signal.getsignal(number)
        world.clock.meanwhile = lambda: signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as error, world.loop() as loop:
            loop.run()
        assert world.engine.nices() == [FOUND] * 3
        assert signal.getsignal(number) is before
        if isinstance(error.value, SystemExit):
            assert error.value.code == 128 + number

    @pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGUSR1, signal.SIGTERM])
    def test_a_signal_to_a_program_puts_back_what_was_found(self, number: signal.Signals) -> None:
        script = f"import runpy; runpy.run_path({worlds.__file__!r})['run_and_signal']({number:d})"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.stdout, done.returncode) == (f"{[FOUND] * 3}\n", 128 + number), done.stderr

    @pytest.mark.skipif(sys.platform != "linux", reason="others have other signals")
    def test_all_others_end_no_program_or_cannot_be_caught_or_are_its_own_faults(self) -> None:
        harmless = {"SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"}
        faults = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
        others = {signal.Signals(number).name for number in signal.valid_signals() - set(loop_signals.ENDING)}
        assert others == harmless | faults | {"SIGKILL", "SIGSTOP"}

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGALRM])
    def test_a_signal_that_the_program_handles_without_ending_is_left_to_it(
        self, world: World, number: signal.Signals
    ) -> None:
        with handling(number) as handled, world.loop() as loop:
            loop.round()
            decided = world.engine.nices()
            signal.raise_signal(number)
            assert (handled, world.engine.nices()) == ([number], decided)

    def test_a_handler_that_python_does_not_know_of_stays(self, world: World, tmp_path: Path) -> None:
        with (tmp_path / "stacks").open("w+") as stacks:
            faulthandler.register(signal.SIGUSR2, stacks, all_threads=False)
            try:
                with world.loop() as loop:
                    loop.round()
                    signal.raise_signal(signal.SIGUSR2)
                signal.raise_signal(signal.SIGUSR2)
            finally:
                faulthandler.unregister(signal.SIGUSR2)
            stacks.seek(0)
            assert stacks.read().count("most recent call first") == 2

    def test_the_programs_own_handler_is_called_after_all_is_put_back(self, world: World) -> None:
        seen: list[list[Value]] = []
        with handling(signal.SIGTERM, lambda: seen.append(world.engine.nices())) as handled, world.loop() as loop:
            loop.round()
            signal.raise_signal(signal.SIGTERM)
            assert (handled, seen) == ([signal.SIGTERM], [[FOUND] * 3])
            world.clock.time += 1
            loop.round()
            assert world.engine.nices() == [19.0, 0.0, -20.0]
        assert world.engine.nices() == [FOUND] * 3

    def test_the_programs_own_handler_is_called_after_the_round(self, world: World) -> None:
        seen: list[list[Value]] = []

        class Signalled(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                signal.raise_signal(signal.SIGTERM)
                assert seen == []
                return super().decide(snapshot)

        with (
            handling(signal.SIGTERM, lambda: seen.append(world.engine.nices())),
            world.loop(Binding(Signalled(), "nice", 1.0)) as loop,
        ):
            loop.round()
            assert seen == [[FOUND] * 3]
        assert len(loop.decisions) == 3

    def test_the_programs_own_handlers_are_all_called_for_what_came_while_things_were_put_back(
        self, world: World
    ) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def write_under_fire(target: Target, value: Value) -> None:
            if value == FOUND:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
            write(target, value)

        world.engine.nice.write = write_under_fire  # type: ignore[method-assign]
        with handling(signal.SIGTERM) as terms, handling(signal.SIGHUP) as hups:
            with loop:
                loop.round()
            assert (terms, hups) == ([signal.SIGTERM], [signal.SIGHUP])
        assert world.engine.nices() == [FOUND] * 3

    def test_two_loops_both_put_back_what_they_found(self) -> None:
        engines = [MemoryEngine(name, [0.0, 1.0]) for name in ("one", "two")]
        one, two = (Loop([engine], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()) for engine in engines)
        with one, two:
            one.round()
            two.round()
            with contextlib.suppress(SystemExit):
                signal.raise_signal(signal.SIGUSR1)
            assert [engine.nices() for engine in engines] == [[FOUND] * 2] * 2
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL

    def test_a_handler_set_in_the_meantime_stays(self, world: World) -> None:
        try:
            with world.loop():
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)

    def test_a_signal_while_things_are_put_back_does_not_keep_it_from_the_second_try(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def fail_under_fire(target: Target, value: Value) -> None:
            world.engine.nice.write = write  # type: ignore[method-assign]
            signal.raise_signal(signal.SIGINT)
            raise OSError("busy")

        loop.round()
        world.engine.nice.write = fail_under_fire  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt), loop:
            pass
        assert world.engine.nices() == [FOUND] * 3
        assert "could not put back nice of thread 1 to 3.0: busy" in caplog.text

    def test_a_signal_puts_back_what_was_found_even_if_its_exception_gets_lost(self, world: World) -> None:
        with world.loop() as loop:
            loop.round()
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert world.engine.nices() == [FOUND] * 3

    def test_a_signal_waits_for_the_end_of_the_round(self, world: World) -> None:
        class Signalled(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                signal.raise_signal(signal.SIGINT)
                return super().decide(snapshot)

        with pytest.raises(KeyboardInterrupt), world.loop(Binding(Signalled(), "nice", 1.0)) as loop:
            loop.run()
        assert len(loop.decisions) == 3
        assert world.engine.nices() == [FOUND] * 3

    def test_a_second_signal_breaks_a_round_that_hangs(self, world: World) -> None:
        reached = []

        class Hanging(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                for step in range(3):
                    reached.append(step)
                    signal.raise_signal(signal.SIGTERM)
                return super().decide(snapshot)

        with pytest.raises(SystemExit), world.loop(Binding(Hanging(), "nice", 1.0)) as loop:
            loop.run()
        assert reached == [0, 1]
        assert world.engine.nices() == [FOUND] * 3

    def test_signals_wait_while_things_are_put_back(self, world: World) -> None:
        loop, write = world.loop(), world.engine.nice.write

        def write_under_fire(target: Target, value: Value) -> None:
            if value == FOUND:
                signal.raise_signal(signal.SIGTERM)
            write(target, value)

        world.engine.nice.write = write_under_fire  # type: ignore[method-assign]
        with pytest.raises(SystemExit), loop:
            loop.round()
        assert world.engine.nices() == [FOUND] * 3

    def test_a_signal_that_is_ignored_stays_ignored(self, world: World) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            world.clock.meanwhile = lambda: signal.raise_signal(signal.SIGHUP)
            with world.loop() as loop:
                loop.run(2.0)
            assert loop.stats.rounds == 2
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_handlers_are_for_the_main_thread_only(self, world: World) -> None:
        before, inside = signal.getsignal(signal.SIGTERM), []

        def work() -> None:
            with world.loop() as loop:
                loop.run(2.0)
                inside.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert inside == [before]
        assert world.engine.nices() == [FOUND] * 3
