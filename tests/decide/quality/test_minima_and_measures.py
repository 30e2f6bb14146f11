"""Minima that give way where they free CPU, fits that are taken over, and measures at the ends of their ranges."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.decide.quality import Flow, Kept, Promise, least_part, relative_error
from treadle.decide.quality.costs import Costs
from treadle.decide.quality.minima import Needs, fitting
from treadle.errors import ConfigError


def test_a_sink_that_uses_nothing_of_a_worker_keeps_its_minimum_and_misses_nothing_there() -> None:
    flow = Flow.of({"a": (), "b": ()}, {"a": Promise(1.0, 0.8), "b": Promise(1.0, 0.8)})
    needs = Needs(flow, np.array([True, False]), np.ones(2), np.ones(2))
    allowed, missing = fitting(needs, 0.5, np.array([0.8, 0.8]))
    assert allowed.tolist() == pytest.approx([0.5, 0.8], abs=1e-5)
    assert missing.tolist() == pytest.approx([0.3, 0.0])


def test_minima_that_just_fit_stay() -> None:
    flow = Flow.of({"a": (), "b": ()}, {"a": Promise(1.0, 0.5), "b": Promise(2.0, 0.5)})
    needs = Needs(flow, np.array([True, True]), np.ones(2), np.ones(2))
    allowed, missing = fitting(needs, 1.0, np.array([0.5, 0.5]))
    assert (allowed.tolist(), missing.tolist()) == ([0.5, 0.5], [0.0, 0.0])


def test_the_fit_of_another_task_goes_on_where_it_was() -> None:
    old, new = Costs(2), Costs(3)
    for rows, batches in ((100.0, 1.0), (10.0, 3.0), (40.0, 2.0)):
        cpu = 0.01 * rows + 0.1 * batches
        old.update(np.array([0.0, rows]), np.array([0.0, batches]), np.array([0.0, cpu]))
    new.copy(2, old, 1)
    assert (new.per_row[2], new.per_batch[2]) == (old.per_row[1], old.per_batch[1])
    assert new.per_row[:2].tolist() == [0.0, 0.0]
    old.update(np.array([0.0, 70.0]), np.array([0.0, 1.0]), np.array([0.0, 0.9]))
    new.update(np.array([0.0, 0.0, 70.0]), np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 0.9]))
    assert (new.per_row[2], new.per_batch[2]) == (old.per_row[1], old.per_batch[1])


def test_all_rows_are_always_accurate_and_none_never() -> None:
    measure = relative_error("amount", window="10s")
    assert measure(Kept(1.0, 0.0, 1.0)) == 1.0
    assert measure(Kept(0.0, 100.0, 1.0)) == 0.0
    assert measure(Kept(0.999, 0.0, 1.0)) == 0.0
    assert 0.9 < measure(Kept(0.999, 0.05, 1.0)) < 1.0


def test_a_measure_knows_its_column_and_window() -> None:
    measure = relative_error("amount")
    assert (measure.column, measure.window) == ("amount", 60.0)
    assert (relative_error(window=5).column, relative_error(window=5).window) == (None, 5.0)
    with pytest.raises(ConfigError, match=r"^relative_error: the window is not a duration"):
        relative_error(window="soon")


def test_a_share_with_which_a_measure_is_just_what_is_asked_is_enough() -> None:
    assert least_part(lambda kept: 0.5 if kept.part >= 0.25 else 0.0, 0.5, Kept(1.0, 1.0, 1.0)) == pytest.approx(0.25)
