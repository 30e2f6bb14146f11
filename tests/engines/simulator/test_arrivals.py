"""Tuples arrive when the scenario says, and every policy meets the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.engines.simulator.arrivals import Feed, draw
from treadle.engines.simulator.scenario import Source
from treadle.model import Floats


def times(seconds: float = 10.0, seed: int = 1, folder: Path = Path(), **keys: Any) -> Floats:
    return draw([Feed((0,), Source(**keys))], seconds, seed, folder)[0]


def per_second(at: Floats, seconds: int) -> list[int]:
    return [int(count) for count in np.bincount(at.astype(np.int64), minlength=seconds)]


# ---------------------------------------------------------------- constant


def test_a_constant_source_sends_at_even_distances_from_its_start() -> None:
    assert times(rate=4, start=1, seconds=2).tolist() == [1.0, 1.25, 1.5, 1.75]


def test_a_slow_source_sends_as_long_as_it_is_on() -> None:
    assert times(rate=0.4, seconds=6).tolist() == [0.0, 2.5, 5.0]


def test_a_source_ends_at_its_stop() -> None:
    assert times(rate=1, start=2, stop=5).tolist() == [2.0, 3.0, 4.0]


def test_a_source_that_starts_too_late_sends_nothing() -> None:
    assert len(times(rate=100, start=20)) == 0
    assert len(times(pattern="poisson", rate=100, start=20)) == 0


@pytest.mark.parametrize("pattern", ["constant", "bursts", "poisson"])
def test_rate_zero_sends_nothing(pattern: str) -> None:
    assert len(times(pattern=pattern, rate=0)) == 0


@given(rate=st.floats(0.01, 300), start=st.floats(0, 5), seconds=st.floats(5, 20))
@settings(max_examples=30)
def test_a_constant_source_sends_its_rate_and_never_less_than_one_short(
    rate: float, start: float, seconds: float
) -> None:
    at = times(rate=rate, start=start, seconds=seconds)
    assert len(at) == pytest.approx(rate * (seconds - start), abs=1.0)
    assert ((at >= start) & (at <= seconds)).all()
    assert np.allclose(np.diff(at), 1.0 / rate)


# ---------------------------------------------------------------- bursts and steps


def test_bursts_come_and_go() -> None:
    at = times(pattern="bursts", rate=10, on=2, off=3, idle_rate=1)
    assert per_second(at, 10) == [10, 10, 1, 1, 1, 10, 10, 1, 1, 1]


def test_silence_between_bursts_moves_nothing_to_its_end() -> None:
    at = times(pattern="bursts", rate=10, on=1, off=4)
    assert per_second(at, 10) == [10, 0, 0, 0, 0, 10, 0, 0, 0, 0]
    assert at[10] == 5.0


def test_bursts_without_pause_are_constant() -> None:
    assert np.allclose(times(pattern="bursts", rate=7, on=0.3, off=0), times(rate=7))


def test_a_rate_that_changes_often_loses_no_tuple_to_rounding() -> None:
    at = times(pattern="bursts", rate=15, on=0.1, off=0.1, idle_rate=5)
    assert len(at) == 100


def test_a_step_raises_the_rate_again_and_again() -> None:
    at = times(pattern="step", rate=2, step=3, every=2, seconds=6)
    assert per_second(at, 6) == [2, 2, 5, 5, 8, 8]


def test_a_falling_step_stops_at_nothing() -> None:
    at = times(pattern="step", rate=5, step=-3, every=2, seconds=8)
    assert per_second(at, 8) == [5, 5, 2, 2, 0, 0, 0, 0]


# ---------------------------------------------------------------- poisson


def test_poisson_has_its_mean_and_the_spread_of_a_poisson() -> None:
    at = times(pattern="poisson", rate=200, seconds=100)
    counts = np.array(per_second(at, 100))
    assert counts.mean() == pytest.approx(200, rel=0.05)
    assert counts.var() == pytest.approx(200, rel=0.5)
    assert (np.diff(at) >= 0).all()


def test_the_mean_is_drawn_anew_between_its_limits() -> None:
    at = times(pattern="poisson", between=[100, 1000], redraw=5, seconds=200)
    means = np.bincount((at / 5).astype(np.int64)) / 5
    assert len(means) == 40
    assert (means > 100 * 0.8).all()
    assert (means < 1000 * 1.2).all()
    assert means.mean() == pytest.approx(550, rel=0.25)
    assert means.std() > 150  # a Poisson of one mean would have 10


def test_within_an_interval_the_mean_stays() -> None:
    at = times(pattern="poisson", between=[100, 1000], redraw=5, seconds=200)
    halves = (np.bincount((at / 2.5).astype(np.int64)) / 2.5).reshape(-1, 2)
    assert (np.abs(halves[:, 0] - halves[:, 1]) < 6 * np.sqrt(2 * halves.mean(axis=1) / 2.5)).all()


# ---------------------------------------------------------------- trace and ticks


def test_a_trace_is_read_from_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "arrivals.txt").write_text("0.5\n\n0.5\r\n  3e0  \n11\n")
    assert times(pattern="trace", file="arrivals.txt", folder=tmp_path).tolist() == [0.5, 0.5, 3.0]


def test_an_empty_trace_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "arrivals.txt").touch()
    assert len(times(pattern="trace", file="arrivals.txt", folder=tmp_path)) == 0


def test_ticks_send_their_counts_and_mark_the_empty_ones() -> None:
    source = Source(pattern="ticks", start=1, every=2, counts=(2, 0, 1, 3))
    at, nodes = draw([Feed((7,), source)], 6.0, 1, Path())
    assert at.tolist() == [1.0, 1.0, 3.0, 5.0]
    assert nodes.tolist() == [7, 7, -1, 7]


# ---------------------------------------------------------------- several


def test_sources_are_merged_in_time_and_ties_keep_their_order() -> None:
    feeds = [Feed((0,), Source(rate=2)), Feed((1,), Source(rate=1))]
    at, nodes = draw(feeds, 2.0, 1, Path())
    assert at.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0, 1.5]
    assert nodes.tolist() == [0, 1, 0, 0, 1, 0]


def test_copies_of_a_source_take_turns() -> None:
    _, nodes = draw([Feed((3, 5), Source(rate=1))], 5.0, 1, Path())
    assert nodes.tolist() == [3, 5, 3, 5, 3]


def test_the_seed_draws_the_arrivals() -> None:
    first, again, other = (times(pattern="poisson", rate=50, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_equal_sources_are_drawn_apart() -> None:
    source = Source(pattern="poisson", rate=50)
    at, nodes = draw([Feed((0,), source), Feed((1,), source)], 10.0, 1, Path())
    assert not set(at[nodes == 0]) & set(at[nodes == 1])
