"""Reads a query's checkpoint folder: which batches Spark has planned and committed, and the offsets of each.

Spark writes `offsets/N` before batch N begins and `commits/N` when it is done.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path


def last_planned(checkpoint: Path) -> int:
    """The number of the last batch that Spark has planned, -1 before the first."""
    return _last(checkpoint / "offsets")


def last_committed(checkpoint: Path) -> int:
    """The number of the last batch that Spark has committed, -1 before the first."""
    return _last(checkpoint / "commits")


def planned(checkpoint: Path, batch_id: int, topic: str) -> dict[int, int] | None:
    """The end offsets of a batch in a topic, which Spark writes when it plans the batch; None without such a batch."""
    with suppress(FileNotFoundError):
        for line in (checkpoint / "offsets" / str(batch_id)).read_text("utf-8").splitlines()[1:]:
            with suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and isinstance(found.get(topic), dict):
                    return {int(partition): int(offset) for partition, offset in found[topic].items()}
    return None


def done_up_to(checkpoint: Path, topic: str) -> dict[int, int] | None:
    """The end offsets of a query's last committed batch in a topic; None without such a batch."""
    done = last_committed(checkpoint)
    return planned(checkpoint, done, topic) if done >= 0 else None


def remove_torn(checkpoint: Path) -> None:
    """Remove the unfinished file of a first batch, which a killed process left: Spark refuses to start with it."""
    if last_planned(checkpoint) < 0:
        for folder in ("offsets", "commits"):
            for file in (checkpoint / folder).glob(".*.tmp"):
                file.unlink(missing_ok=True)


def _last(folder: Path) -> int:
    if not folder.is_dir():
        return -1
    return max((int(file.name) for file in folder.iterdir() if file.name.isdecimal()), default=-1)
