"""Which policy turns which knob, how often, and for which queries: a policy and its translator in Lachesis' Alg. 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from treadle.decide.grouping import KINDS
from treadle.decide.policy import Policy
from treadle.decide.transform import SCALES, Scale
from treadle.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Binding:
    """One policy and the knob that it turns every `period` seconds; a `scale` of None is the knob's own.

    `queries` are patterns (`*`, `?`, `[ab]`) of query names, with or without their engine (`spark/*`). If several
    bindings of one knob match a query, the first one decides for it. `grouping` is for knobs of groups only.
    """

    policy: Policy
    knob: str
    period: float
    scale: Scale | None = None
    grouping: str | None = None
    queries: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        if not 0 < self.period < math.inf:
            raise ConfigError(f"its period can't be {self.period}", where=self.where, remedy="use seconds above 0")
        if self.scale is None and self.knob not in SCALES:
            remedy = f"give the binding a scale, or use one of {', '.join(SCALES)}"
            raise ConfigError(f"knob '{self.knob}' has no scale of its own", where=self.where, remedy=remedy)
        if self.grouping is not None and self.grouping not in KINDS:
            raise ConfigError(
                f"unknown grouping '{self.grouping}'", where=self.where, remedy=f"use one of {', '.join(KINDS)}"
            )
        if not self.queries:
            raise ConfigError("names no queries", where=self.where, remedy="use '*' for all")

    @property
    def where(self) -> str:
        return f"policy '{self.policy.name}'"

    @property
    def to_scale(self) -> Scale:
        return SCALES[self.knob] if self.scale is None else self.scale

    def may_concern(self, engine: str) -> bool:
        """Whether a query of this engine could match."""
        return any("/" not in pattern or fnmatchcase(engine, pattern.split("/")[0]) for pattern in self.queries)

    def concerns(self, engine: str, query: str) -> bool:
        names = (query, f"{engine}/{query}")
        return any(fnmatchcase(name, pattern) for pattern in self.queries for name in names)
