"""What a loop does if nothing else is said, when it sleeps and wakes, and what it logs at its end."""

from __future__ import annotations

import logging
import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loop.worlds import FOUND, ByQueue, Failing, MemoryEngine, TestClock, World, costs_seen
from treadle.decide.policies import QueueSize
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop


class Quality:
    """A stand-in for promises: notes when it measures and when it keeps all rows."""

    in_process = True

    def __init__(self, period: float = 2.0) -> None:
        self.period = period
        self.measured: list[float] = []
        self.kept_all = 0
        self.controller: Any = SimpleNamespace(cycle=lambda seen: seen)

    def measure(self, now: float) -> Any:
        self.measured.append(now - 100.0)

    def carry_out(self, decision: Any, now: float) -> None:
        raise AssertionError("there is nothing to decide")

    def keep_all(self) -> None:
        self.kept_all += 1


def test_an_unknown_row_keeps_its_value_for_ten_rounds(world: World) -> None:
    loop = world.loop()
    loop.round()
    world.engine.columns["queue"][1] = np.nan
    for _ in range(10):
        loop.round(force=True)
        assert world.engine.nices() == [19.0, 0.0, -20.0]
    loop.round(force=True)
    assert world.engine.nices() == [19.0, FOUND, -20.0]


def test_what_fails_is_tried_again_after_a_minute_at_most(world: World) -> None:
    world.engine.fails = OSError("down")
    loop, asked = world.loop(), list[int]()
    for second in range(250):
        before, world.clock.time = world.engine.asked, 100.0 + second
        loop.round()
        if world.engine.asked > before:
            asked.append(second)
    assert asked == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_metrics_are_averaged_over_two_seconds_and_forgotten_after_a_minute(world: World) -> None:
    assert costs_seen(world, [1.0, 9.0]) == pytest.approx([1.0, 9.0 - 8.0 * math.exp(-0.5)])
    seen = costs_seen(world, [1.0] + [math.nan] * 62)
    assert [number for number, cost in enumerate(seen) if math.isnan(cost)] == [61, 62]


def test_a_hundred_thousand_decisions_are_kept(world: World) -> None:
    assert world.loop().decisions.size == 100_000


def test_before_its_first_round_a_loop_is_due_now(world: World) -> None:
    assert world.loop().next_due == 100.0
    loop = world.loop(Binding(QueueSize(), "nice", 5.0), Binding(QueueSize(), "rank", 3.0), quality=Quality(2.0))
    assert loop.next_due == 100.0
    loop.round()
    assert loop.next_due == 102.0
    world.clock.time = 102.0
    loop.keep_promises()
    assert loop.next_due == 103.0


def test_promises_are_kept_in_each_period_also_between_rounds_and_not_while_paused(world: World) -> None:
    quality = Quality()
    loop = world.loop(Binding(world.policy, "nice", 10.0), quality=quality)
    loop.run(5.0)
    assert quality.measured == [0.0, 2.0, 4.0]
    loop.pause()
    assert (loop.paused, quality.kept_all) == (True, 1)
    world.clock.time += 5.0
    loop.round()
    loop.keep_promises()
    assert quality.measured == [0.0, 2.0, 4.0]
    loop.resume()
    loop.keep_promises()
    assert (loop.paused, quality.measured) == (False, [0.0, 2.0, 4.0, 10.0])
    assert len(world.policy.asked) == 1


def test_while_paused_a_round_does_nothing_even_by_force(world: World) -> None:
    loop = world.loop()
    loop.round()
    loop.pause()
    assert loop.round(force=True) == ()
    assert len(world.policy.asked) == 1
    loop.resume()
    assert loop.round(force=True)


def test_a_failure_to_keep_promises_is_among_the_troubles(world: World) -> None:
    quality = Quality()
    quality.measure = lambda now: 1 / 0  # type: ignore[method-assign]
    loop = world.loop(quality=quality)
    loop.round()
    assert loop.stats.troubles == {"keeping promises": "division by zero"}


def test_a_run_of_no_time_and_one_that_is_stopped_before_do_nothing(world: World) -> None:
    stop = threading.Event()
    world.loop().run(0.0)
    stop.set()
    world.loop().run(5.0, stop=stop)
    assert world.policy.asked == []


def test_a_run_ends_at_the_earlier_of_two_ends(world: World) -> None:
    world.loop().run(3.0, until=102.0)
    assert world.clock.time == 102.0
    world.loop().run(1.0, until=110.0)
    assert world.clock.time == 103.0


def test_a_round_that_would_begin_a_moment_before_the_end_is_left_out(world: World) -> None:
    world.loop().run(until=102.0 + 1e-9)
    assert [time - 100 for time in world.policy.asked] == [0.0, 1.0]


def test_with_an_event_to_stop_by_it_sleeps_in_short_naps_and_else_in_one(world: World) -> None:
    world.loop().run(1.0)
    assert world.clock.slept == [1.0]
    world.clock.slept.clear()
    world.loop().run(1.0, stop=threading.Event())
    assert world.clock.slept == pytest.approx([0.2] * 5)


