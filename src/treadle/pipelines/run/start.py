"""Starts a pipeline: `start` returns a running pipeline, or raises an error and leaves nothing running."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.decide.batch import batch_size
from treadle.durations import Duration, seconds
from treadle.errors import ConfigError
from treadle.pipelines.gating.assigning import PERIOD
from treadle.pipelines.hops.options import LEAST_PERIOD, Options
from treadle.pipelines.hops.running import Running
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.quality import promises
from treadle.pipelines.quality.promises import Promises
from treadle.pipelines.run.parts import Parts
from treadle.pipelines.run.run import Run
from treadle.pipelines.spark.session import folder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    pipeline: Definition, spark: SparkSession | None = None, *, seconds: Duration | None = None, **options: Any
) -> Run:
    """Run a pipeline until it fails, is interrupted or `seconds` have passed; then stop it cleanly."""
    with start(pipeline, spark, **options) as running:
        running.wait(seconds)
    return running


def start(
    pipeline: Definition,
    spark: SparkSession | None = None,
    *,
    folder: str | Path | None = None,
    period: Duration = 0.1,
    batch: Duration | None = None,
    cycle: Duration = 2.0,
    assign_period: Duration = PERIOD,
    placement: Callable[[Running], Promises] | None = None,
    **options: Any,
) -> Run:
    """Start a pipeline and return while it runs.

    `policy` is any of `treadle policies` or a Policy object, `layout` "hops", "fused" or "realtime", `slots` how many
    hops run at once or "auto", `enforce` "gate", "pools" (Spark's FAIR pools) or "none" (Spark alone), `period` how
    often the policy decides, `batch` how long a batch should last or "1000 rows", `limit_rows` what a channel may
    hold, `channels` "embedded" or "kafka", with brokers at `kafka`, `on_failure` what happens when a sink has failed
    for good: "stop", "continue" without it, or "retry" for ever. `assign` gives each slot the hops that it serves,
    anew every `assign_period`: "none", "random", "round-robin", "load-balance", "adaptive" or a function
    f(snapshot, groups). `rules` give sets of sinks a policy, a priority and a period of their own. If sinks have a
    `min_accuracy`, every `cycle` the share of rows to drop is decided anew, unless `shed` is off. On a cluster,
    `placement=treadle.place(…)` puts each query on a worker. A pipeline that is started again with the same `folder`
    continues where it stopped.
    """
    known = {field.name for field in fields(Options)}
    for name in options.keys() - known:
        raise ConfigError(f"'{name}' is not an option", where="run", remedy=f"use one of {', '.join(sorted(known))}")
    options["period"] = seconds(period, what="period", where="run", least=LEAST_PERIOD)
    options["assign_period"] = seconds(assign_period, what="assign_period", where="run", least=LEAST_PERIOD)
    options["cycle"] = seconds(cycle, what="cycle", where="run", least=LEAST_PERIOD)
    if batch is not None:
        options["batch"] = batch_size(batch, "run")
    place = Path(folder) if folder is not None else folder_of(pipeline.name)
    running = Run(Parts.of(pipeline, place, Options(**options)), pipeline)
    try:
        running.begin(spark, placement or promises.of)
    except BaseException:
        with suppress(Exception):  # the first error is the one to raise
            running.abandon()
        raise
    return running
