"""Pipelines on PySpark: named functions of DataFrames that run under Treadle's own scheduler.

Running a pipeline needs PySpark and starts a JVM; importing this package does neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from treadle.pipelines.api.load import load
from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes.node import Kind, Node

__all__ = ["Kind", "Node", "Pipeline", "load"]


def __getattr__(name: str) -> Any:
    if name in ("placement", "workers"):  # the modules for placement until version 0.2
        return import_module("treadle.pipelines.api.placed")
    raise AttributeError(f"module 'treadle.pipelines' has no attribute '{name}'")
