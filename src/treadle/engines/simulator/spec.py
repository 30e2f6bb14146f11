"""The schema of scenario files: the tables, their keys, and which values are valid together.

`scenario.py` checks the graphs. Validators raise errors with the text `problem: remedy`; `problems.py` adds the place
in the file, and words for pydantic's own errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

# Strict, so that a number in quotes, or a truth value for a number, is an error and not converted.
Number = Annotated[float, Field(allow_inf_nan=False, strict=True)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Part = Annotated[Number, Field(ge=0, le=1)]
Slice = Annotated[Number, Field(ge=1e-6)]
"""A time slice in seconds. A shorter one would be lost in the rounding of virtual time."""
Count = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
Processors = Annotated[int, Field(ge=1, le=64, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\s\x00-\x1f\x7f.\[\]:+]+$")]
Mode = Literal["cooperative", "os", "realtime"]
Assign = Literal["random", "round-robin", "load-balance", "adaptive"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """How tuples arrive: at a constant rate, in bursts, as Poisson, in steps, from a trace, or in counted ticks."""

    pattern: Literal["constant", "bursts", "poisson", "step", "trace", "ticks"] = "constant"
    rate: NotNegative | None = None
    start: NotNegative = 0.0
    stop: Positive | None = None
    # bursts: `rate` for `on` seconds, then `idle_rate` for `off` seconds
    on: Positive = 5.0
    off: NotNegative = 15.0
    idle_rate: NotNegative = 0.0
    # poisson: the mean is drawn anew from `between` every `redraw` seconds (AMoS section 4.1)
    between: tuple[NotNegative, NotNegative] | None = None
    redraw: Positive = 5.0
    # step: `rate`, and `step` more every `every` seconds; ticks: `counts[i]` tuples at `start + i * every`
    step: Number = 100.0
    every: Positive = 30.0
    counts: tuple[Annotated[int, Field(ge=0, le=1_000_000_000, strict=True)], ...] = ()
    # trace: a file of arrival times in seconds, one a line, relative to the scenario
    file: str | None = None

    @property
    def mean_rate(self) -> float | None:
        """Mean tuples per second while it sends; unknown in advance for a trace and for ticks."""
        if self.between is not None:
            return sum(self.between) / 2.0
        return self.rate

    @model_validator(mode="after")
    def _complete(self) -> Source:
        for key in sorted(self.model_fields_set - _KEYS_OF_EVERY_PATTERN - _KEYS[self.pattern]):
            fitting = next(pattern for pattern, keys in _KEYS.items() if key in keys)
            raise ValueError(f'a {self.pattern} source has no {key}: remove it or set pattern = "{fitting}"')
        if self.pattern in ("constant", "bursts", "step") and self.rate is None:
            raise ValueError(f"a {self.pattern} source needs a rate: add rate = 1000")
        if self.pattern == "poisson" and self.rate is None and self.between is None:
            raise ValueError("a poisson source needs a mean: add rate = 1000 or between = [500, 1500]")
        if self.pattern == "poisson" and self.rate is not None and self.between is not None:
            raise ValueError("a poisson source has a rate and a range to draw it from: remove rate or between")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError("between is from high to low: swap its numbers")
        if self.pattern == "trace" and not self.file:
            raise ValueError('a trace source needs a file: add file = "arrivals.txt"')
        if self.pattern == "ticks" and not self.counts:
            raise ValueError("a ticks source needs counts: add counts = [2, 2, 0]")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop = {self.stop:g} is not after start = {self.start:g}: raise stop")
        return self


_KEYS_OF_EVERY_PATTERN = {"pattern", "start", "stop"}
_KEYS = {
    "constant": {"rate"},
    "poisson": {"rate", "between", "redraw"},
    "bursts": {"rate", "on", "off", "idle_rate"},
    "step": {"rate", "step", "every"},
    "trace": {"file"},
    "ticks": {"every", "counts"},
}


class Cost(_Strict):
    """CPU seconds per tuple."""

    mean: Positive
    distribution: Literal["constant", "uniform", "exponential"] = "constant"
    spread: Part = 0.1


class Selectivity(_Strict):
    """Output tuples per input tuple; for a join, outputs per pair within the window."""

    mean: Annotated[Number, Field(ge=0, le=1000)]
    distribution: Literal["bernoulli", "poisson", "even"] = "bernoulli"


class Blocking(_Strict):
    """With this probability, a tuple makes its thread sleep for up to `seconds` (Lachesis section 6.4)."""

    probability: Annotated[Number, Field(gt=0, le=1)]
    seconds: Positive


def _number_is_mean(value: object) -> object:
    return value if isinstance(value, dict | BaseModel) else {"mean": value}


class OperatorSpec(_Strict):
    """An operator of a query. One without upstream needs a source."""

    name: Name
    upstream: tuple[Name, ...] = ()
    cost: Annotated[Cost, BeforeValidator(_number_is_mean)]
    selectivity: Annotated[Selectivity, BeforeValidator(_number_is_mean)] = Selectivity(mean=1.0)
    source: Source | None = None
    parallelism: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    capacity: Count | None = None
    window: Positive | None = None
    helper_cost: Positive | None = None
    blocking: Blocking | None = None


class QuerySpec(_Strict):
    """A query with its owner's goals; `fused` operators run as one instance."""

    name: Name
    priority: Number = 0.0
    latency_goal: Positive | None = None
    operator: tuple[OperatorSpec, ...] = Field(min_length=1)
    fused: tuple[tuple[Name, ...], ...] = ()


CostClass = Annotated[int, Field(ge=0, le=20, strict=True)]
Factor = Annotated[Number, Field(gt=0, le=1000)]


