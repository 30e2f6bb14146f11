"""Files in the /tmp of a process are touched with its rights only, whatever it puts there meanwhile."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from treadle.engines.spark.agent import agents
from treadle.errors import RightsError, TargetGone, TreadleError
from treadle.jars import Jar
from treadle.jvm import loading
from treadle.linux import identity
from treadle.linux.files import target_files
from treadle.linux.files.target_files import TargetFolder, temporary_folder, working_folder

Process = subprocess.Popen[bytes]
NOBODY = 65534
TRIES = 100
"""If paths were resolved with our rights, the file would be given away after some ten."""
SWAP = """
import mmap, os, signal
os.chdir("/tmp")
with open("libjvm.so", "w+b") as library:  # so it is taken for a JVM
    library.write(b"nothing")
    library.flush()
    mapped = mmap.mmap(library.fileno(), 0)
signal.signal(signal.SIGQUIT, lambda *_: None)
print("ready", flush=True)
while True:
    for name in os.listdir("."):
        try:
            os.unlink(name)
            os.symlink(VICTIM, name)
        except OSError:
            pass
"""


@pytest.fixture
def victim(place: Path) -> Path:
    file = place / "victim"
    file.write_text("precious")
    file.chmod(0o640)
    return file


def is_untouched(victim: Path) -> bool:
    about = victim.stat()
    return (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode), victim.read_text()) == (0, 0, 0o640, "precious")


def test_a_target_that_swaps_its_files_for_links_is_given_nothing(
    spaced: Callable[[str], Process], victim: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = spaced(f"VICTIM = {str(victim)!r}\n{SWAP}")
    jar = Jar(place / "no.jar", b"a jar")
    monkeypatch.setattr(agents, "START", 0.01)
    for _ in range(TRIES):
        with suppress(TreadleError):
            agents.call(target.pid, jar)
        with suppress(OSError), temporary_folder(target.pid) as folder:
            for _ in range(3):
                with suppress(OSError):
                    folder.put("jar", b"other")
                with suppress(OSError):
                    folder.bind("socket").close()
                with suppress(OSError):
                    assert folder.read("jar", 100) in (b"other", None)
                folder.remove("socket")
    assert is_untouched(victim)
    assert not list(place.glob("*.jar"))


def test_a_tmp_that_is_a_link_leads_to_nowhere_outside_of_its_root(
    jailed: Callable[[Path], Process], place: Path
) -> None:
    outside = place / "outside"
    outside.mkdir(mode=0o777)
    outside.chmod(0o777)
    target = jailed(outside)
    with pytest.raises(TreadleError, match="can't be written"), loading.file(target.pid, b"evil", ".jar"):
        pass
    with pytest.raises(TreadleError):
        agents.call(target.pid, Jar(place / "no.jar", b"a jar"))
    assert not list(outside.iterdir())


def test_a_tmp_that_is_a_link_inside_of_its_root_is_followed_there(
    jailed: Callable[[Path], Process], place: Path
) -> None:
    inside = place / "root" / "scratch"
    inside.mkdir(parents=True)
    os.chown(inside, NOBODY, NOBODY)
    target = jailed(Path("/scratch"))
    with temporary_folder(target.pid) as folder:
        folder.put("file", b"text")
    about = (inside / "file").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (NOBODY, NOBODY, 0o600)


def test_where_the_kernel_can_not_resolve_inside_of_a_root_no_link_is_followed(
    jailed: Callable[[Path], Process], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_files, "_OPENAT2", 1 << 20)  # no system call
    with temporary_folder(os.getpid()) as folder:
        assert folder.is_ours
    with pytest.raises(NotADirectoryError), temporary_folder(jailed(place).pid):
        pass


def test_a_folder_that_the_target_can_not_write_is_not_written_for_it(
    jailed: Callable[[Path], Process], place: Path
) -> None:
    inside = place / "root" / "scratch"
    inside.mkdir(parents=True, mode=0o755)  # of root
    with temporary_folder(jailed(Path("/scratch")).pid) as folder:
        for change in (lambda: folder.put("file", b""), lambda: folder.make("file"), lambda: folder.bind("file")):
            with pytest.raises(PermissionError):
                change()
    assert not list(inside.iterdir())


def test_files_get_the_owner_that_the_target_has_outside_of_its_namespace(
    spaced: Callable[[str], Process], place: Path
) -> None:
    target = spaced("print('ready', flush=True); import time; time.sleep(1000)")
    with temporary_folder(target.pid) as folder:
        folder.put("file", b"text")
        folder.bind("socket").close()
        assert folder.read("file", 4) == b"text"
        assert folder.read("file", 3) is None
        assert folder.uid("file") == NOBODY
    for name in ("file", "socket"):
        about = (place / "own" / name).stat()
        assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (NOBODY, NOBODY, 0o600)


def test_only_a_socket_of_the_target_is_connected_to(spaced: Callable[[str], Process], place: Path) -> None:
    target = spaced("print('ready', flush=True); import time; time.sleep(1000)")
    own = place / "own"
    with socket.socket(socket.AF_UNIX) as listening, temporary_folder(target.pid) as folder:
        listening.bind(str(own / "of-root"))
        listening.listen()
        (own / "link").symlink_to(own / "of-root")
        (own / "file").touch()
        for name in ("of-root", "link", "file"):
            with socket.socket(socket.AF_UNIX) as connection, pytest.raises(ConnectionRefusedError):
                folder.connect(connection, name)
        os.chown(own / "of-root", NOBODY, NOBODY)
        with socket.socket(socket.AF_UNIX) as connection:
            folder.connect(connection, "of-root")


def test_what_is_no_ordinary_file_is_not_opened(spaced: Callable[[str], Process], place: Path) -> None:
    target = spaced("import os; os.mkfifo('/tmp/pipe'); print('ready', flush=True); import time; time.sleep(1000)")
    own = place / "own"
    (own / "link").symlink_to("/etc/passwd")
    (own / "anyone").write_text("text")
    os.chown(own / "anyone", NOBODY, NOBODY)
    (own / "anyone").chmod(0o666)
    with temporary_folder(target.pid) as folder:
        assert [folder.read(name, 10) for name in ("pipe", "link", "anyone")] == [None, None, None]


def test_what_another_user_left_in_our_own_tmp_is_removed_only_with_force(begin: Callable[..., Process]) -> None:
    other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    target = begin(*other, "sh", "-c", "echo ready; exec sleep 1000")
    left = Path(f"/tmp/.treadle-tests-{os.getpid()}")
    left.touch()
    with temporary_folder(target.pid) as folder:
        with pytest.raises(PermissionError):
            folder.remove(left.name)
        folder.remove(left.name, with_force=True)
        assert not left.exists()
        folder.remove(left.name, with_force=True)


def test_force_does_not_reach_into_a_tmp_of_its_own(spaced: Callable[[str], Process], place: Path) -> None:
    target = spaced("print('ready', flush=True); import time; time.sleep(1000)")
    own = place / "own"
    (own / "of-root").touch()
    own.chmod(0o1777)
    os.chown(own, 0, 0)
    with temporary_folder(target.pid) as folder, pytest.raises(PermissionError):
        folder.remove("of-root", with_force=True)


def test_a_set_user_id_program_lends_its_rights_to_nobody(place: Path, begin: Callable[..., Process]) -> None:
    program = place / "sleep"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o4755)
    other = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    target = begin(*other, "sh", "-c", f"echo ready; exec {program} 1000")
    with pytest.raises(RightsError, match="real and effective"), _becoming(target, program):
        pass
    with pytest.raises(RightsError, match="real and effective"), working_folder(target.pid):
        pass


def _becoming(target: Process, program: Path) -> AbstractContextManager[TargetFolder]:
    while os.readlink(f"/proc/{target.pid}/exe") != str(program):
        pass
    return temporary_folder(target.pid)


def test_an_action_has_the_groups_of_the_target_and_no_capability() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")

    def lines() -> dict[str, list[str]]:
        text = Path("/proc/thread-self/status").read_text()
        return {line.partition(":")[0]: line.partition(":")[2].split() for line in text.splitlines()}

    before = lines()
    during = identity.act_as(identity.Identity(NOBODY, 12, (7, 8)), lines)
    assert (during["Uid"], during["Gid"]) == (["0", str(NOBODY), "0", str(NOBODY)], ["0", "12", "0", "12"])
    assert during["Groups"] == ["7", "8"]
    assert [int(during[name][0], 16) for name in ("CapEff", "CapPrm", "CapInh")] == [0, 0, 0]
    after = lines()
    assert {name: after[name] for name in ("Uid", "Gid", "Groups", "CapEff")} == {
        name: before[name] for name in ("Uid", "Gid", "Groups", "CapEff")
    }


def test_a_process_that_has_ended_is_gone() -> None:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is there still, as a zombie
        for folder in (temporary_folder, working_folder):
            with pytest.raises(TargetGone), folder(ended.pid):
                pass
    with pytest.raises(TargetGone), temporary_folder(ended.pid):
        pass
