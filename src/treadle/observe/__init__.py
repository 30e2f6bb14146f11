"""Observe, the first step of the loop: from what an engine measures to the metrics that policies decide by."""

from treadle.observe.catalogue import METRICS
from treadle.observe.explain import explain
from treadle.observe.features import features, intrinsic
from treadle.observe.metric import Formula, Inputs, Kind, Metric, Way
from treadle.observe.plan import Step, make_plan, plannable
from treadle.observe.provider import Provider

__all__ = [
    "METRICS",
    "Formula",
    "Inputs",
    "Kind",
    "Metric",
    "Provider",
    "Step",
    "Way",
    "explain",
    "features",
    "intrinsic",
    "make_plan",
    "plannable",
]
