"""What a decision says of itself, and how many are kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from treadle.enforce import Changes, Failure
from treadle.loop.records import Decision, DecisionBatch, DecisionLog, log_changes
from treadle.model import Floats, ThreadRef


def decision(**other: object) -> Decision:
    plain = {
        "time": 1.0,
        "engine": "mem",
        "policy": "fcfs",
        "knob": "nice",
        "target": "q",
        "instance": "mem:q.a[0]",
        "before": 3.0,
        "after": -5.0,
        "reason": "oldest first",
        "priority": 0.123456789,
        "metrics": {"age": 2.5, "queue": 1234567.0},
    }
    return Decision(**{**plain, **other})  # type: ignore[arg-type]


def batch(*after: float, time: float = 0.0, failures: int = 0, knob: str = "nice") -> DecisionBatch:
    count = len(after)
    targets: Sequence[str] = [f"t{number}" for number in range(count)]
    changes = Changes(knob, targets, np.arange(count), np.full(count, np.nan), np.array(after, dtype=np.float64))
    failed = tuple(Failure("x", knob, 1.0, OSError("no")) for _ in range(failures))
    ids = [f"i{number}" for number in range(count)]
    number = np.arange(count, dtype=np.float64)
    metrics: dict[str, Floats] = {"queue": number + 9.0 * number, "age": number}
    return DecisionBatch(time, "mem", "fcfs", "oldest first", changes, ids, number + number, metrics, failed)


def test_a_decision_is_a_line_with_what_from_to_and_why() -> None:
    assert str(decision()) == (
        "nice of q: 3.0 -> -5.0, fcfs: oldest first; priority 0.123457 (age 2.5, queue 1.23457e+06)"
    )
    of_thread = decision(target=ThreadRef(7), before=None, reason="", metrics={})
    assert str(of_thread) == "nice of thread 7 of mem:q.a[0]: ? -> -5.0, fcfs: decided; priority 0.123457"


def test_a_batch_has_a_decision_for_each_change_with_its_own_numbers() -> None:
    first, second = batch(1.0, 2.0, time=5.0)
    assert (first.target, first.instance, first.after, first.priority) == ("t0", "i0", 1.0, 0.0)
    assert (second.target, second.instance, second.after, second.priority) == ("t1", "i1", 2.0, 2.0)
    assert (second.time, second.engine, second.policy, second.knob) == (5.0, "mem", "fcfs", "nice")
    assert (second.before, second.reason, second.metrics) == (None, "oldest first", {"queue": 10.0, "age": 1.0})
    assert (batch(1.0).knob, len(batch()), len(batch(1.0, 2.0))) == ("nice", 0, 2)


def test_a_log_keeps_whole_batches_up_to_its_size_and_the_last_in_any_case() -> None:
    log = DecisionLog(4)
    assert log.append(batch()) == 0
    assert (len(log), len(log.batches)) == (0, 0)
    for time, count in ((1.0, 2), (2.0, 2)):
        assert log.append(batch(*[0.0] * count, time=time)) == count
    assert len(log) == 4
    log.append(batch(0.0, time=3.0))
    assert (len(log), [each.time for each in log]) == (3, [2.0, 2.0, 3.0])
    log.append(batch(*[0.0] * 9, time=4.0))
    assert (len(log), len(log.batches)) == (9, 1)
    log.append(batch(0.0, time=5.0))
    assert [each.time for each in log] == [5.0]
    assert len(log) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_round_is_logged_in_a_line_with_what_a_log_collector_needs(
    caplog: pytest.LogCaptureFixture, dry_run: bool
) -> None:
    caplog.set_level(logging.INFO, "treadle.loop")
    batches = [batch(1.0, 2.0, failures=1), batch(failures=2), batch(3.0, knob="rank")]
    log_changes(3, batches, dry_run=dry_run)
    (record,) = caplog.records
    begin = "would change" if dry_run else "changed"
    assert record.getMessage() == (
        f"{begin} 3 values: 2 nice of mem by fcfs (oldest first); 1 rank of mem by fcfs (oldest first)"
    )
    found = vars(record)
    assert (found["changes"], found["failures"], found["dry_run"]) == (3, 3, dry_run)
    assert found["batches"] == [
        ("mem", "nice", "fcfs", "oldest first", 2),
        ("mem", "rank", "fcfs", "oldest first", 1),
    ]


def test_at_debug_each_decision_follows(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "treadle.loop")
    log_changes(1, [batch(1.0)], dry_run=False)
    (_, record) = caplog.records
    assert record.levelname == "DEBUG"
    assert record.getMessage() == str(vars(record)["decision"]) == str(next(iter(batch(1.0))))
