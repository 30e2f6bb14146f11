"""Steps give the results of the reference in whatever portions and order they run, and their state stays small."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.workloads.voip_stream import parameters, reference
from treadle.workloads.voip_stream.pipeline import pipeline
from treadle.workloads.voip_stream.reference import Call, Row
from treadle.workloads.voip_stream.steps import STEPS, Program, run
from treadle.workloads.voip_stream.tables import kept, recalled
from workloads.voip_stream.calls import call, traffic

READS = {node.name: node.inputs for node in pipeline(source="feed").nodes if node.name in STEPS}
"""Step -> what it reads."""
_ORDER = ["parser", *STEPS]
WHOLE = Program(1, tuple((name, tuple(_ORDER.index(each) for each in READS[name])) for name in STEPS))
"""All steps in one program, which reads the parser's rows."""


def frame(calls: Iterable[Call]) -> pd.DataFrame:
    """Calls as the parser's rows reach a step. `created` is a number of microseconds."""
    rows = pd.DataFrame([each[:6] for each in calls], columns=list(Call._fields[:6]))
    return rows.assign(created=rows["id"] * 1_000)


class Hops:
    """The steps as hops: each reads its inputs in portions, and its output is a queue for its readers."""

    def __init__(self, calls: pd.DataFrame) -> None:
        self.queues: dict[str, list[pd.DataFrame]] = defaultdict(list, parser=[calls])
        self.positions: dict[tuple[str, str], int] = defaultdict(int)
        self.states: dict[str, list[bytes]] = {}

    def turn(self, name: str, limit: int) -> int:
        """Run a step on at most `limit` rows of each input, in no order, as in batches; return how many there were."""
        read, portions = 0, []
        for place, upstream in enumerate(READS[name]):
            if not self.queues[upstream]:
                continue
            start = self.positions[name, upstream]
            rows = pd.concat(self.queues[upstream]).iloc[start : start + limit]
            self.positions[name, upstream] += len(rows)
            read += len(rows)
            chosen = rows.query(STEPS[name].where) if STEPS[name].where else rows
            portions.append(chosen.assign(input=place))
        if portions and any(len(rows) for rows in portions):
            mixed = pd.concat(portions).sample(frac=1, random_state=limit)
            alone = Program(len(READS[name]), ((name, tuple(range(len(READS[name])))),))
            made, self.states[name] = run(alone, mixed, self.states.get(name))
            if len(made):
                self.queues[name].append(made)
        return read

    def drain(self, names: Iterable[str], limit: int) -> None:
        """Take turns until all queues are empty."""
        while sum(self.turn(name, limit) for name in names):
            pass


def agree(made: pd.DataFrame, expected: list[Row]) -> None:
    """Check that the output of the step `score` is that of the reference."""
    assert made["id"].tolist() == [row.id for row in expected]
    assert (made["created"] == made["id"] * 1_000).all()
    for field in Row._fields:
        assert made[field].tolist() == pytest.approx([getattr(row, field) for row in expected]), field


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return traffic(160)


@pytest.fixture(scope="module")
def expected(lines: list[str]) -> list[Row]:
    return reference.run(lines)["score"]


@pytest.mark.parametrize(("count", "seed"), [(160, 0), (400, 1)])
def test_the_traffic_of_the_tests_gives_each_part_of_the_score_many_values(count: int, seed: int) -> None:
    """Here and in `test_pipeline`: otherwise wrong results could look right."""
    rows = reference.run(traffic(count, seed))["score"]
    for part in ("fofir", "url", "acd"):
        between = {getattr(row, part) for row in rows if 0 < getattr(row, part) < 1}
        assert len(between) > 5, part


@settings(max_examples=8)
@given(
    turns=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(1, 50)), max_size=40),
    order=st.permutations(sorted(STEPS)),
    limit=st.integers(5, 200),
)
def test_hops_give_the_scores_of_the_reference_in_whatever_portions_and_order_they_run(
    lines: list[str], expected: list[Row], turns: list[tuple[str, int]], order: list[str], limit: int
) -> None:
    hops = Hops(frame(reference.parser(lines)))
    for name, rows in turns:
        hops.turn(name, rows)
    hops.drain(order, limit)
    agree(pd.concat(hops.queues["score"]), expected)


