"""What a pipeline is judged by: lateness counts also what waits, goals count rows, and shedding is a loss."""

from __future__ import annotations

import time

import pytest

from treadle.errors import ConfigError
from treadle.pipelines.channels.view import Backlog
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.latency import Latency, Part
from treadle.pipelines.hops.options import Options
from treadle.pipelines.hops.totals import OBJECTIVES, Totals, older_than

NOW = 1_800_000_000.0
NOTHING = Backlog(0, 0, float("nan"), float("nan"))


def sink(goal: float = float("inf")) -> Hop:
    return Hop("q/s", "s", "p/s", latency=Latency(), latency_goal=goal)


def came_out(hop: Hop, rows: int, age: float, at: float = NOW) -> None:
    assert hop.latency is not None
    hop.latency.add(at, [(rows, (at - age) * 1e6, (at - age) * 1e6)])


def test_rows_that_wait_are_late_too() -> None:
    hop = sink()
    came_out(hop, 100, 0.1)
    assert Totals([hop]).read(NOW, [[NOTHING]])["latency_p99"] == pytest.approx(0.1)
    starved = Totals([hop]).read(NOW, [[Backlog(50, 5_000, NOW - 9, NOW - 9)]])
    assert starved["latency_p99"] == pytest.approx(9.0)
    assert starved["backlog_bytes"] == 5_000


def test_what_came_out_long_ago_is_forgotten() -> None:
    hop = sink()
    came_out(hop, 100, 5.0, at=NOW - 60)
    came_out(hop, 100, 0.1)
    assert Totals([hop]).read(NOW, [[NOTHING]])["latency_p99"] == pytest.approx(0.1)


def test_goals_missed_is_the_share_of_rows_that_are_older_than_their_sink_allows() -> None:
    strict, free = sink(goal=1.0), sink()
    came_out(strict, 30, 0.5)
    came_out(strict, 10, 2.0)
    came_out(free, 1000, 50.0)
    totals = Totals([strict, free])
    assert totals.read(NOW, [[NOTHING], [NOTHING]])["goals_missed"] == pytest.approx(0.25)
    assert Totals([free]).read(NOW, [[NOTHING]])["goals_missed"] == 0.0


@pytest.mark.parametrize(("age", "share"), [(0.5, 1.0), (1.0, 1.0), (2.5, 0.25), (2.0, 0.5), (3.0, 0.0), (4.0, 0.0)])
def test_rows_of_a_part_are_even_between_the_youngest_and_the_oldest(age: float, share: float) -> None:
    assert older_than(Part(NOW, 10, 3.0, 2.0), age) == pytest.approx(share)


def test_a_loss_of_accuracy_is_a_total_where_somebody_sheds() -> None:
    assert "accuracy_lost" not in Totals([sink()]).read(NOW, [[NOTHING]])
    assert Totals([sink()], lambda: 0.2).read(NOW, [[NOTHING]])["accuracy_lost"] == 0.2


def test_the_rate_is_that_since_the_last_look() -> None:
    hop = sink()
    totals = Totals([hop])
    totals.read(NOW, [[NOTHING]])
    came_out(hop, 100, 0.1)
    began = time.monotonic()
    while time.monotonic() - began < 0.01:
        pass
    found = totals.read(NOW, [[NOTHING]])
    assert 0 < found["output_rate"] <= 100 / 0.01
    assert totals.read(NOW, [[NOTHING]])["output_rate"] == 0.0


def test_a_pipeline_that_can_not_be_judged_so_is_refused_before_it_starts() -> None:
    for name in OBJECTIVES:
        Options(policy=f"adaptive:objective=min {name}")
    Options(policy="adaptive:objective=max throughput")
    with pytest.raises(ConfigError, match=r"'happiness' is not measured for pipelines.*use one of accuracy"):
        Options(policy="adaptive:objective=max happiness")
