"""What people are shown of an attachment."""

from __future__ import annotations

import os

import numpy as np

from treadle.attachment.shown import report
from treadle.model import Instance, Operator, Query, ThreadRef, Topology
from treadle.values import Schedule, Snapshot

OPERATORS = (Operator("source"), Operator("counted", ("source",)), Operator("guessed", ("counted",)))


def test_a_queue_is_an_estimate_where_the_engine_says_so_unless_what_waits_outside_is_shown() -> None:
    thread = (ThreadRef(os.getpid(), os.getpid()),)
    instances = tuple(Instance("q", (operator.name,), threads=thread) for operator in OPERATORS)
    columns = {"queue": np.array([1.0, 2.0, 3.0]), "external_queue": np.array([9.0, np.nan, np.nan])}
    estimated = {"queue": np.array([True, False, True])}
    snapshot = Snapshot(Topology((Query("q", OPERATORS),), instances), 0.0, columns, estimated=estimated)
    rows = report.rows(snapshot, Schedule(np.zeros(3)), report.Changes())
    assert [(row["queue"], row["queue_is_estimate"]) for row in rows] == [(9.0, False), (2.0, False), (3.0, True)]
