"""Who leaves a worker that can't pay for all minima, and where it goes (Stream-Economics, Alg. 2 and section 4).

It only moves to where there is room: a move that would make another worker short is none. Where the paper's listing and
its text differ, the text holds: the least important are candidates first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.model import Bools, Floats, Ints


def leavers(lacking: float, least: Floats, priority: Floats) -> list[int]:
    """Alg. 2, for the instances of one worker: positions of those that leave, so that `lacking` cores are released.

    First so many priorities, from the lowest, that they would do; then of these, from the highest priority and the
    largest, all that are not needed stay. So small and unimportant ones leave.
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
    """Section 4: the worker with most CPU left; one that is preferred as long as it has enough. None: nobody has."""
    wished = [worker for worker in preferred if allowed[worker] and free[worker] >= needed]
    if wished:
        return max(wished, key=lambda worker: free[worker])
    open_to = np.where(allowed, free, -np.inf)
    best = int(open_to.argmax())
    return best if open_to[best] >= needed else None


def place(needed: Floats, free: Floats, preferred: Sequence[Sequence[int]] = ()) -> Ints:
    """Section 4, for several at once: each in its turn to the worker with most left, also where that is not enough."""
    left = free.copy()
    found = np.empty(len(needed), dtype=np.int64)
    for number, need in enumerate(needed.tolist()):
        wishes = preferred[number] if number < len(preferred) else ()
        wished = [worker for worker in wishes if left[worker] >= need]
        found[number] = max(wished, key=lambda w: left[w]) if wished else int(left.argmax())
        left[found[number]] -= need
    return found
