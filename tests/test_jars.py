from __future__ import annotations

import hashlib
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from support import until
from treadle import jars
from treadle.cli import parts
from treadle.errors import ConfigError, EngineError, RightsError
from treadle.jars import Bundle

NOBODY = 65534
CONTENT = b"the bytes of a jar"
TOY = Bundle(
    "toy",
    """<ivy-module version="2.0">
    <info organisation="treadle" module="toy"><description>a toy</description></info>
    <configurations><conf name="default"/></configurations>
    <dependencies><dependency org="org.toys" name="horse" rev="1.0" conf="default->default"/></dependencies>
    </ivy-module>""",
    {"horse-1.0.jar": hashlib.sha256(CONTENT).hexdigest()},
)
FETCH_TOY = f"from treadle import jars; jars.fetch(jars.{TOY!r})"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> Path:
    """A registry in a folder, with the toy in it."""
    folder = tmp_path / "registry"
    folder.mkdir()
    (folder / "horse-1.0.jar").write_bytes(CONTENT)
    pattern = f'<artifact pattern="{folder}/[artifact]-[revision].[ext]"/>'
    use(f'<filesystem name="here">{pattern}</filesystem>', tmp_path, monkeypatch)
    return folder


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> Iterator[socket.socket]:
    """A registry that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_remote(server.getsockname()[1], tmp_path, monkeypatch)
        yield server


def use(resolver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="here"/><resolvers>{resolver}</resolvers></ivysettings>'
    )
    monkeypatch.setenv("TREADLE_IVY_SETTINGS", str(settings))


def use_remote(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(f'<ibiblio name="here" m2compatible="true" root="http://127.0.0.1:{port}/"/>', tmp_path, monkeypatch)


def kept(home: Path) -> list[str]:
    """All that is in the cache but locks."""
    return sorted(path.name for path in (home / "jars").iterdir() if path.suffix != ".lock")


def test_every_bundle_comes_with_the_bytes_that_are_pinned() -> None:
    found = jars.fetch(*jars.names())
    for name, folder in found.items():
        assert sorted(path.name for path in folder.iterdir()) == [path.name for path in jars.paths(name)]
        for path in jars.paths(name):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == jars.bundle(name).sums[path.name]
    assert len(jars.paths("spark-kafka")) == 4
    assert [path.name for path in jars.paths("jolokia")] == ["jolokia-agent-jvm-2.5.0-javaagent.jar"]
    assert any(path.name == "kafka_2.13-4.1.0.jar" for path in jars.paths("kafka"))


def test_a_bundle_is_fetched_once_and_tells_how_far_it_is(registry: Path, elsewhere: Path) -> None:
    told: list[float] = []
    folder = jars.fetch(TOY, progress=lambda what, part: told.append(part))["toy"]
    assert (folder / "horse-1.0.jar").read_bytes() == CONTENT
    assert told == sorted(told)
    assert told[0] == 0.0
    (registry / "horse-1.0.jar").unlink()
    assert jars.fetch(TOY) == {"toy": folder}
    assert kept(elsewhere) == [folder.name]


def test_a_jar_that_was_changed_after_it_was_fetched_is_not_used(registry: Path, elsewhere: Path) -> None:
    jar = jars.fetch(TOY)["toy"] / "horse-1.0.jar"
    jar.write_bytes(b"something else")
    with pytest.raises(EngineError, match=r"horse-1\.0\.jar has SHA-256 .*rm -r"):
        jars.fetch(TOY)
    jar.write_bytes(CONTENT)
    (jar.parent / "cow.jar").touch()  # a class path of the whole folder would have it
    with pytest.raises(EngineError, match=r"unexpected files: cow\.jar"):
        jars.fetch(TOY)


def test_a_jar_that_others_can_write_is_not_used(registry: Path, elsewhere: Path) -> None:
    jar = jars.fetch(TOY)["toy"] / "horse-1.0.jar"
    jar.chmod(0o664)
    with pytest.raises(RightsError, match="can be written by others"):
        jars.fetch(TOY)
    jar.unlink()
    jar.symlink_to("/etc/passwd")
    with pytest.raises(RightsError, match="symbolic link"):
        jars.fetch(TOY)


def test_a_jar_of_another_user_is_not_used(registry: Path, elsewhere: Path) -> None:
    only_root()
    jar = jars.fetch(TOY)["toy"] / "horse-1.0.jar"
    os.chown(jar, NOBODY, NOBODY)
    with pytest.raises(RightsError, match="belongs to another user"):
        jars.fetch(TOY)


def test_jars_are_written_so_that_only_their_owner_can_change_them(registry: Path, elsewhere: Path) -> None:
    old = os.umask(0o002)  # as where every user has a group
    try:
        jar = jars.fetch(TOY)["toy"] / "horse-1.0.jar"
        assert jars.fetch(TOY)
    finally:
        os.umask(old)
    for place in (jar, jar.parent, elsewhere / "jars", elsewhere):
        assert not place.stat().st_mode & 0o022


def test_the_cache_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    only_root()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    own = Path(pwd.getpwuid(0).pw_dir) / ".cache" / "treadle"
    monkeypatch.delenv("TREADLE_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(theirs))  # as `sudo -E` leaves it
    with caplog.at_level("INFO"):
        assert jars.home() == jars.home() == own
    assert caplog.text.count("belongs to another user; jars are kept in") == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(theirs / "cache"))
    assert jars.home() == own
    monkeypatch.setenv("TREADLE_HOME", str(theirs / "home"))
    with pytest.raises(ConfigError, match=r"belongs to another user.*TREADLE_HOME"):
        jars.home()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that others can enter; that of pytest is closed, so nobody else could change what is in it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("inside", [".", "jars", "agents"])
def test_a_cache_that_others_can_write_to_is_refused(
    reachable: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    place = reachable / "home" / inside
    place.mkdir(parents=True)
    monkeypatch.setenv("TREADLE_HOME", str(reachable / "home"))
    assert jars.home() == reachable / "home"
    place.chmod(0o2775)
    with pytest.raises(ConfigError, match=r"can be changed by other users \(chmod go-w\).*set TREADLE_HOME"):
        jars.home()


@pytest.mark.parametrize("inside", ["jars", "agents"])
def test_a_cache_of_which_a_part_belongs_to_another_user_is_refused(elsewhere: Path, inside: str) -> None:
    only_root()
    (elsewhere / inside).mkdir(parents=True)
    assert jars.home() == elsewhere
    os.chown(elsewhere / inside, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=rf"{inside} belongs to another user"):
        jars.home()


def test_a_bundle_that_others_can_add_to_is_not_used(
    registry: Path, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(reachable / "home"))
    folder = jars.fetch(TOY)["toy"]
    folder.chmod(0o777)
    with pytest.raises(RightsError, match="can be changed by other users"):
        jars.fetch(TOY)


def test_the_path_of_the_cache_has_no_links_that_could_lead_elsewhere_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "link"))
    assert jars.home() == tmp_path / "real"


def only_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")


def test_other_contents_live_in_another_folder(elsewhere: Path) -> None:
    assert replace(TOY, sums={"horse-1.0.jar": "0" * 64}).key != TOY.key != replace(TOY, ivy=TOY.ivy + " ").key


def test_wrong_bytes_are_refused_and_not_kept(registry: Path, elsewhere: Path) -> None:
    (registry / "horse-1.0.jar").write_bytes(b"something else")
    with pytest.raises(EngineError, match=r"horse-1\.0\.jar has SHA-256 .* nothing was kept"):
        jars.fetch(TOY)
    assert kept(elsewhere) == []


def test_more_or_fewer_jars_than_pinned_are_refused(registry: Path, elsewhere: Path) -> None:
    with pytest.raises(EngineError, match=r"unexpected files: horse-1\.0\.jar"):
        jars.fetch(replace(TOY, sums={"cow.jar": "0" * 64}))
    with pytest.raises(EngineError, match=r"missing files: cow\.jar"):
        jars.fetch(replace(TOY, sums={**TOY.sums, "cow.jar": "0" * 64}))
    assert kept(elsewhere) == []


def test_a_jar_that_the_registry_lacks_is_named(registry: Path, elsewhere: Path) -> None:
    (registry / "horse-1.0.jar").unlink()
    with pytest.raises(EngineError, match=r"does not have org\.toys:horse:1\.0"):
        jars.fetch(TOY)
    assert kept(elsewhere) == []


def test_a_registry_that_refuses_connections_is_unreachable_for_a_named_jar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # held, but not listened on
        use_remote(nobody.getsockname()[1], tmp_path, monkeypatch)
        with pytest.raises(EngineError, match=r"can't be reached \(Connection refused.*org\.toys:horse:1\.0"):
            jars.fetch(TOY)


def test_a_registry_that_says_nothing_is_given_up(silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "SILENCE", 1.0)
    with pytest.raises(EngineError, match="can't be reached"):
        jars.fetch(TOY)


def test_two_at_once_both_get_it(registry: Path, elsewhere: Path) -> None:
    both = [subprocess.Popen([sys.executable, "-c", FETCH_TOY]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert kept(elsewhere) == [TOY.key]


def test_a_fetch_that_was_killed_leaves_nothing_in_the_way(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", FETCH_TOY])
    assert select.select([silent], [], [], 120)[0], "Ivy never asked the registry"
    (ivy,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [name for name in kept(elsewhere) if name.startswith(".tmp-toy-")]
    silent.close()  # so that the Ivy it left behind ends too
    until(lambda: not Path(f"/proc/{ivy}").exists())

    (tmp_path / "horse-1.0.jar").write_bytes(CONTENT)
    pattern = f'<artifact pattern="{tmp_path}/[artifact]-[revision].[ext]"/>'
    use(f'<filesystem name="here">{pattern}</filesystem>', tmp_path, monkeypatch)
    jars.fetch(TOY)
    assert kept(elsewhere) == [TOY.key]


def test_an_unknown_bundle_is_told_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'kafak'.*jolokia, kafka, spark-kafka"):
        jars.fetch("kafak")


def test_jars_that_were_not_fetched_name_the_command_that_does(elsewhere: Path) -> None:
    with pytest.raises(EngineError, match="treadle jars kafka"):
        jars.paths("kafka")


def test_without_java_the_remedy_is_a_jdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"PATH: no java found.*install a JDK 17"):
        jars.fetch(TOY)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=r"JAVA_HOME=.*no java found"):
        jars.fetch(TOY)


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "this is Java 11"),
        ('java version "1.8.0_202"', "this is Java 8"),
        ("?", "does not print its version"),
    ],
)
def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, error: str) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=error):
        jars.java()


def test_without_pyspark_the_remedy_is_to_install_it(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(EngineError, match=r"pip install 'treadle\[spark\]'"):
        jars.fetch(TOY)


def test_settings_that_are_not_there_are_told(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_IVY_SETTINGS", "/no/such/file")
    with pytest.raises(ConfigError, match="TREADLE_IVY_SETTINGS=/no/such/file: no such file"):
        jars.fetch(TOY)


def test_a_cache_that_can_not_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="TREADLE_HOME"):
        jars.fetch(TOY)


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TREADLE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert jars.home() == Path("/caches/treadle")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert jars.home() == Path.home() / ".cache" / "treadle"
    monkeypatch.setenv("TREADLE_HOME", "mine")
    assert jars.home() == Path(os.getcwd()) / "mine"


def test_the_command_lists_what_there_is_and_what_is_here(elsewhere: Path) -> None:
    shown = CliRunner().invoke(parts.jars, [])
    assert shown.exit_code == 0
    assert shown.output.count("not fetched") == len(jars.names())


def test_the_command_refuses_a_wrong_name_before_it_fetches(elsewhere: Path) -> None:
    result = CliRunner().invoke(parts.jars, ["kafka", "nosuch"])
    assert isinstance(result.exception, ConfigError)
    assert not elsewhere.exists()


def test_the_command_says_where_the_jars_are() -> None:
    result = CliRunner().invoke(parts.jars, ["spark-kafka"])
    assert result.exit_code == 0
    assert result.output.replace("\n", "") == f"spark-kafka: 4 jars in {jars.folder('spark-kafka')}"
