"""What a running pipeline can be asked over its control socket; how requests come and go is `ctl`'s business."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.pipelines.run.run import Run

LONGEST_DRAIN = 3600.0


def of(run: Run) -> dict[str, Callable[..., object]]:
    """Command -> what answers it, with the command's arguments by name."""

    def stop(drain: bool = False) -> bool:
        if drain:
            run.drain(LONGEST_DRAIN)
        run.end()
        return True

    return {**run.steering.commands(), "status": run.status, "stop": stop}
