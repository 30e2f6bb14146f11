"""What a running pipeline can be asked over its control socket; how requests come and go is `ctl`'s business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.pipelines.runner import Run

LONGEST_DRAIN = 3600.0


def of(run: Run) -> dict[str, Callable[..., object]]:
    """Command -> what answers it, with the command's arguments by name."""

    def policy(name: str | None = None) -> str:
        if name is not None:
            run.set_policy(name)
        return run.policy

    def slots(count: int | None = None) -> int:
        if count is not None:
            run.set_slots(count)
        return run.gate.slots

    def stop(drain: bool = False) -> bool:
        if drain:
            run.drain(LONGEST_DRAIN)
        run.end()
        return True

    return {"policy": policy, "slots": slots, "status": run.status, "stop": stop}
