"""Deprecated names for placement, to be removed in version 0.3: `placement.start` and `workers.session`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.quality.placement import place
from treadle.pipelines.spark.workers import cluster_session


def start(
    pipeline: Pipeline,
    spark: Any,
    *,
    prefer: Mapping[str, Sequence[str]] | None = None,
    instances: Mapping[str, int] | None = None,
    **options: Any,
) -> Any:
    """Deprecated: use `pipeline.start(spark, placement=treadle.place(…))`."""
    _warn("placement.start", "pipeline.start(spark, placement=treadle.place(…))")
    return pipeline.start(spark, placement=place(prefer=prefer, instances=instances), **options)


def session(name: str, *, master: str, config: Mapping[str, object] | None = None) -> Any:
    """Deprecated: use `treadle.cluster_session`."""
    _warn("workers.session", "treadle.cluster_session")
    return cluster_session(name, master=master, config=config)


def _warn(old: str, new: str) -> None:
    text = f"treadle.pipelines.{old} is deprecated and will be removed in version 0.3: use {new}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
