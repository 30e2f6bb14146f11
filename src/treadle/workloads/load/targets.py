"""What a load is made of: the targets, and which rows each of them gets."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.errors import ConfigError
from treadle.workloads.load.rates import Rate


@dataclass(frozen=True, kw_only=True)
class Target:
    """The rows of a target. Either `lines` or `table` names a maker as `module:function`.

    `lines`: `(count, *, seed)` returns text lines, which are sent again after the last one.
    `table`: `(first, count, random)` returns an Arrow table with these rows, without the columns `id` and `created`.
    """

    lines: str = ""
    table: str = ""
    count: int = 10_000
    """Number of different lines; a topic also gets so many different rows of a table, again and again."""
    seed: int = 0
    first: int = 0
    """The `id` of the first row."""
    rate: float | Rate = 0.0
    poisson: bool = False
    """Whether rows arrive at random, as a Poisson process with this rate, instead of evenly."""
    interval: float = 0.01
    """Seconds between two sends. With shorter ones rows are less late, but cost more CPU, here and in the broker."""

    def __post_init__(self) -> None:
        if bool(self.lines) == bool(self.table):
            raise ConfigError("a target needs either `lines` or `table`", remedy="name one maker: module:function")
        if not 0.001 <= self.interval <= 10:
            raise ConfigError(f"{self.interval} s can't be an interval", remedy="give 0.001 to 10 seconds")
        if self.count < 1:
            raise ConfigError(f"{self.count} different lines are too few", remedy="give at least 1")


@dataclass(frozen=True, kw_only=True)
class Topic(Target):
    """A Kafka topic, which gets JSON objects with `id`, `created`, and `line` or the columns of the table."""

    servers: str
    topic: str


@dataclass(frozen=True, kw_only=True)
class Channel(Target):
    """The folder of an embedded channel with the columns `id long, created timestamp`, and `line string` or others."""

    folder: str
    interval: float = 0.05
