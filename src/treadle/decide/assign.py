"""Assigns operators to processing threads: Haren's inter-thread scheduling function f (section 4.1).

An assigner is a policy that returns thread numbers 0..P-1 as priorities, for the `owner` scale. The number of threads
may change while it runs. Another policy orders the operators within a thread (function g).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from treadle.decide.policy import Policy
from treadle.errors import ConfigError
from treadle.model import Bools, Floats, Ints
from treadle.values import Schedule, Snapshot

HORIZON = 1.0
"""Seconds within which waiting tuples should be processed: so they add to the load of their operator."""


class Assigner(Policy):
    """Base class of assigners: holds the number of threads; a subclass assigns operators to them."""

    def __init__(self, threads: int) -> None:
        self.set_threads(threads)

    def set_threads(self, threads: int) -> None:
        """Set Haren's P, the number of threads, from the next decision on."""
        if threads < 1:
            raise ConfigError(f"can't assign to {threads} threads", where=self.name, remedy="use 1 or more")
        self.threads = threads


class AssignRandom(Assigner):
    """Random assignment, drawn anew at each decision; numbers of operators per thread differ by at most one."""

    name = "assign-random"

    def __init__(self, threads: int, rng: np.random.Generator) -> None:
        super().__init__(threads)
        self.rng = rng

    def decide(self, snapshot: Snapshot) -> Schedule:
        drawn = self.rng.permutation(len(snapshot.topology)) % self.threads
        return _schedule(drawn, f"drawn for {self.threads} threads")

    def state(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


class AssignRoundRobin(Assigner):
    """Assigns all operators of a query to one thread, and queries to threads in turn."""

    name = "assign-round-robin"

    def decide(self, snapshot: Snapshot) -> Schedule:
        return _schedule(snapshot.topology.query_of % self.threads, f"queries in turn on {self.threads} threads")


class AssignLoadBalance(Assigner):
    """Assigns the heaviest operators first, each to the least loaded thread, and spreads those of unknown load."""

    name = "assign-load-balance"
    wants = ("cost", "rate", "queue")

    def decide(self, snapshot: Snapshot) -> Schedule:
        load = load_of(snapshot)
        owner = _place(load, np.zeros(self.threads))
        busy = _busy(np.nan_to_num(load, nan=0.0), owner, self.threads)
        return _schedule(owner, f"imbalance {_imbalance(busy):.2f} on {self.threads} threads")


class AssignAdaptive(Assigner):
    """Keeps the assignment until a thread has more than `threshold` times the mean load, then moves few operators.

    Moves bring the highest load down to `settle` times the mean, so that operators don't move back and forth while a
    load swings around the threshold. Where no assignment reaches that (one operator may need more than a thread's mean
    load), operators move only if the highest load falls to `threshold` times the mean, or below `settle / threshold`
    of its present value.
    """

    name = "assign-adaptive"
    wants = ("cost", "rate", "queue")

    def __init__(self, threads: int, *, threshold: float = 1.2, settle: float = 1.1) -> None:
        if not 1.0 <= settle < threshold:
            raise ConfigError(
                f"settle can't be {settle:g} with threshold {threshold:g}",
                where=self.name,
                remedy="use 1 or more for both, and settle below threshold",
            )
        super().__init__(threads)
        self.threshold = threshold
        self.settle = settle
        self._ids: tuple[str, ...] = ()
        self._owner = np.empty(0, dtype=np.int64)

    def decide(self, snapshot: Snapshot) -> Schedule:
        load = load_of(snapshot)
        owner = self._kept(snapshot.topology.ids)
        new = owner < 0
        weighed = _estimated(load)
        if new.any():
            owner[new] = _place(load[new], _busy(weighed[~new], owner[~new], self.threads))
        before = _imbalance(_busy(weighed, owner, self.threads))
        reason = f"imbalance {before:.2f}, kept"
        if before > self.threshold:
            balanced = self._rebalanced(weighed, owner)
            after = _imbalance(_busy(weighed, balanced, self.threads))
            reason = f"imbalance {before:.2f} -> {after:.2f}, moved {np.count_nonzero(balanced != owner)}"
            owner = balanced
        self._ids, self._owner = snapshot.topology.ids, owner
        return _schedule(owner, f"{reason}, placed {np.count_nonzero(new)} new")

    def state(self) -> dict[str, Any]:
        return {"owner": dict(zip(self._ids, self._owner.tolist(), strict=True))}

    def load(self, state: dict[str, Any]) -> None:
        self._ids = tuple(state["owner"])
        self._owner = np.array(list(state["owner"].values()), dtype=np.int64)

    def _kept(self, ids: tuple[str, ...]) -> Ints:
        """Return the last thread of each of these instances, -1 where there is none or it no longer exists."""
        if ids == self._ids:
            owner = self._owner.copy()
        else:
            last = dict(zip(self._ids, self._owner.tolist(), strict=True))
            owner = np.array([last.get(name, -1) for name in ids], dtype=np.int64)
        owner[owner >= self.threads] = -1
        return owner

    def _rebalanced(self, load: Floats, owner: Ints) -> Ints:
        """Assign operators of the busiest threads anew, more in each attempt, until the highest load is low enough.

        The last attempt assigns all operators. The highest load can't fall below that of the heaviest operator.
        """
        busy = _busy(load, owner, self.threads)
        mean = float(busy.mean())
        goal = max(self.settle * mean, float(load.max()))
        best, best_peak = owner, float(busy.max())
        for level in (goal, mean, 0.75 * mean, 0.5 * mean, 0.0):
            off = _taken_off(load, owner, busy, level)
            tried = owner.copy()
            tried[off] = _place(load[off], _busy(load[~off], owner[~off], self.threads))
            peak = float(_busy(load, tried, self.threads).max())
            if self._is_worth(peak, best_peak, mean):
                best, best_peak = tried, peak
            if peak <= goal:
                break
        return best

    def _is_worth(self, peak: float, before: float, mean: float) -> bool:
        """Return whether `peak` is worth a move: at most `settle` or `threshold` times the mean, which `before` is not.

        A fall below `settle / threshold` times `before` is worth one too.
        """
        passes = any(peak <= line * mean < before for line in (self.settle, self.threshold))
        return passes or peak < before * self.settle / self.threshold


ASSIGNERS: Mapping[str, Callable[[int, np.random.Generator], Assigner]] = {
    "random": AssignRandom,
    "round-robin": lambda threads, _: AssignRoundRobin(threads),
    "load-balance": lambda threads, _: AssignLoadBalance(threads),
    "adaptive": lambda threads, _: AssignAdaptive(threads),
}


def assigner(name: str, threads: int, rng: np.random.Generator) -> Assigner:
    """Create an assigner by its name, with or without the prefix `assign-`."""
    make = ASSIGNERS.get(name.removeprefix("assign-"))
    if make is None:
        raise ConfigError(f"unknown assignment '{name}'", where="assign", remedy=f"known: {', '.join(ASSIGNERS)}")
    return make(threads, rng)


def _schedule(owner: Ints, reason: str) -> Schedule:
    return Schedule(owner.astype(np.float64), reason=reason)


def load_of(snapshot: Snapshot) -> Floats:
    """Return the load of each operator in seconds of work per second; NaN where it is unknown or not finite.

    Work is what was processed: the time spent (`busy`, with the fixed cost of each batch), or else cost times rate. An
    overloaded thread processes no more than a fully used one, so waiting tuples count too, as if they had to be done
    within `HORIZON`.
    """
    if "cost" not in snapshot or not ("busy" in snapshot or "rate" in snapshot):
        return np.full(len(snapshot.topology), np.nan)
    cost = snapshot["cost"]
    waiting = np.nan_to_num(snapshot["queue"], posinf=0.0) if "queue" in snapshot else np.zeros(len(cost))
    with np.errstate(all="ignore"):
        if "busy" in snapshot:
            load = snapshot["busy"] + np.where(waiting > 0, cost * waiting / HORIZON, 0.0)
        else:
            load = cost * (snapshot["rate"] + waiting / HORIZON)
    return np.where(np.isfinite(load) & (load >= 0), load, np.nan)


def _estimated(load: Floats) -> Floats:
    """Replace unknown loads by the mean of the known ones, or all loads by 1 if no known load is above 0."""
    known = load[~np.isnan(load)]
    if not known.any():
        return np.ones(len(load))
    return np.where(np.isnan(load), known.mean(), load)


def _busy(load: Floats, owner: Ints, threads: int) -> Floats:
    return np.bincount(owner, weights=load, minlength=threads).astype(np.float64)


def _imbalance(busy: Floats) -> float:
    """Return the highest load divided by the mean; 1 is perfect."""
    mean = float(busy.mean())
    return float(busy.max()) / mean if mean else 1.0


def _place(load: Floats, busy: Floats) -> Ints:
    """Return a thread for each operator: longest processing time first, on threads with a load of `busy` already.

    Operators with zero or unknown load are spread evenly, beginning with the least busy thread.
    """
    owner = np.empty(len(load), dtype=np.int64)
    heavy = np.flatnonzero(load > 0)
    heavy = heavy[np.argsort(-load[heavy], kind="stable")]
    heap = [(taken, thread) for thread, taken in enumerate(busy.tolist())]
    heapq.heapify(heap)
    chosen: list[int] = []
    for more in load[heavy].tolist():  # one by one, since each choice depends on the last
        taken, thread = heap[0]
        chosen.append(thread)
        heapq.heapreplace(heap, (taken + more, thread))
    owner[heavy] = chosen
    in_turn = np.array([thread for _, thread in sorted(heap)], dtype=np.int64)
    light = np.flatnonzero(~(load > 0))
    owner[light] = in_turn[np.arange(len(light)) % len(busy)]
    return owner


def _taken_off(load: Floats, owner: Ints, busy: Floats, level: float) -> Bools:
    """Return a mask of the fewest operators to take off the threads so that no thread has a load above `level`.

    The heaviest operators of a thread are taken off first; the last one is the lightest that is enough.
    """
    off = np.zeros(len(load), dtype=np.bool_)
    for thread in np.flatnonzero(busy > level):
        rows = np.flatnonzero((owner == thread) & (load > 0))
        rows = rows[np.argsort(-load[rows], kind="stable")]
        sums = np.cumsum(load[rows])
        excess = busy[thread] - level
        last = min(int(np.searchsorted(sums, excess)), len(rows) - 1)
        missing = excess - (sums[last - 1] if last else 0.0)
        enough = int(np.searchsorted(-load[rows], -missing, side="right")) - 1
        off[rows[:last]] = True
        off[rows[max(enough, last)]] = True
    return off
