from __future__ import annotations

import json
from pathlib import Path

from treadle.pipelines.channels.checkpoint import done_up_to, last_committed, last_planned, planned, remove_torn


def test_what_spark_has_planned_and_done_is_found_in_its_checkpoint(tmp_path: Path) -> None:
    assert done_up_to(tmp_path, "t") is None
    assert (last_planned(tmp_path), last_committed(tmp_path)) == (-1, -1)
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in range(3):
        lines = ["v1", "{}", "17", json.dumps({"other": {"0": 1}}), json.dumps({"t": {"0": batch, "1": 10 * batch}})]
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(lines))
    (tmp_path / "commits" / "1").write_text("v1\n{}")
    (tmp_path / "commits" / ".2.tmp").write_text("")
    assert planned(tmp_path, 2, "t") == {0: 2, 1: 20}
    assert planned(tmp_path, 3, "t") is None
    assert done_up_to(tmp_path, "t") == {0: 1, 1: 10}
    assert (last_planned(tmp_path), last_committed(tmp_path)) == (2, 1)


def test_what_a_kill_during_the_first_batch_leaves_is_removed_and_nothing_else(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / ".0.cfc13879.tmp").touch()
    remove_torn(tmp_path)
    assert list(offsets.iterdir()) == []
    for name in ("0", ".1.cfc13879.tmp"):
        (offsets / name).touch()
    remove_torn(tmp_path)
    assert sorted(file.name for file in offsets.iterdir()) == [".1.cfc13879.tmp", "0"]
    remove_torn(tmp_path / "none")
