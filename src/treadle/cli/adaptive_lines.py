"""Lines on an adaptive policy in the tables of `treadle ctl status` and `treadle run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.text import visible


def lines(status: Mapping[str, Any]) -> list[str]:
    """Return lines with the current candidate and its reason, the objectives, and all candidates.

    Without a learner there are none.
    """
    found = status.get("adaptive")
    if not found:
        return []
    known = [
        f"{name} {'not measured' if each['score'] is None else format(each['score'], '.2f')} ({each['chosen']}x)"
        for name, each in found["candidates"].items()
    ]
    first = f"adaptive: {found['in_charge'] or 'nobody yet'} in charge ({found['why']})"
    said = [first, f"objectives: {', '.join(found['objectives'])}", f"scores (times chosen): {', '.join(known)}"]
    if found["learned"]:
        said.append(f"learned: {found['learned']}")
    return [visible(each) for each in said]
