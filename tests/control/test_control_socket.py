"""Commands and their answers get through; nothing that comes over the socket hurts the pipeline behind it."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutations import mutated
from support import until
from treadle.control import control_socket, lines
from treadle.errors import ConfigError, EngineError, RightsError, TargetGone, TreadleError
from treadle.linux.files import runtime_folder
from treadle.linux.files.file_lock import alone
from treadle.linux.sockets import Peer


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short one, since a socket's path must be."""
    path = Path(tempfile.mkdtemp(prefix="tctl"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setattr(runtime_folder, "places", lambda _: [path / "own"])  # pipelines of other tests run meanwhile
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "treadle-fraud.sock"


def add(left: int, right: int = 1) -> int:
    return left + right


def refuse() -> None:
    raise ConfigError("policy 'x' is unknown", where="ctl", remedy="use fcfs")


def vanish() -> None:
    raise TargetGone("it has ended")


def fail() -> None:
    raise ValueError("a bug")


HANDLERS: dict[str, Callable[..., object]] = {
    "add": add,
    "refuse": refuse,
    "vanish": vanish,
    "fail": fail,
    "odd": lambda: {1, 2},
    "long": lambda: "x" * 3_000_000,
}


@pytest.fixture
def server(path: Path) -> Iterator[control_socket.Server]:
    with control_socket.Server(path, HANDLERS) as running:
        yield running


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(str(path))
    return connection


def raw(path: Path, data: bytes, *, half_close: bool = False) -> Any:
    """What a client that is not ours gets for the first line it sends."""
    with connect(path) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return json.loads(answers.readline())


class TestAsking:
    def test_a_command_gets_its_arguments_and_its_answer_comes_back(self, server: control_socket.Server) -> None:
        assert control_socket.ask(server.path, "add", left=2) == 3
        assert control_socket.ask(server.path, "add", left=2, right=5) == 7

    def test_an_answer_may_be_long(self, server: control_socket.Server) -> None:
        assert len(control_socket.ask(server.path, "long")) == 3_000_000

    def test_the_servers_error_is_raised_with_all_its_parts(self, server: control_socket.Server) -> None:
        with pytest.raises(ConfigError) as error:
            control_socket.ask(server.path, "refuse")
        assert str(error.value) == "ctl: policy 'x' is unknown (use fcfs)"
        with pytest.raises(TargetGone):
            control_socket.ask(server.path, "vanish")

    def test_a_bug_in_a_handler_is_an_error_here_and_in_the_log(
        self, server: control_socket.Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(EngineError, match="ValueError: a bug"):
            control_socket.ask(server.path, "fail")
        assert "a command on the control socket failed" in caplog.text
        assert control_socket.ask(server.path, "add", left=1) == 2

    def test_an_answer_that_is_no_json_is_an_error(self, server: control_socket.Server) -> None:
        with pytest.raises(EngineError, match="TypeError"):
            control_socket.ask(server.path, "odd")

    def test_an_unknown_command_is_named_with_the_near_ones(self, server: control_socket.Server) -> None:
        with pytest.raises(ConfigError, match="did you mean refuse"):
            control_socket.ask(server.path, "refuze")

    def test_wrong_arguments_are_named(self, server: control_socket.Server) -> None:
        with pytest.raises(ConfigError, match="it takes left, right"):
            control_socket.ask(server.path, "add", lfet=2)
        with pytest.raises(ConfigError, match="missing a required argument: 'left'"):
            control_socket.ask(server.path, "add")

    def test_nobody_there_is_a_clear_error(self, path: Path) -> None:
        with pytest.raises(EngineError, match="no pipeline listens there"):
            control_socket.ask(path, "add", left=1)

    def test_a_request_that_is_too_long_is_not_even_sent(self, server: control_socket.Server) -> None:
        with pytest.raises(ConfigError, match="more than 65536 bytes"):
            control_socket.ask(server.path, "add", left="x" * control_socket.LARGEST_REQUEST)

    def test_a_server_that_does_not_answer_costs_only_the_time_allowed(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            with pytest.raises(EngineError, match=r"no answer within 0\.05 s"):
                control_socket.ask(path, "add", timeout=0.05)

    def test_a_server_that_hangs_up_is_a_clear_error(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)

            def hang_up() -> None:
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            with pytest.raises(EngineError, match="ended without an answer"):
                control_socket.ask(path, "add")
            thread.join()


class TestBadClients:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (b"\n", "not JSON"),
            (b"hello\n", "not JSON"),
            (b"\xff\xfe\x00\n", "not JSON"),
            (b"[" * 60_000 + b"\n", "not JSON"),
            (b"[]\n", "has no command"),
            (b'{"command": 1}\n', "has no command"),
            (b'{"command": "add", "arguments": [1]}\n', "has no command"),
            (b'{"command": "add", "arguments": {"left": 1, "self": 1}}\n', "unexpected keyword argument"),
            (b"x" * (control_socket.LARGEST_REQUEST + 1) + b"\n", "more than 65536 bytes"),
            (b"x" * (control_socket.LARGEST_REQUEST + 1), "more than 65536 bytes"),
        ],
    )
    def test_what_can_not_be_understood_is_answered_with_the_reason(
        self, server: control_socket.Server, line: bytes, message: str
    ) -> None:
        assert message in raw(server.path, line)["error"]["message"]
        assert control_socket.ask(server.path, "add", left=1) == 2

    def test_several_requests_on_one_connection_are_answered_in_turn(self, server: control_socket.Server) -> None:
        with connect(server.path) as connection, connection.makefile("rb") as answers:
            connection.sendall(b'{"command": "add", "arguments": {"left": 1}}\nnonsense\n')
            connection.sendall(b'{"command": "add", "argu')
            assert json.loads(answers.readline()) == {"result": 2}
            assert "error" in json.loads(answers.readline())
            connection.sendall(b'ments": {"left": 2}}\n')
            assert json.loads(answers.readline()) == {"result": 3}

    def test_a_half_closed_connection_still_gets_its_answer(self, server: control_socket.Server) -> None:
        line = b'{"command": "add", "arguments": {"left": 1}}\n'
        assert raw(server.path, line, half_close=True) == {"result": 2}

    def test_a_client_that_leaves_without_its_answer_hurts_nobody(self, server: control_socket.Server) -> None:
        for data in (b"", b'{"comm', b'{"command": "long"}\n' * 3):
            with connect(server.path) as connection:
                connection.sendall(data)
        assert control_socket.ask(server.path, "add", left=1) == 2
        until(lambda: not server._clients)

    def test_slow_clients_are_dropped_and_keep_nobody_waiting(self, path: Path) -> None:
        with control_socket.Server(path, HANDLERS, patience=0.2) as server:
            slow = [connect(path) for _ in range(3)]
            for connection in slow:
                connection.sendall(b'{"command"')
            assert control_socket.ask(path, "add", left=1) == 2
            for connection in slow:
                assert connection.recv(1) == b""
                connection.close()
            until(lambda: not server._clients)

    def test_a_client_that_never_fetches_its_answer_is_dropped(self, path: Path) -> None:
        with control_socket.Server(path, HANDLERS, patience=0.2) as server, connect(path) as connection:
            connection.sendall(b'{"command": "long"}\n')
            assert control_socket.ask(path, "add", left=1) == 2
            until(lambda: not server._clients)

    def test_beyond_the_limit_clients_are_told_to_come_again(self, server: control_socket.Server) -> None:
        idle = [connect(server.path) for _ in range(control_socket.MOST_CLIENTS)]
        until(lambda: len(server._clients) == control_socket.MOST_CLIENTS)
        with pytest.raises(EngineError, match="too many clients"):
            control_socket.ask(server.path, "add", left=1)
        for connection in idle:
            connection.close()
        until(lambda: not server._clients)
        assert control_socket.ask(server.path, "add", left=1) == 2

    def test_a_long_command_keeps_nobody_waiting(self, path: Path) -> None:
        go_on, begun = threading.Event(), threading.Event()

        def wait() -> str:
            begun.set()
            go_on.wait(30)
            return "done"

        answers: list[Any] = []
        with control_socket.Server(path, {**HANDLERS, "wait": wait}):
            thread = threading.Thread(target=lambda: answers.append(control_socket.ask(path, "wait")))
            thread.start()
            assert begun.wait(30)
            assert control_socket.ask(path, "add", left=1) == 2
            go_on.set()
            thread.join()
        assert answers == ["done"]


class TestSocket:
    def test_only_its_user_may_use_it(self, server: control_socket.Server) -> None:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o600

    def test_it_is_gone_when_the_server_is(self, path: Path) -> None:
        server = control_socket.Server(path, HANDLERS)
        server.close()
        server.close()
        assert not path.exists()
        with control_socket.Server(path, HANDLERS):
            assert control_socket.ask(path, "add", left=1) == 2

    def test_a_client_that_is_connected_does_not_hold_up_the_end(self, path: Path) -> None:
        server = control_socket.Server(path, HANDLERS, patience=600)
        with connect(path) as connection:
            until(lambda: bool(server._clients))
            server.close()
            assert connection.recv(1) == b""

    def test_the_command_that_closes_it_is_still_answered(self, path: Path) -> None:
        servers: list[control_socket.Server] = []

        def stop() -> str:
            servers[0].close()
            return "stopped"

        servers.append(control_socket.Server(path, {"stop": stop}))
        assert control_socket.ask(path, "stop") == "stopped"
        assert not path.exists()

    def test_what_a_dead_process_left_is_replaced(self, path: Path) -> None:
        code = f"import os, socket; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); os._exit(9)"
        subprocess.run([sys.executable, "-c", code], check=False)
        assert path.is_socket()
        with control_socket.Server(path, HANDLERS):
            assert control_socket.ask(path, "add", left=1) == 2

    def test_a_live_one_is_refused_and_goes_on(self, server: control_socket.Server) -> None:
        with pytest.raises(ConfigError, match="a running pipeline listens there already"):
            control_socket.Server(server.path, HANDLERS)
        assert control_socket.ask(server.path, "add", left=1) == 2

    def test_of_many_that_start_at_once_one_gets_it(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
        started: list[control_socket.Server] = []
        refused: list[TreadleError] = []
        together = threading.Barrier(8)

        def start() -> None:
            together.wait()
            try:
                started.append(control_socket.Server(path, HANDLERS))
            except ConfigError as error:
                refused.append(error)

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(started), len(refused)) == (1, 7)
        assert control_socket.ask(path, "add", left=1) == 2
        started[0].close()

    def test_what_is_no_socket_is_left_alone(self, path: Path) -> None:
        path.write_text("mine")
        with pytest.raises(ConfigError, match="is not a socket"):
            control_socket.Server(path, HANDLERS)
        assert path.read_text() == "mine"

    def test_a_socket_that_somebody_else_made_meanwhile_is_not_removed(self, path: Path) -> None:
        first = control_socket.Server(path, HANDLERS)
        path.rename(path.with_name("treadle-kept.sock"))  # keeps its inode from being given to the second
        with control_socket.Server(path, HANDLERS):
            first.close()
            assert control_socket.ask(path, "add", left=1) == 2

    def test_a_path_that_is_too_long_is_a_clear_error(self, folder: Path) -> None:
        path = folder / ("x" * 110)
        with pytest.raises(ConfigError, match="may have 107 bytes"):
            control_socket.Server(path, HANDLERS)
        with pytest.raises(ConfigError, match="may have 107 bytes"):
            control_socket.ask(path, "add")

    def test_the_longest_path_works(self, folder: Path) -> None:
        path = folder / ("x" * (control_socket.LONGEST_PATH - len(str(folder)) - 1))
        with control_socket.Server(path, HANDLERS):
            assert control_socket.ask(path, "add", left=1) == 2

    def test_a_folder_that_is_not_there_is_a_clear_error(self, folder: Path) -> None:
        with pytest.raises(EngineError, match="can't be made: No such file"):
            control_socket.Server(folder / "nowhere" / "x.sock", HANDLERS)


class TestSweeping:
    def dead(self, path: Path) -> Path:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
        return path

    def test_sockets_of_killed_processes_are_removed_when_another_starts(self, folder: Path) -> None:
        (folder / "own").mkdir(mode=0o700)
        there = [self.dead(folder / "treadle-a.sock"), self.dead(folder / "own" / "treadle-b.sock")]
        with control_socket.serve("new", HANDLERS) as server:  # type: ignore[union-attr]
            assert [path for path in there if path.exists()] == []
            assert control_socket.find() == [server.path]

    def test_live_ones_and_what_is_not_a_control_socket_stay(self, folder: Path) -> None:
        others = [self.dead(folder / "status-1.sock"), self.dead(folder / "treadle-a.socket")]
        (folder / "treadle-file.sock").write_text("mine")
        (folder / "treadle-link.sock").symlink_to(others[0])
        others += [folder / "treadle-file.sock", folder / "treadle-link.sock"]
        old = control_socket.Server(control_socket.path_for("old"), HANDLERS)
        with old, socket.socket(socket.AF_UNIX) as full:
            full.bind(str(folder / "treadle-full.sock"))
            full.listen(0)
            waiting = connect(folder / "treadle-full.sock")  # the queue of new connections is full from now on
            with waiting, control_socket.serve("new", HANDLERS):  # type: ignore[union-attr]
                assert [path for path in others if not path.exists()] == []
                assert (folder / "treadle-full.sock").exists()
                assert control_socket.ask(old.path, "add", left=1) == 2

    def test_those_of_another_user_stay(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a socket away")
        left = self.dead(folder / "treadle-a.sock")
        os.chown(left, 12345, 12345)
        with control_socket.serve("new", HANDLERS):  # type: ignore[union-attr]
            assert left.exists()

    def test_one_that_is_just_being_made_stays(self, folder: Path) -> None:
        """Between bind() and listen() the kernel refuses connections; the lock is held for as long."""
        swept = threading.Event()

        def sweep() -> None:
            control_socket._sweep(folder)
            swept.set()

        path, sweeper = folder / "treadle-a.sock", threading.Thread(target=sweep)
        with socket.socket(socket.AF_UNIX) as made:
            with alone(folder / runtime_folder.LOCK):
                made.bind(str(path))
                sweeper.start()
                assert not swept.wait(0.05)
                made.listen()
            sweeper.join()
            assert path.exists()


class TestFinding:
    def test_the_usual_place_is_the_users_runtime_folder(self, path: Path) -> None:
        assert control_socket.path_for("fraud") == path
        assert control_socket.name_of(path) == "fraud"

    @pytest.mark.parametrize("runtime", [None, "", "relative", "/nowhere/at/all"])
    def test_without_one_it_is_a_private_folder(self, runtime: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        if runtime is None:
            monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        path = control_socket.path_for("fraud")
        assert path == runtime_folder.runtime_folder() / "treadle-fraud.sock"
        assert os.geteuid() != 0 or path.parent == Path("/run/treadle")  # in /tmp anybody could make it first
        assert not path.parent.stat().st_mode & 0o022
        assert control_socket.name_of(path) == "fraud"
        with control_socket.Server(control_socket.path_for(f"test-{os.getpid()}"), HANDLERS) as server:
            assert server.path in control_socket.find()
        assert server.path not in control_socket.find()

    def test_where_no_folder_is_safe_there_is_no_control_socket_but_a_warning(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder.chmod(0o777)
        (folder / "taken").touch()
        (folder / "open").mkdir()
        (folder / "open").chmod(0o777)
        for place in ("taken", "open", "taken/inside"):
            monkeypatch.setattr(runtime_folder, "places", lambda _, place=place: [folder / place])
            assert control_socket.serve("fraud", HANDLERS) is None
            assert control_socket.find() == []
        assert caplog.text.count("no control socket: ") == 3

    def test_a_name_that_is_taken_is_an_error(self, folder: Path) -> None:
        server = control_socket.serve("fraud", HANDLERS)
        assert server is not None
        with server, pytest.raises(ConfigError, match="a running pipeline listens there already"):
            control_socket.serve("fraud", HANDLERS)

    def test_running_pipelines_are_found_and_dead_ones_are_not(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "treadle-dead.sock"))
        (folder / "treadle-odd.sock").write_text("")
        assert control_socket.find() == []
        with (
            control_socket.Server(control_socket.path_for("a"), HANDLERS),
            control_socket.Server(control_socket.path_for("b"), HANDLERS),
        ):
            assert control_socket.find() == [control_socket.path_for(name) for name in ("a", "b")]
        assert control_socket.find() == []

    def test_the_only_one_that_runs_needs_no_name(self, folder: Path) -> None:
        with pytest.raises(EngineError, match="no pipeline is running"):
            control_socket.pick()
        with control_socket.Server(control_socket.path_for("a"), HANDLERS):
            assert control_socket.pick() == control_socket.pick("a") == control_socket.path_for("a")
            with pytest.raises(EngineError, match="no pipeline 'x' is running"):
                control_socket.pick("x")
            with (
                control_socket.Server(runtime_folder.private_folder(folder / "own") / "treadle-b.sock", HANDLERS),
                pytest.raises(EngineError, match="name one of a, b"),
            ):
                control_socket.pick()


REQUEST = {"command": "echo", "arguments": {"value": [1, "a", {"b": None}]}}
ANSWERS = (
    {"result": {"policy": "fcfs", "hops": [{"name": "a", "rows": 3}]}},
    {"error": {"kind": "ConfigError", "message": "m", "where": "w", "remedy": "r"}},
)


class TestWhateverIsSent:
    """10,000 texts in each direction."""

    @settings(max_examples=200)
    @given(st.integers(0, 2**64))
    def test_a_request_is_answered_by_a_result_or_an_error_of_ours(self, seed: int) -> None:
        chance, server = random.Random(seed), control_socket.Server.__new__(control_socket.Server)
        server._handlers = {"echo": lambda value=None: value, "nothing": lambda: None}
        for _ in range(50):
            answer = server._answer(mutated(REQUEST, chance))
            assert answer.endswith(b"\n")
            assert answer.count(b"\n") == 1
            assert set(json.loads(answer)) in ({"result"}, {"error"})

    @settings(max_examples=200)
    @given(st.integers(0, 2**64))
    def test_an_answer_is_a_result_or_raises_an_error_of_ours(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(50):
            with suppress(TreadleError):
                lines.result(mutated(chance.choice(ANSWERS), chance), Path("here"))

    def test_noise_on_the_socket_is_lost_and_others_are_answered_still(self, server: control_socket.Server) -> None:
        chance = random.Random(1)
        for _ in range(50):
            with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
                client.connect(str(server.path))
                client.sendall(chance.randbytes(chance.randrange(1, 200_000)))
        until(lambda: not server._clients)
        assert control_socket.ask(server.path, "add", left=1) == 2

    def test_an_answer_that_is_none_is_a_clear_error(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()

            def answer() -> None:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(b"[1, 2\n")

            thread = threading.Thread(target=answer)
            thread.start()
            with pytest.raises(EngineError, match="sends an invalid answer"):
                control_socket.ask(path, "status")
            thread.join()

    @pytest.mark.parametrize(("side", "why"), [("client", "another user"), ("server", "without an answer|reset")])
    def test_another_user_is_neither_answered_nor_believed(
        self, server: control_socket.Server, monkeypatch: pytest.MonkeyPatch, side: str, why: str
    ) -> None:
        """As the kernel would say if the socket were open to others."""
        here = threading.current_thread()

        def who(_: socket.socket) -> Peer:
            ours = (threading.current_thread() is here) != (side == "client")
            return Peer(1, os.geteuid() if ours else 12345, 0)

        monkeypatch.setattr(control_socket, "peer", who)
        with pytest.raises((RightsError, EngineError), match=why):
            control_socket.ask(server.path, "add", left=1)
