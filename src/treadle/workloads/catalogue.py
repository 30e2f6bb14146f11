"""The papers' applications by name, as pipelines that read text lines, and where their lines come from.

A pipeline reads them from the node `LINES`, as rows of `id long, created timestamp, line string`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.pipelines.api.pipeline import Pipeline
from treadle.plugins import imported, suggestion
from treadle.workloads.burn import calibrate
from treadle.workloads.text_lines import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Workload:
    """A workload. `makes` and `lines` name functions as `module:function`, so that a list of all imports none."""

    name: str
    what: str
    paper: str
    operators: int
    """The number of operators that the papers count, with sources and sinks."""
    makes: str
    lines: str
    """Returns `count` input lines, for `workloads.load`."""
    count: int = 10_000
    """How many different lines are sent, before the first one is sent again."""
    burns: bool = False
    """Whether its costs are CPU seconds, so that it must be known what a hash costs on this machine."""

    def pipeline(self, spark: SparkSession | None = None, *, source: Source = "feed") -> Pipeline:
        """The pipeline, which reads its lines from a feed or a topic. One that burns CPU needs a session to measure."""
        make: Any = imported(self.makes)
        costs = {}
        if self.burns:
            if spark is None:
                raise ConfigError(f"workload '{self.name}' needs a session", remedy="pass one, to measure its costs by")
            costs["unit"] = calibrate(spark)
        made: Pipeline = make(source=source, prefix=f"{self.name}-", name=self.name, **costs)
        return made


WORKLOADS: Mapping[str, Workload] = {
    each.name: each
    for each in (
        Workload(
            "etl",
            "clean, complete and store the readings of city sensors",
            "RIoTBench; Lachesis, Lachesis-RT",
            10,
            "treadle.workloads.riot.etl:pipeline",
            "treadle.workloads.riot.sensors:etl_lines",
        ),
        Workload(
            "stats",
            "statistics and forecasts of the readings of city sensors",
            "RIoTBench; Lachesis, Lachesis-RT",
            10,
            "treadle.workloads.riot.stats:pipeline",
            "treadle.workloads.riot.sensors:stats_lines",
        ),
        Workload(
            "linear-road",
            "tolls on expressways that depend on traffic and accidents",
            "Linear Road; Lachesis, Lachesis-RT",
            9,
            "treadle.workloads.linear_road.pipeline:pipeline",
            "treadle.workloads.linear_road.records:lines",
            count=200_000,  # ten minutes of traffic, after which time goes back
        ),
        Workload(
            "voip-stream",
            "telephone calls, scored by how likely the caller sells something",
            "DSPBench; Lachesis, Lachesis-RT",
            15,
            "treadle.workloads.voip_stream.pipeline:pipeline",
            "treadle.workloads.voip_stream.records:lines",
            count=100_000,
        ),
        Workload(
            "syn",
            "twenty queries of different cost and selectivity on one stream",
            "Haren, Lachesis",
            100,
            "treadle.workloads.syn.pipeline:pipeline",
            "treadle.workloads.syn.pipeline:lines",
            burns=True,
        ),
    )
}


def workload(name: str) -> Workload:
    """The workload with this name; ConfigError if there is none."""
    if name not in WORKLOADS:
        raise ConfigError(f"there is no workload '{name}'", remedy=suggestion(name, WORKLOADS))
    return WORKLOADS[name]