class Chains(_Strict):
    """Many chains, drawn as in Haren section 7.1: with the cost class z, each operator costs base * 2^z +-spread.

    With `load` instead of `base_cost`, costs are scaled so that all chains together need this share of the processors
    while their sources send. So different seeds divide the work differently among the chains, but its sum is the same.
    """

    name: Name
    count: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    length: Annotated[int, Field(ge=1, le=100, strict=True)]
    base_cost: Positive | None = None
    load: Annotated[Number, Field(gt=0, le=100)] | None = None
    cost_classes: tuple[CostClass, CostClass] = (0, 4)
    selectivity: tuple[Factor, Factor] = (0.01, 1.0)
    spread: Annotated[Number, Field(ge=0, lt=1)] = 0.1
    priority: Number = 0.0
    latency_goal: Positive | None = None
    blocking_share: Part = 0.0
    blocking: Blocking | None = None
    source: Source

    @model_validator(mode="after")
    def _drawable(self) -> Chains:
        if (self.base_cost is None) == (self.load is None):
            raise ValueError("chains need either a base_cost or a load: set base_cost = 1e-5 or load = 0.9")
        if self.load is not None and self.source.mean_rate is None:
            raise ValueError(f"load can't be used with a {self.source.pattern} source: set base_cost instead")
        if self.cost_classes[0] > self.cost_classes[1]:
            raise ValueError("cost_classes is from high to low: swap its numbers")
        if self.selectivity[0] > self.selectivity[1]:
            raise ValueError("selectivity is from high to low: swap its numbers")
        if self.blocking_share > 0 and self.blocking is None:
            raise ValueError("blocking_share needs blocking: add blocking = { probability = 0.001, seconds = 0.2 }")
        return self


class RandomPlan(_Strict):
    """A random plan of a given number of operators, with branches and joins."""

    name: Name
    operators: Annotated[int, Field(ge=2, le=1000, strict=True)]
    load: Annotated[Number, Field(gt=0, le=10)] = 0.9
    branch: Part = 0.2
    join: Part = 0.1
    selectivity: tuple[Factor, Factor] = (0.3, 1.3)
    source: Source

    @model_validator(mode="after")
    def _drawable(self) -> RandomPlan:
        if self.selectivity[0] > self.selectivity[1]:
            raise ValueError("selectivity is from high to low: swap its numbers")
        return self


class Execution(_Strict):
    """How nodes get the CPU. With `period` 0 the policy decides before every tuple (cooperative mode only)."""

    mode: Mode = "cooperative"
    processors: Processors = 1
    period: NotNegative = 0.1
    batch: Count = 10
    delay: NotNegative = 0.0
    assign: Assign = "random"
    fluid: Flag = False
    known: Flag = False
    """Cost and selectivity are known from the start instead of being measured."""
    switch_cost: NotNegative = 0.0
    schedule_cost: NotNegative = 0.0
    time_slice: Slice = 0.003
    rr_slice: Slice = 0.1

    @model_validator(mode="after")
    def _possible(self) -> Execution:
        if self.mode != "cooperative" and self.period == 0:
            raise ValueError(f"period = 0 is for the cooperative mode, not {self.mode}: set period = 0.1")
        if self.fluid and (self.period != 0 or self.batch != 1):
            raise ValueError("a fluid plan serves one unit at a time: set period = 0 and batch = 1")
        return self


class ChangeSpec(_Strict):
    """A change while the scenario runs."""

    at: NotNegative
    processors: Processors | None = None
    batch: Count | None = None
    period: Positive | None = None
    policy: str | None = None
    assign: Assign | None = None
    objectives: str | None = None
    candidates: str | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> ChangeSpec:
        if not self.model_fields_set - {"at"}:
            raise ValueError("changes nothing: add processors, batch, period, policy, assign, objectives or candidates")
        return self


MOST_SECONDS = 86_400


class Scenario(_Strict):
    """A whole scenario file."""

    title: str
    description: str = ""
    seconds: Annotated[Number, Field(gt=0, le=MOST_SECONDS)] = 60.0
    warm_up: NotNegative = 0.0
    drain: Flag = False
    """Continue after `seconds` until nothing is queued."""
    trace: Flag = False
    """Record the queues at every event."""
    policies: tuple[str, ...] = ("fifo",)
    seed: Annotated[int, Field(ge=0, strict=True)] = 1
    execution: Execution = Execution()
    query: tuple[QuerySpec, ...] = ()
    chains: tuple[Chains, ...] = ()
    random: tuple[RandomPlan, ...] = ()
    change: tuple[ChangeSpec, ...] = ()
    _where: str = PrivateAttr(default="")
    _folder: Path = PrivateAttr(default=Path())

    def read_from(self, where: str, folder: Path) -> Scenario:
        """Store the file and folder that the scenario was read from; return the scenario."""
        self._where, self._folder = where, folder
        return self

    @property
    def where(self) -> str:
        """The file's name in errors."""
        return self._where

    @property
    def folder(self) -> Path:
        """The folder of the file, for traces beside it."""
        return self._folder

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if not (self.query or self.chains or self.random):
            raise ValueError("there is nothing to run: add a [[query]], [[chains]] or [[random]]")
        if self.warm_up >= self.seconds:
            raise ValueError(f"warm_up = {self.warm_up:g} leaves nothing of seconds = {self.seconds:g}: lower it")
        for change in self.change:
            if change.at >= self.seconds:
                raise ValueError(f"a change at = {change.at:g} comes after seconds = {self.seconds:g}: lower it")
        return self
