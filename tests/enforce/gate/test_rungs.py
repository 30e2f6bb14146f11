"""The file of Spark's pools, and rungs of hops that are not there."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from treadle.enforce.gate.pools import PoolKnob, allocation_file
from treadle.errors import ConfigError, TargetGone


def test_the_file_of_the_pools_is_written_once_and_again_if_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_HOME", str(tmp_path / "home"))
    path = allocation_file()
    assert path == tmp_path / "home" / "pools.xml"
    text, first = path.read_text("utf-8"), os.stat(path).st_ino
    allocations = ET.fromstring(text)
    assert allocations.tag == "allocations"
    assert not (allocations.text or "").strip()
    assert [pool.findtext("schedulingMode") for pool in allocations] == ["FAIR"] * 6
    assert [(pool.tail or "").strip() for pool in allocations] == [""] * 6
    allocation_file()
    assert os.stat(path).st_ino == first
    path.write_text("<allocations/>", "utf-8")
    assert allocation_file().read_text("utf-8") == text
    assert [each.name for each in path.parent.iterdir()] == ["pools.xml"]


def test_a_hop_that_is_not_there_is_on_the_lowest_rung_and_gone_for_the_knob() -> None:
    knob = PoolKnob()
    assert knob.pool("unknown") == "rung-0"
    knob.withdraw("unknown")
    with pytest.raises(TargetGone) as gone:
        knob.read("unknown")
    assert str(gone.value) == "pools: 'unknown' no longer runs"
    knob.register("a")
    with pytest.raises(ConfigError) as wrong:
        knob.write("a", 6.0)
    assert str(wrong.value) == "pools: there is no pool 6.0 (use 0 to 5)"
    assert knob.read("a") == 0.0
