"""Compiled classes are used again only if nobody else could have changed them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle.errors import RightsError
from treadle.jars import Jar
from treadle.jvm import classes

NOBODY = 65534


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Jar]:
    """Compile a class, or find it compiled."""
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "home"))
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "Sample.java").write_text("class Sample {}")
    return lambda: classes.jar("sample", tmp_path / "sources", manifest="Agent-Class: Sample\n")


def test_a_jar_that_is_not_as_it_was_compiled_is_not_used(
    compiled: Callable[[], Jar], monkeypatch: pytest.MonkeyPatch
) -> None:
    jar, anew = compiled(), Jar(Path("compiled anew"), b"")
    again = compiled_again(compiled, jar)
    monkeypatch.setattr(classes, "_compile", lambda *_: anew)
    assert again == compiled() == jar

    jar.path.write_bytes(b"something else")
    assert compiled() == anew
    jar.path.write_bytes(jar.contents)
    jar.path.chmod(0o666)
    assert compiled() == anew
    jar.path.chmod(0o644)
    assert compiled() == jar
    if os.geteuid() == 0:
        os.chown(jar.path, NOBODY, NOBODY)
        assert compiled() == anew


def compiled_again(compiled: Callable[[], Jar], jar: Jar) -> Jar:
    """The same classes are the same bytes, so two processes that compile at once agree."""
    jar.path.write_bytes(b"something else")
    return compiled()


def test_nothing_is_compiled_where_another_user_could_change_the_classes(
    compiled: Callable[[], Jar], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is made by another user after the cache was checked, and before it is used."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    folder = tmp_path / "home" / "jars"
    folder.mkdir(parents=True)
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(classes, "home", lambda: tmp_path / "home")
    with pytest.raises(RightsError, match="belongs to another user"):
        compiled()


def test_a_jar_is_out_of_reach_if_nobody_else_can_replace_it(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    folder.mkdir(mode=0o755)
    jar = Jar(folder / "a.jar", b"")
    closed = [place for place in jar.path.parents if place.stat().st_mode & 0o077 == 0]
    assert jar.is_out_of_reach
    for place in closed:
        place.chmod(0o755)
    assert jar.is_out_of_reach
    folder.chmod(0o777)
    assert not jar.is_out_of_reach
    (tmp_path / "link").symlink_to(folder)
    assert not Jar(tmp_path / "link" / "a.jar", b"").is_out_of_reach
    for place in closed:
        place.chmod(0o700)
    assert bool(closed) == jar.is_out_of_reach
