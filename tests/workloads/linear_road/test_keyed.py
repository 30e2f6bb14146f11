"""The stateful operators of Linear Road without Spark: wherever batches are cut, they give what the reference gives."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.workloads.linear_road import arrays, keyed, merging, operators, reference, rules
from treadle.workloads.linear_road.merging import Made, Program, Step
from treadle.workloads.linear_road.reference import Notification
from workloads.linear_road.scenes import in_order, jam, line

Row = dict[str, Any]
BEGIN = 1_700_000_000_000_000


class State:
    """Spark's state of one key."""

    def __init__(self) -> None:
        self.content: tuple[Any, ...] | None = None

    @property
    def exists(self) -> bool:
        return self.content is not None

    @property
    def get(self) -> tuple[Any, ...]:
        assert self.content is not None
        return self.content

    def update(self, content: tuple[Any, ...]) -> None:
        self.content = content


class Hop:
    """A query that reads channels in batches of any size, in which rows of a key have lost their order."""

    def __init__(self, program: Program, *inputs: list[Row]) -> None:
        self.function, self.inputs = merging.function_of(program), inputs
        self.nothing: Row = {name: -1 for kind in program.reads for name in kind.names or ()} | {"lav": float("nan")}
        self.read = [0] * len(inputs)
        self.states: dict[tuple[int, int], State] = {}
        self.output: list[Row] = []

    @property
    def behind(self) -> bool:
        return any(done < len(channel) for done, channel in zip(self.read, self.inputs, strict=True))

    def batch(self, chance: Random) -> None:
        by_key: dict[tuple[int, int], list[Row]] = {}
        for number, channel in enumerate(self.inputs):
            end = chance.randint(self.read[number], len(channel))
            for row in channel[self.read[number] : end]:
                by_key.setdefault((row["xway"], row["dir"]), []).append({**self.nothing, **row, "input": number})
            self.read[number] = end
        for key in sorted(by_key):
            rows = by_key[key]
            chance.shuffle(rows)
            cut = chance.randint(0, len(rows) - 1)
            parts = [pd.DataFrame(part) for part in (rows[:cut], rows[cut:]) if part]
            for found in self.function(key, iter(parts), self.states.setdefault(key, State())):
                self.output += found.to_dict("records")

    def memory(self, key: tuple[int, int]) -> Any:
        """The memory of its first step."""
        return merging.memories_of(self.states[key].get)[0]


def alone(step: Step) -> Program:
    """A step as a query of its own."""
    return Program(step.reads, ((step, tuple(range(len(step.reads)))),))


def together() -> Program:
    """All steps of `per_minute` as one query."""
    reports = cast("Any", object())
    lavs = Made(operators.LAST_AVERAGE_SPEED, (Made(operators.AVERAGE_SPEED, (reports,)),))
    counts = Made(operators.COUNT_VEHICLES, (reports,))
    program, sources = merging.program_of(Made(operators.TOLL_NOTIFICATION_POS, (reports, lavs, counts)))
    assert sources == [reports]
    return program


def as_input(lines: list[str]) -> list[Row]:
    """What the dispatcher gives."""
    return [{**row._asdict(), "created": BEGIN + row.id} for row in reference.dispatcher(lines)]


def as_notification(row: Row) -> Notification:
    """A row of `tolls` as the reference has it."""
    assert row["created"] == BEGIN + row["id"]
    known: Row = {name: None if row[name] in (-1, None) or row[name] != row[name] else row[name] for name in row}
    known["kind"] = rules.KINDS[row["kind"] - 1]
    return Notification(*(known[name] for name in Notification._fields))


def hops_of(lines: list[str]) -> list[Hop]:
    """The queries of `per_minute` in the layout `hops`; the last one decides tolls."""
    reports = as_input(lines)
    average = Hop(alone(operators.AVERAGE_SPEED), reports)
    last = Hop(alone(operators.LAST_AVERAGE_SPEED), average.output)
    count = Hop(alone(operators.COUNT_VEHICLES), reports)
    return [average, last, count, Hop(alone(operators.TOLL_NOTIFICATION_POS), reports, last.output, count.output)]


def run(hops: list[Hop], chance: Random) -> list[Notification]:
    """Run queries in any order until all rows are read; the rows of the last one."""
    while waiting := [hop for hop in hops if hop.behind]:
        chance.choice(waiting).batch(chance)
    return in_order(map(as_notification, hops[-1].output))


