"""Files that nobody else can have written, or change on the way."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from treadle.errors import RightsError
from treadle.linux.files import trusted


def test_a_file_is_replaced_in_one_step_and_is_only_ours(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    for text in (b"one", b"two"):
        trusted.write(file, text)
        assert trusted.read(file) == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_replaced_and_what_it_names_is_left(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_bytes(b"theirs")
    link.symlink_to(other)
    trusted.write(link, b"ours")
    assert not link.is_symlink()
    assert (other.read_bytes(), link.read_bytes()) == (b"theirs", b"ours")


def test_nothing_is_written_where_others_can_change_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        with pytest.raises(RightsError, match="can be changed by other users"):
            trusted.write(Path(folder) / "kept", b"text")
        assert os.listdir(folder) == []


def test_a_folder_that_is_missing_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(RightsError, match=r"can't be written: No such file.*make the folder"):
        trusted.write(tmp_path / "nowhere" / "kept", b"text")
