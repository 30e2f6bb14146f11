"""What comes into a feed: as many rows as the rate says, whenever one looks, stamped with when they came to be."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import EngineError
from treadle.pipelines.channels import log
from treadle.pipelines.channels.view import View
from treadle.workloads.generator import INTERVAL, Flow, Generator

LONG = 60.0
SCHEMA = (
    '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},'
    '{"name":"arrived","type":"timestamp","nullable":true,"metadata":{}},'
    '{"name":"v","type":"double","nullable":true,"metadata":{}},'
    '{"name":"payload","type":"string","nullable":true,"metadata":{}}]}'
)
TIMES = st.floats(0.0, 1e4)
FLOWS = st.builds(Flow, st.just(""), st.floats(0.0, 1e5), st.floats(0.1, 10.0), st.floats(0.0, 10.0))


@given(FLOWS, TIMES, TIMES, TIMES)
def test_stretches_of_time_add_up(flow: Flow, a: float, b: float, c: float) -> None:
    start, middle, end = sorted((a, b, c))
    whole = flow.rows(start, end)
    assert whole == pytest.approx(flow.rows(start, middle) + flow.rows(middle, end), rel=1e-6, abs=1e-3)
    assert -1e-6 <= whole <= flow.rate * (end - start) * (1 + 1e-9) + 1e-3


def test_bursts_are_on_and_off() -> None:
    flow = Flow("", 100.0, on=2.0, off=4.0)
    assert [flow.rows(0, 1), flow.rows(1, 3), flow.rows(2, 6), flow.rows(0, 12)] == [100.0, 100.0, 0.0, 400.0]


def test_feeds_get_what_the_process_says_they_got(tmp_path: Path) -> None:
    flows = []
    for name, rate in (("slow", 40.0), ("fast", 4000.0), ("none", 0.0)):
        with log.Writer(tmp_path / name, SCHEMA):
            pass
        flows.append(Flow(str(tmp_path / name), rate))
    began = time.time()
    generator = Generator(flows)
    limit = time.monotonic() + LONG
    while View(tmp_path / "slow").end < 20:
        assert time.monotonic() < limit
        time.sleep(0.02)
    slow, fast, none = generator.stop()
    ended = time.time()
    tables = [log.read(tmp_path / name) for name in ("slow", "fast", "none")]
    assert [table.num_rows for table in tables] == [slow, fast, none]
    assert none == 0
    assert fast / slow == pytest.approx(100, rel=0.2)
    rows = tables[1].to_pylist()
    assert [row["id"] for row in rows] == list(range(fast))
    arrived = [row["arrived"].timestamp() for row in rows]
    assert arrived == sorted(arrived)
    assert began <= arrived[0] <= arrived[-1] <= ended
    assert 0 <= min(row["v"] for row in rows) <= max(row["v"] for row in rows) < 1
    for segment in View(tmp_path / "fast").segments:
        # What a segment's name says of its rows is true to them.
        mine = arrived[segment.first : segment.end]
        assert segment.oldest == pytest.approx(mine[0], abs=1e-5)
        assert segment.mean == pytest.approx(sum(mine) / len(mine), abs=1e-4)


def test_segments_are_short_so_that_ages_are_fine(tmp_path: Path) -> None:
    with log.Writer(tmp_path / "feed", SCHEMA):
        pass
    with Generator([Flow(str(tmp_path / "feed"), 1000.0)]):
        limit = time.monotonic() + LONG
        while len(View(tmp_path / "feed").segments) < 6:
            assert time.monotonic() < limit
            time.sleep(0.02)
    spans = sorted(2 * (segment.mean - segment.oldest) for segment in View(tmp_path / "feed").segments)
    assert spans[len(spans) // 2] < 4 * INTERVAL


def test_a_feed_that_is_not_there_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generator = Generator([Flow(str(tmp_path / "nowhere"), 10.0)])
    with pytest.raises(EngineError, match="the generator failed"):
        generator.stop()
    assert "nowhere" in capfd.readouterr().err
