"""The cores that may be used beside other processes, and the shortages that are logged."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.decide.quality.controller import Short
from treadle.decide.quality.room import FAIR, HEADROOM, MORE, ROOMY, ceilings, room
from treadle.decide.quality.shortages import Shortages

CORES = st.floats(0.0, 8.0)


def test_what_others_leave_is_used_but_for_some_headroom() -> None:
    assert room(4.0, 0.0, 0.0, behind=False) == pytest.approx(4.0 * HEADROOM)
    assert room(4.0, 1.0, 1.5, behind=True) == pytest.approx(4.0 * HEADROOM - 1.5)


def test_where_others_take_everything_what_is_used_now_is_kept_up_to_a_fair_share() -> None:
    assert room(4.0, 1.0, 4.0, behind=True) == pytest.approx(HEADROOM)
    assert room(4.0, 1.0, 4.0, behind=False) == pytest.approx(MORE)
    assert room(4.0, 3.0, 4.0, behind=False) == pytest.approx(4.0 * FAIR)
    assert room(4.0, 0.0, 4.0, behind=False) == 0.0


@given(CORES, CORES, CORES, st.booleans())
def test_more_work_of_others_never_means_more_room_and_less_is_never_below_what_they_leave(
    ours: float, others: float, more: float, behind: bool
) -> None:
    now = room(8.0, ours, others, behind=behind)
    assert room(8.0, ours, others + more, behind=behind) <= now
    assert now >= HEADROOM * 8.0 - others
    assert now >= 0.0
    assert now <= max(HEADROOM * 8.0 - others, FAIR * 8.0)


def test_a_task_can_use_what_it_would_use_if_it_worked_all_the_time() -> None:
    limits = ceilings(np.array([0.2, 0.9, 0.3]), np.array([0.5, 1.0, 0.0]), 4.0, ROOMY * 4.0 - 0.01)
    assert limits.tolist() == pytest.approx([HEADROOM * 0.4, HEADROOM * 0.9, 4.0])


def test_where_the_machine_is_busy_nothing_is_known_of_what_a_task_could_use() -> None:
    assert ceilings(np.array([0.2, 0.9]), np.array([0.5, 1.0]), 4.0, ROOMY * 4.0).tolist() == [4.0, 4.0]


def test_a_shortage_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    shortages = Shortages("query", logging.getLogger("treadle.test.shortages"))
    a, b = (Short(name, 0.5, 0.3, 0.2, 0) for name in "ab")
    for short in ((), (b, a), (a,), (a._replace(gets=0.1),), (), (a,)):
        shortages.tell(short)
    assert [record.getMessage() for record in caplog.records] == [
        b.told("query"),
        a.told("query"),
        "query 'b' has its minimum again",
        "query 'a' has its minimum again",
        a.told("query"),
    ]
    assert [vars(record)["query"] for record in caplog.records] == ["b", "a", "b", "a", "a"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}
