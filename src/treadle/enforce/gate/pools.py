"""A ladder of Spark's FAIR pools with weights that double from rung to rung: Spark's own way to prefer some queries.

The weight of a pool can't be changed, but each batch of a query may run in another pool. So a priority becomes a rung.
"""

from __future__ import annotations

import os
from pathlib import Path

from treadle.enforce import Target, Value, label
from treadle.enforce.knob import Per
from treadle.errors import ConfigError, TargetGone
from treadle.jars import home
from treadle.linux.files.trusted import make_folder

LADDER = tuple(f"rung-{number}" for number in range(6))
"""The names of the pools, lowest rung first; the weight of rung n is 2 to the power of n."""


def allocation_file() -> Path:
    """Write the file that defines the pools for Spark (`spark.scheduler.allocation.file`); return its path."""
    pools = "".join(
        f'  <pool name="{name}"><schedulingMode>FAIR</schedulingMode><minShare>0</minShare>'
        f"<weight>{2**rung}</weight></pool>\n"
        for rung, name in enumerate(LADDER)
    )
    path = home() / "pools.xml"
    text = f'<?xml version="1.0"?>\n<allocations>\n{pools}</allocations>\n'
    if not path.exists() or path.read_text("utf-8") != text:
        make_folder(path.parent)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    return path


class PoolKnob:
    """The knob `rung`: the pool of the ladder in which the next batch of a hop runs. The default is the lowest."""

    name = "rung"
    per: Per = "instance"

    def __init__(self) -> None:
        self._rungs: dict[str, float] = {}

    def register(self, hop: str) -> None:
        self._rungs.setdefault(hop, 0.0)

    def withdraw(self, hop: str) -> None:
        self._rungs.pop(hop, None)

    def pool(self, hop: str) -> str:
        return LADDER[int(self._rungs.get(hop, 0.0))]

    def read(self, target: Target) -> Value:
        try:
            return self._rungs[label(target)]
        except KeyError:
            raise TargetGone(f"'{label(target)}' no longer runs", where="pools") from None

    def write(self, target: Target, value: Value) -> None:
        self.read(target)
        if isinstance(value, str) or value not in range(len(LADDER)):
            raise ConfigError(f"there is no pool {value}", where="pools", remedy=f"use 0 to {len(LADDER) - 1}")
        self._rungs[label(target)] = float(value)