@pytest.mark.parametrize("batch", [1, 7, 200])
def test_one_program_of_all_steps_gives_the_scores_of_the_reference(
    lines: list[str], expected: list[Row], batch: int
) -> None:
    calls = frame(reference.parser(lines)).assign(input=0)
    states, made = None, []
    for start in range(0, len(calls), batch):
        scores, states = run(WHOLE, calls.iloc[start : start + batch], states)
        made.append(scores)
    agree(pd.concat([scores for scores in made if len(scores)]), expected)


def test_a_recording_that_begins_again_has_the_times_and_pairs_of_the_reference() -> None:
    calls = [call(place, 1, 2, at) for place, at in enumerate([0, 5, 20, 0, 5, 20])]
    hops = Hops(frame(calls))
    hops.drain(["dispatcher"], 2)
    made, expected = pd.concat(hops.queues["dispatcher"]), reference.dispatcher(calls)
    assert made["answer_ts"].tolist() == [each.answer_ts for each in expected]
    assert made["new_callee"].tolist() == [each.new_callee for each in expected]


def state_of(hops: Hops, name: str) -> Any:
    return pickle.loads(hops.states[name][0])


def test_pairs_are_forgotten_after_a_minute_and_counters_after_five_time_constants() -> None:
    hops = Hops(frame(call(at, at, at + 5_000, at) for at in range(2_000)))
    hops.drain(["dispatcher", "ecr", "ecr24"], 100)
    assert len(state_of(hops, "dispatcher")[0]) == parameters.REMEMBERED + 1
    assert len(state_of(hops, "ecr")) == parameters.FAST.forget + 1
    assert len(state_of(hops, "ecr24")) == parameters.SLOW.forget + 1


def matched(hops: Hops) -> int:
    return sum(len(rows) for rows in hops.queues["url"])


def test_an_unmatched_call_is_given_up_a_minute_after_all_inputs_have_passed_it() -> None:
    hops = Hops(frame([]))
    made = pd.DataFrame({"id": range(300), "created": 0, "calling": 1, "answer_ts": range(300), "value": 1.0})
    hops.queues["ecr"], hops.queues["encr"] = [made], [made.iloc[::10]]
    while hops.turn("url", 10):
        pass
    assert matched(hops) == 30
    waiting, reached = state_of(hops, "url")
    assert reached == [290, 299]
    assert waiting["at"].min() == 290 - parameters.TIMEOUT + 1  # 230 had a partner
    assert not set(waiting["key"].tolist()) & set(range(0, 300, 10))


def test_an_input_that_is_far_behind_finds_its_partners() -> None:
    hops = Hops(frame([]))
    made = pd.DataFrame({"id": range(1_000), "created": 0, "calling": 1, "answer_ts": range(1_000), "value": 1.0})
    hops.queues["ecr"] = [made]
    hops.turn("url", 1_000)
    hops.queues["encr"] = [made]
    hops.drain(["url"], 100)
    assert matched(hops) == 1_000
    assert len(state_of(hops, "url")[0]) == 0


def test_a_silent_input_is_not_waited_for_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "LAG", 100)
    hops = Hops(frame([]))
    made = pd.DataFrame({"id": range(1_000), "created": 0, "calling": 1, "answer_ts": range(1_000), "value": 1.0})
    hops.queues["ecr"] = [made]
    hops.drain(["url"], 50)
    assert len(state_of(hops, "url")[0]) == 100 + parameters.TIMEOUT + 1


ROWS = st.dictionaries(st.integers(-(2**62), 2**62), st.tuples(st.integers(0, 100), st.floats(0, 1)), max_size=20)


@given(first=ROWS, second=ROWS, since=st.integers(0, 100))
def test_a_table_is_a_dict_without_its_old_rows(
    first: dict[int, tuple[int, float]], second: dict[int, tuple[int, float]], since: int
) -> None:
    empty = np.empty(0, [("key", "<i8"), ("at", "<i8"), ("value", "<f8")])
    table = kept(kept(empty, first, 0), second, since)
    expected = {key: row for key, row in {**first, **second}.items() if row[0] >= since}
    assert table["key"].tolist() == sorted(expected)
    assert recalled(table, np.array([*first, *second, 7], np.int64)) == expected