@pytest.mark.parametrize("dry_run", [False, True])
def test_at_the_end_it_is_logged_how_many_values_are_put_back(
    world: World, caplog: pytest.LogCaptureFixture, dry_run: bool
) -> None:
    caplog.set_level(logging.INFO, "treadle.loop")
    with world.loop(dry_run=dry_run) as loop:
        loop.round()
    last = caplog.records[-1]
    assert last.getMessage() == ("would put back 3 values" if dry_run else "put back 3 values")
    assert (vars(last)["put_back"], vars(last)["dry_run"]) == (3, dry_run)
    assert loop.stats.restored == 3
    caplog.clear()
    loop.restore()
    assert caplog.records == []


def test_what_can_not_be_put_back_is_logged_with_its_knob_each_time_it_is_tried(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with world.loop() as loop:
        loop.round()
        world.engine.nice.refuses = True
    assert [vars(record)["knob"] for record in caplog.records] == ["nice"] * 6  # three values, and once more


def test_failures_of_two_bindings_of_one_policy_are_counted_together(world: World) -> None:
    loop = world.loop(Binding(Failing(), "nice", 1.0), Binding(Failing(), "rank", 1.0))
    loop.round()
    assert loop.stats.policy_failures == {"failing": 2}


def test_two_bindings_of_one_knob_put_back_what_the_first_has_found(world: World) -> None:
    world.engine.split("left", "right")
    bindings = [Binding(ByQueue(), "nice", 1.0, queries=(query,)) for query in ("left", "right")]
    with world.loop(*bindings) as loop:
        loop.round()
        world.engine.run(["o0", "o1", "o2"], "right")
        loop.round(force=True)
    assert world.engine.nices() == [FOUND] * 3


def test_an_engine_that_serves_no_binding_is_not_added() -> None:
    first, other = MemoryEngine("first", [0.0, 1.0]), MemoryEngine("other", [0.0, 1.0])
    loop = Loop([first], [Binding(QueueSize(), "nice", 1.0, queries=("first/*",))], clock=TestClock())
    loop.add(other)
    loop.round()
    assert (other.asked, other.nices()) == (0, [FOUND] * 2)


def test_a_policy_can_be_checked_without_being_put_in_force(world: World) -> None:
    loop = world.loop(Binding(world.policy, "nice", 1.0), Binding(world.policy, "rank", 3.0))
    loop.check_policy(QueueSize(), 1)

    class Needy(QueueSize):
        needs = ("cost",)

    with pytest.raises(EngineError, match="cost"):
        loop.check_policy(Needy(), 1)
    assert (loop.period(), loop.period(1)) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stale_after": 0}, "stale_after=0, log_size=100000 (use 1 or more)"),
        ({"log_size": 0}, "stale_after=10, log_size=0 (use 1 or more)"),
        ({"sample_timeout": 0.0}, "sample_timeout=0.0 (use seconds above 0, or None for no limit)"),
        ({"sample_timeout": 1e12}, "sample_timeout=1000000000000.0 (use seconds above 0, or None for no limit)"),
    ],
)
def test_a_loop_that_can_not_be_is_refused_with_the_remedy(world: World, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        world.loop(**options)
    assert str(caught.value) == f"loop: {says}"


def test_the_ends_of_the_limits_are_accepted(world: World) -> None:
    for options in (
        {"stale_after": 1, "log_size": 1},
        {"sample_timeout": None},
        {"sample_timeout": threading.TIMEOUT_MAX},
    ):
        world.loop(**options).round(force=True)
    assert world.engine.nices() == [19.0, 0.0, -20.0]


def test_setups_that_can_not_work_are_refused_with_place_and_remedy(world: World) -> None:
    policy = world.policy
    cases: list[tuple[Any, str]] = [
        (lambda: Loop([world.engine], []), "loop: there is no policy to run (give it at least one policy)"),
        (
            lambda: Loop([], [Binding(policy, "nice", 1.0)]),
            "loop: there is no engine to run (give it at least one engine)",
        ),
        (
            lambda: Loop([world.engine] * 2, [Binding(policy, "nice", 1.0)]),
            "loop: two engines are named 'mem' (rename one of them)",
        ),
        (
            lambda: world.loop(Binding(policy, "rt", 1.0)),
            "policy 'queue-size': no engine has a knob 'rt' (mem has group, nice, rank, shares)",
        ),
        (
            lambda: world.loop(Binding(policy, "nice", 1.0, queries=("a/*", "b/*"))),
            "policy 'queue-size': no engine has a knob 'nice' (its queries a/*, b/* match no engine)",
        ),
        (
            lambda: world.loop(Binding(policy, "nice", 1.0, grouping="query")),
            "policy 'queue-size': knob 'nice' is not for groups (leave the grouping out)",
        ),
    ]
    for wrong, says in cases:
        with pytest.raises((ConfigError, EngineError)) as caught:
            wrong()
        assert str(caught.value) == says
