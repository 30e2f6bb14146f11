"""Chooses which instances leave a worker that lacks CPU, and where they go (Stream-Economics, Alg. 2 and section 4).

Instances move only to workers with room for them. Where the paper's listing and its text differ, the text holds: the
least important are candidates first. `relief` goes beyond the paper: it gives a new worker something to do before any
minimum is in danger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.model import Bools, Floats, Ints


def leavers(lacking: float, least: Floats, priority: Floats) -> list[int]:
    """Alg. 2: return the positions of the instances that leave one worker, so that `lacking` cores are released.

    Candidates are all instances of the lowest priorities, as many priorities as are needed. A candidate stays if the
    others release enough; the highest priority and the largest need are tried first. So small and unimportant instances
    leave.
    """
    chosen = np.zeros(len(least), dtype=np.bool_)
    released = 0.0
    for each in np.unique(priority):
        if released >= lacking:
            break
        chosen |= priority == each
        released = float(least[chosen].sum())
    leaving: list[int] = []
    for position in np.lexsort((-least, -priority)).tolist():
        if not chosen[position]:
            continue
        if released - least[position] >= lacking:
            released -= least[position]
        elif least[position] > 0.0:
            leaving.append(position)
    return leaving


def best_worker(free: Floats, needed: float, allowed: Bools, preferred: Sequence[int] = ()) -> int | None:
    """Section 4: the worker with most CPU left, a preferred one if any has enough; None if no worker has enough."""
    wished = [worker for worker in preferred if allowed[worker] and free[worker] >= needed]
    if wished:
        return max(wished, key=lambda worker: free[worker])
    open_to = np.where(allowed, free, -np.inf)
    best = int(open_to.argmax())
    return best if open_to[best] >= needed else None


def place(needed: Floats, free: Floats, preferred: Sequence[Sequence[int]] = ()) -> Ints:
    """Section 4, for several instances: each in turn to the worker with most CPU left, even if that is not enough."""
    left = free.copy()
    found = np.empty(len(needed), dtype=np.int64)
    for number, need in enumerate(needed.tolist()):
        wishes = preferred[number] if number < len(preferred) else ()
        wished = [worker for worker in wishes if left[worker] >= need]
        found[number] = max(wished, key=lambda w: left[w]) if wished else int(left.argmax())
        left[found[number]] -= need
    return found


def relief(
    whole: Floats, least: Floats, worker: Ints, available: Floats, *, worth: float = 0.1
) -> tuple[int, int, float] | None:
    """Return the move that raises the CPU in use most, as (instance, worker, cores); None below `worth` cores.

    By instance: the CPU for its `whole` input and the `least` that it must have. The target must have room for the
    `least` of all its instances, unless it has had none.
    """
    count = len(available)
    demand = np.bincount(worker, weights=whole, minlength=count)
    minima = np.bincount(worker, weights=least, minlength=count)
    served = np.minimum(demand, available)
    left = np.minimum(demand[worker] - whole, available[worker]) - served[worker]
    there = np.minimum(demand[None, :] + whole[:, None], available[None, :]) - served[None, :]
    gain = left[:, None] + there
    possible = (minima[None, :] + least[:, None] <= available[None, :]) | (demand[None, :] == 0.0)
    possible[np.arange(len(worker)), worker] = False
    gain = np.where(possible, gain, -np.inf)
    if not gain.size or gain.max() < worth:
        return None
    best = np.argwhere(gain >= gain.max() - 1e-9)
    instance, target = min(best.tolist(), key=lambda pair: (whole[pair[0]], pair))
    return int(instance), int(target), float(gain[instance, target])
