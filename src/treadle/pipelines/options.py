"""How a pipeline is run: what `p.run` and `treadle run` take, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treadle.broker import HOST, PORT
from treadle.durations import seconds
from treadle.errors import ConfigError
from treadle.pipelines.channels.embedded import check_limit

ENFORCE = ("gate", "pools", "none")
CHANNELS = ("embedded", "kafka")


@dataclass(frozen=True)
class Options:
    """How a pipeline is run. `period` and `batch` are in seconds; `kafka` is where the brokers answer, as host:port."""

    policy: str = "multi-class"
    layout: str = "hops"
    slots: int | Literal["auto"] = "auto"
    enforce: str = "gate"
    period: float = 0.1
    batch: float = 0.5
    patience: float = 5.0
    express: int = 1
    limit_rows: int = 1_000_000
    retries: int = 3
    channels: str = "embedded"
    kafka: str = f"{HOST}:{PORT}"

    def __post_init__(self) -> None:
        if self.enforce not in ENFORCE:
            raise ConfigError(f"enforce can't be {self.enforce!r}", remedy=f"use one of {', '.join(ENFORCE)}")
        if self.channels not in CHANNELS:
            raise ConfigError(f"channels can't be {self.channels!r}", remedy=f"use one of {', '.join(CHANNELS)}")
        if not isinstance(self.kafka, str) or ":" not in self.kafka:
            raise ConfigError(f"kafka can't be {self.kafka!r}", remedy=f"name a broker as host:port, as {HOST}:{PORT}")
        if self.slots != "auto" and (isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1):
            raise ConfigError(f"slots can't be {self.slots!r}", remedy="use 'auto' or a whole number from 1 on")
        for name in ("retries", "express"):
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ConfigError(f"{name} can't be {count!r}", remedy="use a whole number, 0 or more")
        if not isinstance(self.patience, int | float):  # written as people do; a number is checked by the gate
            object.__setattr__(self, "patience", seconds(self.patience, what="patience"))
        check_limit(self.limit_rows)
