"""Decision records: what was changed, from what to what, why, and on which metrics.

Records are kept as columns for each round and become objects only when they are read, so that writing them costs
little. They keep no reference to the topology: every round may have a new one, and Python's garbage collector has to
traverse everything that is kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.enforce import Changes, Failure, Target, Value, label
from treadle.model import Floats, ThreadRef

log = logging.getLogger("treadle.loop")


@dataclass(frozen=True, slots=True)
class Decision:
    """One change. For a group, instance and metrics are those of its most urgent member."""

    time: float
    engine: str
    policy: str
    knob: str
    target: Target
    instance: str
    before: Value | None
    after: Value
    reason: str
    priority: float
    metrics: Mapping[str, float]

    @property
    def why(self) -> str:
        values = ", ".join(f"{name} {value:.6g}" for name, value in self.metrics.items())
        return f"{self.policy}: {self.reason or 'decided'}; priority {self.priority:.6g}" + (values and f" ({values})")

    def __str__(self) -> str:
        before = "?" if self.before is None else self.before
        of = f" of {self.instance}" if isinstance(self.target, ThreadRef) else ""
        return f"{self.knob} of {label(self.target)}{of}: {before} -> {self.after}, {self.why}"


@dataclass(frozen=True)
class DecisionBatch:
    """The changes of one knob of one engine by one policy in one round."""

    time: float
    engine: str
    policy: str
    reason: str
    changes: Changes
    instances: Sequence[str]
    """For each change, the id of its instance; empty for a group that has no members any more."""
    priority: Floats
    metrics: Mapping[str, Floats] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    @property
    def knob(self) -> str:
        return self.changes.knob

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Decision]:
        names = tuple(self.metrics)
        values = [self.metrics[name].tolist() for name in names]
        for i, (change, instance, priority) in enumerate(
            zip(self.changes, self.instances, self.priority.tolist(), strict=True)
        ):
            metrics = {name: column[i] for name, column in zip(names, values, strict=True)}
            yield Decision(
                self.time,
                self.engine,
                self.policy,
                change.knob,
                change.target,
                instance,
                change.before,
                change.after,
                self.reason,
                priority,
                metrics,
            )


class DecisionLog:
    """The latest decisions, oldest first: at most `size`, but the last batch is always kept whole."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batches: deque[DecisionBatch] = deque()
        self._length = 0

    def append(self, batch: DecisionBatch) -> int:
        """Keep a batch, if anything changed; return the number of changes."""
        count = len(batch.changes.rows)
        if count:
            self.batches.append(batch)
            self._length += count
            while self._length > self.size and len(self.batches) > 1:
                self._length -= len(self.batches.popleft())
        return count

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Decision]:
        for batch in tuple(self.batches):  # another thread may read while the loop goes on
            yield from batch


def log_changes(count: int, batches: list[DecisionBatch], *, dry_run: bool) -> None:
    """Log one line for a round with changes, and at DEBUG one line for each decision."""
    changed = [batch for batch in batches if len(batch)]
    log.info(
        "%s %d values: %s",
        "would change" if dry_run else "changed",
        count,
        "; ".join(f"{len(b)} {b.knob} of {b.engine} by {b.policy} ({b.reason})" for b in changed),
        extra={
            "changes": count,
            "failures": sum(len(batch.failures) for batch in batches),
            "dry_run": dry_run,
            "batches": [(b.engine, b.knob, b.policy, b.reason, len(b)) for b in changed],
        },
    )
    if log.isEnabledFor(logging.DEBUG):
        for batch in changed:
            for decision in batch:
                log.debug("%s", decision, extra={"decision": decision})
