"""The interface of a run for promises and placement: its nodes, hops, channels, gate and Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from treadle.enforce.gate.gate import Gate
from treadle.pipelines.channels.channel import Source
from treadle.pipelines.hops.hop import Hop
from treadle.pipelines.hops.options import Options
from treadle.pipelines.nodes.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Running(Protocol):
    """A run of a pipeline, as promises and placement see it."""

    @property
    def name(self) -> str:
        """The pipeline's name."""

    @property
    def options(self) -> Options: ...

    @property
    def nodes(self) -> Mapping[str, Node]: ...

    @property
    def hops(self) -> Mapping[str, Hop]:
        """Hops by name; empty before the first one starts."""

    @property
    def channels(self) -> Mapping[str, Source]: ...

    @property
    def gate(self) -> Gate: ...

    @property
    def spark(self) -> SparkSession: ...

    @property
    def in_real_time(self) -> bool:
        """Whether queries run in Spark's Real-Time Mode, where the gate is not used."""

    def set_slots(self, count: int) -> None:
        """Set how many hops may run at once from now on."""
