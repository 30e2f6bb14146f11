"""Whatever is dropped is logged: that it begins, changes much and ends, with what was kept."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from treadle.decide.quality import Flow, Promise
from treadle.enforce.shed import Count
from treadle.pipelines.quality.drops import OVER, Drops, percent

FLOW = Flow.of({"rows": (), "low": ("rows",), "high": ("rows",)}, {"low": Promise(1, 0.05), "high": Promise(5, 1.0)})
STREAMS = ("rows>low", "rows>high")


def counts(seen: int, low: int) -> dict[str, Count]:
    return {"rows>low": Count(seen, low), "rows>high": Count(seen, seen)}


def test_a_period_of_dropping_is_logged_from_its_begin_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "treadle.pipelines")
    drops = Drops(FLOW, STREAMS)
    drops.update(np.array([1.0, 1.0, 1.0]), counts(100, 100))
    assert drops.since("low") is None
    for part, kept in ((0.7, 100), (0.68, 170), (0.3, 240)):
        drops.update(np.array([1.0, part, 1.0]), counts(kept + 100, kept))
    assert drops.since("low") is not None
    assert drops.since("high") is None
    for _ in range(OVER):
        drops.update(np.array([1.0, 1.0, 1.0]), counts(400, 250))
    drops.close(counts(500, 350))
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "sink 'low' gets 70% of its rows from now on: there is too little CPU (promised: 5%)"),
        ("INFO", "sink 'low' gets 30% of its rows now (promised: 5%)"),
        ("WARNING", "sink 'low' gets all of its rows again, after 75% for 0 s (promised: 5%)"),
        ("WARNING", "sink 'low' was given 70% of its rows in this run (promised: 5%)"),
    ]
    assert drops.since("low") is None
    assert drops.kept("low") == pytest.approx(0.7)
    assert drops.kept("high") == 1.0


def test_where_nothing_is_dropped_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    drops = Drops(FLOW, STREAMS)
    for _ in range(2 * OVER):
        drops.update(np.ones(3), counts(100, 100))
    drops.close(counts(100, 100))
    assert not caplog.records


def test_a_part_that_is_not_all_is_never_shown_as_all() -> None:
    assert [percent(part) for part in (1.0, 0.99996, 0.7213, 0.05, 0.00642, 0.0)] == [
        *("100%", "99.9%", "72.1%", "5%", "0.642%", "0%"),
    ]
