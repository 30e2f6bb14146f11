"""What users see of an attachment: a row for each instance, with the scheduling of its threads and its last change.

It reads the last decision and the kernel's values for each thread; it decides and changes nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from treadle.attachment.policies.around import flat
from treadle.enforce import Target, label
from treadle.linux import stat
from treadle.loop import Decision
from treadle.model import Instance, ThreadRef
from treadle.values import Schedule, Snapshot


class Row(TypedDict):
    """What is shown of an instance: one stage of a query, or a service of the engine itself."""

    application: str
    query: str
    rule: str | None
    """The pattern of the rule that counts for the query."""
    operator: str
    index: int
    threads: list[dict[str, Any]]
    queue: float | None
    queue_is_estimate: bool
    """Whether the queue is estimated from how often the thread is found idle, since its rows are not counted."""
    latency: float | None
    """Seconds since the rows that it takes in now entered the system."""
    cost: float | None
    cpu: float | None
    wait: float | None
    priority: float | None
    change: str
    """The last change."""
    why: str
    changed: float | None
    """The time of the last change, on the clock of the loop."""


class Changes:
    """The last change of each target."""

    def __init__(self) -> None:
        self._last: dict[Target, Decision] = {}

    def add(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            self._last[decision.target] = decision

    def of(self, instance: Instance) -> Decision | None:
        """Return the last change of an instance's threads, or of the groups that they may be in."""
        operators = "+".join(instance.operators)
        groups = (flat(instance.query), flat(f"{instance.query}.{operators}"))
        found = [self._last[target] for target in (*instance.threads, *groups) if target in self._last]
        return max(found, key=lambda decision: decision.time, default=None)

    def keep(self, targets: Iterable[Target]) -> None:
        """Forget threads that are not among these targets."""
        there = set(targets)
        self._last = {t: change for t, change in self._last.items() if isinstance(t, str) or t in there}


def rows(
    snapshot: Snapshot,
    schedule: Schedule,
    changes: Changes,
    rule_of: Callable[[str], str | None] = lambda _: None,
) -> list[Row]:
    """Return a row for each instance that has threads now; `rule_of` returns the rule of a query."""
    topology = snapshot.topology
    changes.keep(topology.threads)
    priority = schedule.scalar
    estimated = snapshot.estimated.get("queue", np.zeros(len(topology), dtype=np.bool_))
    made: list[Row] = []
    for number, instance in enumerate(topology.instances):
        if not instance.threads:
            continue
        seen = {name: column[number].item() for name, column in snapshot.columns.items()}
        last = changes.of(instance)
        made.append(
            {
                "application": instance.engine,
                "query": instance.query,
                "rule": rule_of(instance.query),
                "operator": "+".join(instance.operators),
                "index": instance.index,
                "threads": [_thread(thread) for thread in instance.threads],
                "queue": _queue(seen),
                "queue_is_estimate": estimated[number].item() and _waits_inside(seen),
                "latency": _known(seen.get("latency")),
                "cost": _known(seen.get("cost")),
                "cpu": _known(seen.get("cpu")),
                "wait": _known(seen.get("wait")),
                "priority": _known(priority[number].item()),
                "change": told(last) if last else "",
                "why": why(last) if last else "",
                "changed": last.time if last else None,
            }
        )
    return made


def net(decisions: Iterable[Decision]) -> list[Decision]:
    """Return the net changes: for each target the last decision, as a change from its value before the first one."""
    first: dict[tuple[str, str, Target], Decision] = {}
    last: dict[tuple[str, str, Target], Decision] = {}
    for decision in decisions:
        key = (decision.engine, decision.knob, decision.target)
        first.setdefault(key, decision)
        last[key] = decision
    changed = [replace(decision, before=first[key].before) for key, decision in last.items()]
    return [decision for decision in changed if decision.before != decision.after]


def told(decision: Decision) -> str:
    """Describe a change in a few words."""
    of = "" if isinstance(decision.target, ThreadRef) else f" of {label(decision.target)}"
    return f"{decision.knob}{of} {' -> '.join(ends(decision))}"


def ends(decision: Decision) -> tuple[str, str]:
    """Return the old and the new value as text."""
    return "?" if decision.before is None else _value(decision.before), _value(decision.after)


def why(decision: Decision) -> str:
    """Give the reason of a change in a few words."""
    return f"{decision.policy}: {decision.reason or 'decided'}"


def record(decision: Decision) -> dict[str, Any]:
    """Return a change as values for JSON."""
    thread = decision.target if isinstance(decision.target, ThreadRef) else None
    return {
        "time": round(decision.time, 6),
        "application": decision.engine,
        "instance": decision.instance,
        "knob": decision.knob,
        "group": None if thread else decision.target,
        "pid": thread.pid if thread else None,
        "tid": thread.tid if thread else None,
        "thread": thread.name if thread else None,
        "from": decision.before if decision.before is None or decision.before == decision.before else None,
        "to": decision.after if decision.after != math.inf else "max",
        "why": decision.why,
    }


def standing(pid: int, tid: int) -> str:
    """Return how the kernel schedules a thread now: `nice -5`, `RR 12`, `batch nice 0`; "-" if it has ended."""
    try:
        fields = stat.read(pid, tid)
    except OSError:
        return "-"
    nice, realtime, policy = (int(fields[field]) for field in (stat.NICE, stat.REALTIME, stat.POLICY))
    if policy in (os.SCHED_RR, os.SCHED_FIFO):
        return f"{'RR' if policy == os.SCHED_RR else 'FIFO'} {realtime}"
    kind = {os.SCHED_BATCH: "batch ", os.SCHED_IDLE: "idle "}.get(policy, "")
    return f"{kind}nice {nice}"


def _thread(thread: ThreadRef) -> dict[str, Any]:
    return {
        "pid": thread.pid,
        "tid": thread.tid,
        "name": thread.name,
        "role": thread.role.value,
        "has": standing(thread.pid, thread.tid),
    }


def _waits_inside(seen: Mapping[str, float]) -> bool:
    """Whether the queue that is shown is inside of the engine, not in Kafka."""
    return _known(seen.get("external_queue")) is None and _known(seen.get("queue")) is not None


def _queue(seen: Mapping[str, float]) -> float | None:
    """Return the external queue (of a source), if it is known, otherwise the input queue."""
    outside = _known(seen.get("external_queue"))
    return _known(seen.get("queue")) if outside is None else outside


def _known(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
