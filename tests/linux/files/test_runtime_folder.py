from __future__ import annotations

import os
from pathlib import Path

import pytest

from treadle.errors import RightsError
from treadle.linux.files import runtime_folder
from treadle.linux.files.runtime_folder import opened, places, private_folder

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


def test_a_folder_that_is_a_link_or_open_to_others_is_refused(tmp_path: Path) -> None:
    assert private_folder(tmp_path / "own") == private_folder(tmp_path / "own")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with pytest.raises(RightsError, match="is open to other users"):
        private_folder(tmp_path / "open")
    assert private_folder(tmp_path / "open", readable=True) == tmp_path / "open"
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(RightsError, match="is open to other users"):
        private_folder(tmp_path / "open", readable=True)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(RightsError, match="is not a folder of this user's"):
        private_folder(tmp_path / "link")


@AS_ROOT
def test_a_folder_that_another_user_made_first_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(RightsError, match="is not a folder of this user's"):
        private_folder(tmp_path / "theirs")


@AS_ROOT
def test_a_folder_of_another_user_is_opened_only_if_nobody_else_can_write_there(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "link"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    link.symlink_to(theirs)
    with opened(theirs, 12345) as handle, opened(theirs, 0) as not_ours, opened(link, 12345) as linked:
        assert (handle is not None, not_ours, linked) == (True, None, None)
    theirs.chmod(0o777)
    with opened(theirs, 12345) as handle:
        assert handle is None
    with opened(tmp_path / "nowhere", 0) as handle:
        assert handle is None


def test_while_a_user_is_not_logged_in_the_folder_is_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tmp_path / "session"
    monkeypatch.setattr(runtime_folder, "places", lambda _: [session / "treadle", tmp_path / "other"])
    assert runtime_folder.runtime_folder() == tmp_path / "other"
    session.mkdir()
    assert runtime_folder.runtime_folder() == session / "treadle"
    assert places(7) == [Path("/run/user/7/treadle"), Path("/tmp/treadle-7")]
