"""What the statistics of a loop say that its rounds cost."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from treadle.loop import stats as module
from treadle.loop.stats import WEIGHED, Stats


def test_the_parts_of_a_round_are_summed_over_engines_and_rules_in_milliseconds() -> None:
    stats = Stats()
    stats.weigh([{"threads": 0.001, "counters": 0.002}, {"threads": 0.003, "metrics": 0.004}], [(0.005, 0.006)], 0.05)
    stats.weigh([{}], [(0.001, 0.002), (0.003, 0.004)], 0.02)
    assert {phase: pytest.approx(list(each)) for phase, each in stats.phase_ms.items()} == {
        "threads": [4.0, 0.0],
        "counters": [2.0, 0.0],
        "metrics": [4.0, 0.0],
        "decision": [5.0, 4.0],
        "writing": [6.0, 6.0],
        "all": [50.0, 20.0],
    }


def test_of_a_round_without_new_samples_only_the_whole_duration_is_kept() -> None:
    stats = Stats()
    stats.weigh([], [(0.005, 0.006)], 0.25)
    assert {phase: list(each) for phase, each in stats.phase_ms.items()} == {"quiet": [250.0]}


def test_the_latest_thousand_durations_are_kept() -> None:
    stats = Stats()
    for number in range(1001):
        stats.spent("all", number / 1000)
    assert len(stats.phase_ms["all"]) == 1000
    assert stats.phase_ms["all"][0] == pytest.approx(1.0)
    assert stats.round_ms.maxlen == 1000


def test_cpu_time_is_measured_in_a_part_of_the_rounds_and_estimated_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, wall, asked = [0.0], [0.0], [0]

    def thread_time() -> float:
        asked[0] += 1
        return cpu[0]

    monkeypatch.setattr(module, "time", SimpleNamespace(thread_time=thread_time, perf_counter=lambda: wall[0]))
    stats = Stats()
    assert stats.median_ms == 0.0
    for number in range(WEIGHED + 1):
        with stats.round():
            cpu[0] += 0.5 if number == 0 else 1.5
            wall[0] += 0.002 * (number + 1)
        cpu[0] += 100.0
        wall[0] += 100.0
        assert stats.rounds == number + 1
        assert stats.cpu_seconds == pytest.approx(0.5 * (number + 1) if number < WEIGHED else 1.0 * (number + 1))
    assert asked[0] == 4
    assert list(stats.round_ms) == pytest.approx([2.0 * (number + 1) for number in range(WEIGHED + 1)])
    assert stats.median_ms == pytest.approx(2.0 * 9)


def test_a_round_that_is_broken_off_counts_too() -> None:
    stats = Stats()
    with pytest.raises(KeyboardInterrupt), stats.round():
        raise KeyboardInterrupt
    assert (stats.rounds, len(stats.round_ms)) == (1, 1)
