"""The judge itself: what it calls wrong, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.judge import Rules, Verdict, judge
from soak.sampler import Held
from soak.witness import NOBODY, OTHERS, SHARED, Span, Truth, read

RULES = Rules(found=0, engine=-20, queries={"a": 5, "b": 10})
THREAD = (1, 2)


def judged(spans: list[Span], held: list[Held], looks: list[tuple[float, float]] | None = None) -> Verdict:
    return judge(Truth({THREAD: spans}, {1: looks or []}), {THREAD: held}, RULES, 0.0, 100.0)


def test_a_thread_that_keeps_the_nice_of_the_query_before_is_wrong_from_the_change_on() -> None:
    spans = [Span(0.0, 1.0, "a", True), Span(1.0, 2.0, "b", True)]
    verdict = judged(spans, [Held(0.0, 1.25, 5), Held(1.26, 2.0, 10)])
    assert [(wrong.whom, wrong.nice) for wrong in verdict.wrong] == [("b", 5)]
    assert verdict.wrong[0].seconds == pytest.approx(0.25)
    assert verdict.hands == 1
    assert len(verdict.violations(0.05, stalled=False)) == 1
    assert verdict.violations(0.125, stalled=False) == []
    assert verdict.delays == {"a": [0.0], "b": [pytest.approx(0.26)]}


def test_two_wrong_values_in_a_row_are_one_wrong_span() -> None:
    verdict = judged([Span(0.0, 2.0, "a", True)], [Held(0.0, 0.5, 10), Held(0.51, 1.0, -20), Held(1.01, 2.0, 5)])
    assert [wrong.seconds for wrong in verdict.wrong] == [1.0]


@pytest.mark.parametrize("whom", ["a", "b", NOBODY, OTHERS, SHARED])
def test_as_it_was_found_is_never_wrong(whom: str) -> None:
    assert judged([Span(0.0, 2.0, whom, True)], [Held(0.0, 2.0, 0)]).wrong == []


@pytest.mark.parametrize(
    ("whom", "nice", "wrong"),
    [("a", 5, 0), ("a", 10, 1), (NOBODY, 5, 1), (OTHERS, -20, 0), (OTHERS, 5, 1), (SHARED, 10, 0), (SHARED, -20, 1)],
)
def test_each_may_have_what_is_its_own(whom: str, nice: int, wrong: int) -> None:
    assert len(judged([Span(0.0, 2.0, whom, False)], [Held(0.0, 2.0, nice)]).wrong) == wrong


def test_what_nobody_could_know_is_counted_apart() -> None:
    spans, held = [Span(0.0, 2.0, NOBODY, True)], [Held(0.0, 1.0, 5)]
    verdict = judged(spans, held, [(0.5, 0.45)])
    assert (len(verdict.violations(0.1, stalled=True)), verdict.violations(0.1, stalled=False)) == (1, [])
    verdict = judged(spans, held, [(0.5, 0.3), (1.5, 0.9)])
    assert (verdict.violations(0.1, stalled=True), len(verdict.violations(0.1, stalled=False))) == ([], 1)
    assert verdict.wrong_share == 0.5


def test_the_witness_is_understood(tmp_path: Path) -> None:
    worker = "Executor task launch worker"
    lines: list[tuple[float, *tuple[object, ...]]] = [
        (0.0, "look", 1000),
        (0.0, "name", 7, f"{worker} for task 0.0 in stage 1.0 (TID 3)"),
        (0.0, "name", 8, "streaming-shuffle-writer-4-0-boss-1-1"),
        (0.0, "name", 9, "dag-scheduler-event-loop"),
        (0.1, "task", 7, 3, "a"),
        (0.2, "shuffle", 4, "b"),
        (1.0, "done", 7, 3),
        (1.04, "idle", 7),
        (1.1, "look", 1000),
        (1.1, "name", 7, "Executor task idle worker"),
        (1.2, "look", 1000),
        (1.25, "task", 7, 5, "b"),
        (1.26, "done", 7, 5),
        (1.28, "idle", 7),
        (1.3, "look", 1000),
        (1.4, "look", 1000),
        (1.5, "look", 1000),
        (1.5, "gone", 7),
    ]
    text = "".join("\t".join(map(str, (round(time * 1e9), *rest))) + "\n" for time, *rest in lines)
    (tmp_path / "1.witness").write_text(text)
    truth = read(tmp_path)
    assert truth.spans[1, 7] == [
        Span(0.0, 1.0, "a", True),
        Span(1.04, 1.2, NOBODY, True),
        Span(1.25, 1.26, "b", True),
        Span(1.28, 1.4, NOBODY, True),
    ]
    assert truth.spans[1, 8] == [Span(0.0, 1.4, "b", False)]
    assert [span.whom for span in truth.spans[1, 9]] == [OTHERS]
    assert len(truth.looks[1]) == 6
