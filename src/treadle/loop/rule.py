"""The state of a binding in a running loop: its engines, the samples of its last decision, and its failures."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treadle.loop.binding import Binding
from treadle.loop.knob_controller import AppliedChanges, KnobController
from treadle.loop.knob_targets import KnobTargets, View
from treadle.loop.records import DecisionBatch
from treadle.loop.stats import Stats
from treadle.loop.trouble import Trouble
from treadle.loop.watch import Watch
from treadle.model import Bools
from treadle.values import Schedule, Snapshot

log = logging.getLogger("treadle.loop")

SLIVER = 1e-6
"""The share of a period by which a round may start early."""


@dataclass(eq=False)
class Rule:
    """A binding in a running loop: when it is due, its engines, and what its last decision was based on."""

    number: int
    binding: Binding
    before: tuple[Binding, ...]
    """Earlier bindings of the same knob, which have precedence."""
    watches: tuple[Watch, ...]
    trouble: Trouble
    due: float = math.nan
    controllers: dict[tuple[str, str], KnobController] = field(default_factory=dict)
    """By engine and knob."""
    view: View | None = None
    mine: Bools = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    seen: tuple[int, ...] | None = None
    """Number of samples of each engine at the last decision; None to decide again even without new samples."""
    took: tuple[float, float] = (0.0, 0.0)
    """Seconds that the last decision took, and seconds that it took to apply it."""

    @classmethod
    def of(cls, number: int, bindings: Sequence[Binding], watches: Iterable[Watch], longest_pause: float) -> Rule:
        """Make the rule for `bindings[number]`; `watches` are those of the engines that can serve it."""
        binding = bindings[number]
        before = tuple(other for other in bindings[:number] if other.knob == binding.knob)
        trouble = Trouble(binding.where, binding.period, longest_pause)
        return cls(number, binding, before, tuple(watches), trouble)

    def takes_turn(self, now: float, stats: Stats, *, force: bool) -> bool:
        """Return whether it is to run now, since it is due or by `force`, and set when it is due next.

        A rule that is due keeps its times, so missed periods are skipped. A forced one is due again after one period.
        """
        period = self.binding.period
        if math.isnan(self.due):
            self.due = now
        if self.due > now + SLIVER * period:
            if force:
                self.due = now + period
            return force
        missed = math.floor((now - self.due) / period + SLIVER)
        stats.skipped += missed
        self.due += (missed + 1) * period
        return True

    def put_off(self, until: float) -> None:
        """Move the due time by whole periods, so that it is not before `until`."""
        if self.due < until:
            self.due += math.ceil((until - self.due) / self.binding.period - SLIVER) * self.binding.period

    def rest(self) -> None:
        """Let the policy save what it keeps on disk; a failure does not concern the round, nor the end of the loop."""
        try:
            self.binding.policy.rest()
        except Exception as error:
            log.warning("%s could not save what it keeps: %s", self.binding.where, error)

    def rebind(self, binding: Binding) -> Trouble:
        """Replace the binding; failures of the policy before, and the pause after them, do not concern the new one."""
        if binding.policy is not self.binding.policy:
            self.rest()
        self.binding, self.seen, self.view = binding, None, None
        self.trouble = Trouble(self.binding.where, self.binding.period, self.trouble.longest)
        return self.trouble

    def set_period(self, seconds: float, now: float) -> None:
        """Decide now, and then every so many seconds."""
        self.binding, self.due = replace(self.binding, period=seconds), now
        self.trouble.pause = seconds

    def looks(self) -> tuple[int, ...]:
        return tuple([watch.looks for watch in self.watches])

    def is_settled(self) -> bool:
        """Whether there is no new sample to decide on, and nothing left to do for the last decision."""
        if not self.watches:
            return True
        return self.seen is not None and self.seen == self.looks() and all(watch.fresh for watch in self.watches)

    def batch(
        self,
        watch: Watch,
        aim: KnobTargets,
        turned: AppliedChanges,
        schedule: Schedule,
        snapshot: Snapshot,
        now: float,
    ) -> DecisionBatch:
        """Return what was changed at a knob, with the reason and the metrics on which the policy decided."""
        policy, rows, ids = self.binding.policy, aim.rows[turned.at], snapshot.topology.ids
        reason = schedule.reason
        metrics = {}
        if turned.back:
            reason = turned.back
        else:
            metrics = {name: snapshot.columns[name][rows] for name in policy.needs if name in snapshot}
        return DecisionBatch(
            now,
            watch.name,
            policy.name,
            reason,
            turned.changes.alone(),
            [ids[row] if row >= 0 else "" for row in rows.tolist()],
            aim.priority[turned.at],
            metrics,
            turned.failures,
        )
