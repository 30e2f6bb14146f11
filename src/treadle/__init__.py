"""Treadle decides which streaming operators get the CPU, when, and how much of their data they may shed.

The names that most users need are here, and are imported on first use: `import treadle` needs no numpy or PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle import logs

if TYPE_CHECKING:
    from treadle.attachment import attach
    from treadle.decide.quality import Kept, relative_error
    from treadle.enforce.shed import by_key, by_utility
    from treadle.estimates import corrected, joined, per_unit
    from treadle.pipelines.api.load import load
    from treadle.pipelines.api.pipeline import Pipeline
    from treadle.pipelines.api.query_gate import gate
    from treadle.pipelines.quality.placement import place
    from treadle.pipelines.run.feed import feed
    from treadle.pipelines.spark.session import session
    from treadle.pipelines.spark.workers import cluster_session

__version__ = "0.2.0"

__all__ = [
    "Kept",
    "Pipeline",
    "__version__",
    "attach",
    "by_key",
    "by_utility",
    "cluster_session",
    "corrected",
    "feed",
    "gate",
    "joined",
    "load",
    "per_unit",
    "place",
    "relative_error",
    "session",
]

_HOMES = {
    "Kept": "treadle.decide.quality",
    "Pipeline": "treadle.pipelines.api.pipeline",
    "attach": "treadle.attachment",
    "by_key": "treadle.enforce.shed",
    "by_utility": "treadle.enforce.shed",
    "cluster_session": "treadle.pipelines.spark.workers",
    "corrected": "treadle.estimates",
    "feed": "treadle.pipelines.run.feed",
    "gate": "treadle.pipelines.api.query_gate",
    "joined": "treadle.estimates",
    "load": "treadle.pipelines.api.load",
    "per_unit": "treadle.estimates",
    "place": "treadle.pipelines.quality.placement",
    "relative_error": "treadle.decide.quality",
    "session": "treadle.pipelines.spark.session",
}


logs.make_visible()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treadle' has no attribute '{name}'")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
