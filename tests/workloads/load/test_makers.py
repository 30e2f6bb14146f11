"""Makers, and targets, that make no sense are refused with the reason."""

from __future__ import annotations

import os

import numpy as np
import pytest

from treadle.errors import ConfigError
from treadle.workloads.load import Channel, makers
from treadle.workloads.load.process import _pin

HERE = "workloads.load.load_makers"


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("missing", "can't be imported"),
        ("fails", "failed: ValueError: no data here"),
        ("nothing", "does not return a list of text lines"),
    ],
)
def test_a_maker_of_lines_must_make_lines(maker: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{maker}: {message}"):
        makers.lines(f"{HERE}:{maker}", 10, 0)


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        ("taken", "makes the column 'id', which every row gets"),
        ("fails", "failed: TypeError"),
        ("short", "does not return an Arrow table with 3 rows"),
    ],
)
def test_a_maker_of_tables_must_make_tables(maker: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"{maker}: {message}"):
        makers.table(f"{HERE}:{maker}", 0, 3, np.random.default_rng(0))


def test_targets_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="either `lines` or `table`"):
        Channel(folder="x")
    with pytest.raises(ConfigError, match="either `lines` or `table`"):
        Channel(folder="x", lines="a:b", table="a:b")
    with pytest.raises(ConfigError, match="can't be an interval"):
        Channel(folder="x", lines="a:b", interval=0.0)
    with pytest.raises(ConfigError, match="too few"):
        Channel(folder="x", lines="a:b", count=0)


def test_cores_that_are_not_there_are_refused() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"cores \[900\] can't be used"):
        _pin([900])
    assert os.sched_getaffinity(0) == before
