"""Pipelines on PySpark: named functions of DataFrames that run under Treadle's own scheduler.

Importing this starts no JVM and needs no PySpark; running a pipeline does.
"""

from treadle.pipelines.api.load import load
from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes.node import Kind, Node

__all__ = ["Kind", "Node", "Pipeline", "load"]