@st.composite
def traffic(draw: st.DrawFn) -> list[str]:
    """Few vehicles at few places; time stands still, goes on, leaves minutes out, or goes back."""
    time, found = 600, []
    for _ in range(draw(st.integers(1, 40))):
        time = max(0, time + draw(st.sampled_from([0, 1, 5, 20, 30, 30, 61, 130, -200])))
        vid, seg = draw(st.integers(0, 3)), draw(st.integers(4, 6))
        lane, feet = draw(st.sampled_from([1, 1, 2, 4])), draw(st.sampled_from([0, 0, 9]))
        speed, to = draw(st.integers(0, 60)), draw(st.sampled_from([0, 0, 1]))
        found.append(line(time, vid, seg, feet, speed=speed, lane=lane, to=to))
    return found


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that four vehicles make a crowd, and two reports an accident."""
    monkeypatch.setattr(rules, "FREE_VEHICLES", 1)
    monkeypatch.setattr(rules, "STOPPED_AFTER", 2)


@pytest.mark.usefixtures("low_limits")
class TestPerMinute:
    @settings(max_examples=120)
    @given(lines=traffic(), seed=st.integers(0, 2**32))
    def test_any_order_of_batches_gives_what_the_reference_gives(self, lines: list[str], seed: int) -> None:
        assert run(hops_of(lines), Random(seed)) == reference.run(lines)["sink"]

    @settings(max_examples=60)
    @given(lines=traffic(), seed=st.integers(0, 2**32))
    def test_all_steps_in_one_query_give_the_same(self, lines: list[str], seed: int) -> None:
        assert run([Hop(together(), as_input(lines))], Random(seed)) == reference.run(lines)["sink"]

    def test_random_traffic_has_tolls_and_free_segments(self) -> None:
        """So the laws above are about something."""
        chance, due, free = Random(1), 0, 0
        for _ in range(40):
            places = [(chance.randrange(3), 4 + chance.randrange(2), chance.choice([1, 1, 4])) for _ in range(60)]
            lines = [line(600 + 15 * n, vid, seg, speed=20, lane=lane) for n, (vid, seg, lane) in enumerate(places)]
            rows = reference.run(lines)["sink"]
            assert run(hops_of(lines), chance) == rows
            due += sum(bool(row.toll) for row in rows)
            free += sum(row.toll == 0 and row.count is not None and row.lav is not None for row in rows)
        assert due > 50
        assert free >= 10


@pytest.mark.parametrize("seed", range(4))
def test_the_jam_gives_the_same_tolls_in_any_order(seed: int) -> None:
    assert run(hops_of(jam()), Random(seed)) == reference.run(jam())["sink"]


@settings(max_examples=80)
@given(lines=traffic(), seed=st.integers(0, 2**32))
def test_with_constant_load_batches_may_be_cut_anywhere(lines: list[str], seed: int) -> None:
    chance = Random(seed)
    previous = Hop(alone(operators.PREVIOUS_SPEED), as_input(lines))
    latest = Hop(alone(operators.LATEST_VALUES), previous.output)
    while waiting := [hop for hop in (previous, latest) if hop.behind]:
        chance.choice(waiting).batch(chance)
    found = [reference.Lav(*(row[name] for name in reference.Lav._fields)) for row in latest.output]
    assert sorted(found) == reference.latest_values(reference.previous_speed(reference.dispatcher(lines)))


def test_memories_are_as_large_as_the_vehicles_of_two_minutes() -> None:
    """1,000 vehicles send one report each, 20 of them in a minute."""
    hops = hops_of([line(3 * vid, vid, 5) for vid in range(1000)])
    run(hops, Random(0))
    average, last, count, toll = (hop.memory((0, 0)) for hop in hops)
    assert len(average[1]) <= 20
    assert len(count[1]) <= 20
    assert len(last[0]) == rules.LAV_MINUTES
    assert len(toll.vehicles) <= 40
    assert [len(rows) for rows in toll.waiting] == [0, 0, 0]


def test_reports_wait_until_both_tables_are_complete() -> None:
    hops = hops_of([line(600, 1, 5), line(660, 1, 6), line(661, 1, 7)])
    average, last, count, toll = hops
    chance = Random(0)

    def read_all(hop: Hop) -> list[tuple[str, int]]:
        done = len(hop.output)
        while hop.behind:
            hop.batch(chance)
        return [(rules.KINDS[row["kind"] - 1], row["id"]) for row in hop.output[done:] if "kind" in row]

    assert read_all(toll) == [("pos", 0)]
    read_all(count)
    assert read_all(toll) == []
    read_all(average)
    read_all(last)
    assert read_all(toll) == [("las", 1), ("cv", 1), ("pos", 1), ("pos", 2)]


def test_minutes_end_where_the_minute_changes_or_time_goes_back() -> None:
    rows = arrays.filled(arrays.REPORT, 5, minute=[1, 1, 1, 2, 4], time=[10, 30, 20, 70, 200])
    parts = [(len(part), ended) for part, ended in arrays.by_minutes(rows, None)]
    assert parts == [(2, None), (1, 1), (1, 1), (1, 2)]
    assert [ended for _, ended in arrays.by_minutes(rows, (1, 5))] == [None, 1, 1, 2]
    assert [ended for _, ended in arrays.by_minutes(rows, (7, 400))] == [7, 1, 1, 2]
    assert list(arrays.by_minutes(rows[:0], (1, 5))) == []


def test_counts_wait_for_the_end_of_the_minute() -> None:
    reports = arrays.filled(arrays.REPORT, 51, id=range(51), minute=1, time=0, seg=3, vid=range(51))
    counts, memory = keyed.count_vehicles((0, 0), None, reports)
    assert len(counts) == 0
    later = arrays.filled(arrays.REPORT, 1, id=51, minute=2, time=60, seg=3, vid=1)
    counts, _ = keyed.count_vehicles((0, 0), memory, later)
    assert [(row["id"], row["minute"], row["seg"], row["count"]) for row in counts] == [(51, 1, 3, 51)]
