"""The options of `p.run` and `treadle run`, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from treadle.broker import HOST, PORT
from treadle.decide import query_rules, registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.assignment import NONE, assigner_of
from treadle.decide.batch import Rows
from treadle.decide.policy import Policy
from treadle.durations import seconds, text
from treadle.errors import ConfigError
from treadle.pipelines.channels.embedded import check_limit
from treadle.pipelines.hops.totals import OBJECTIVES
from treadle.pipelines.nodes.node import ON_FAILURE

ENFORCE = ("gate", "pools", "none")
LEAST_PERIOD = 0.001
"""Shortest `period` and `cycle` in seconds: a decision for some dozens of hops takes tenths of a millisecond."""
BATCH = 0.5
REALTIME_BATCH = 5.0
SHORTEST_REALTIME = 1.0
"""Shortest batch in the realtime layout, in seconds: after each batch rows wait for a tenth of a second."""
CHANNELS = ("embedded", "kafka")


@dataclass(frozen=True)
class Options:
    """The options of a run. `period`, `batch` and `cycle` are in seconds; `kafka` is host:port of a broker.

    The defaults of `enforce` and `batch` depend on the layout.
    """

    policy: str | Policy = "multi-class"
    layout: str = "hops"
    slots: int | Literal["auto"] = "auto"
    enforce: str = "auto"
    period: float = 0.1
    batch: float | Rows = 0.0
    patience: float = 5.0
    express: int = 1
    limit_rows: int = 1_000_000
    retries: int = 3
    channels: str = "embedded"
    kafka: str = f"{HOST}:{PORT}"
    shed: bool = True
    cycle: float = 2.0
    assign: object = NONE
    assign_period: float = 1.0
    rules: Sequence[Mapping[str, Any]] = ()
    on_failure: str = "stop"

    def __post_init__(self) -> None:
        realtime = self.layout == "realtime"
        if self.enforce == "auto":
            object.__setattr__(self, "enforce", "none" if realtime else "gate")
        if not self.batch:
            object.__setattr__(self, "batch", REALTIME_BATCH if realtime else BATCH)
        if realtime:
            self._check_realtime()
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
        if not isinstance(self.patience, int | float):  # text or a timedelta; the gate checks numbers
            object.__setattr__(self, "patience", seconds(self.patience, what="patience"))
        if self.on_failure not in ON_FAILURE:
            raise ConfigError(f"on_failure can't be {self.on_failure!r}", remedy=f"use one of {', '.join(ON_FAILURE)}")
        check_limit(self.limit_rows)
        query_rules.check_with(policy_of(self.policy), query_rules.read(self.rules, policy_of, least=LEAST_PERIOD))
        if self.rules and self.enforce == "none":
            raise ConfigError(
                "rules need a gate or pools", where="run", remedy="leave out enforce='none', or the rules"
            )
        if assigner_of(self.assign).name != NONE and self.enforce != "gate":
            remedy = "leave one of the two out: only the gate has slots"
            raise ConfigError(f"assign needs the gate, but enforce is {self.enforce!r}", remedy=remedy)

    def _check_realtime(self) -> None:
        """Refuse options of the gate, which the realtime layout does not have, and batches that are too short."""
        default = {field.name: field.default for field in fields(self)} | {"enforce": "none"}
        if self.rules:
            remedy = "leave them out, and run treadle attach --rule … beside it"
            raise ConfigError("rules need a gate, which the realtime layout does not have", remedy=remedy)
        for name in ("enforce", "policy", "slots", "assign"):
            if getattr(self, name) != default[name]:
                policy = f" --policy {text_of(self.policy)}" if name == "policy" else ""
                raise ConfigError(
                    f"{name} can't be {getattr(self, name)!r} in the realtime layout, which has no gate",
                    remedy=f"leave it out, and run treadle attach{policy} beside it",
                )
        if isinstance(self.batch, Rows):
            raise ConfigError(f"batch can't be {self.batch} in the realtime layout", remedy="use a time, as '5s'")
        if self.batch < SHORTEST_REALTIME:
            raise ConfigError(
                f"batch is {text(self.batch)}, too short for the realtime layout",
                remedy=f"use {text(SHORTEST_REALTIME)} or more: rows come out at once, however long a batch is",
            )


def policy_of(spec: str | Policy, measured: Collection[str] = OBJECTIVES, what: str = "pipelines") -> Policy:
    """Return the policy that a spec describes; refuse a learning policy whose objectives are not in `measured`."""
    made = spec if isinstance(spec, Policy) else registry.create(spec)
    if isinstance(made, Adaptive):
        made.check_objectives(measured, what)
    return made


def text_of(policy: str | Policy) -> str:
    """The name of a policy for status and logs."""
    return policy.name if isinstance(policy, Policy) else policy
