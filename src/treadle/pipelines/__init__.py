"""Pipelines on PySpark: named functions of DataFrames that run under Treadle's own scheduler.

Importing this starts no JVM and needs no PySpark; running a pipeline does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from treadle.pipelines.api.load import load
from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes.node import Kind, Node

__all__ = ["Kind", "Node", "Pipeline", "load"]


def __getattr__(name: str) -> Any:
    if name in ("placement", "workers"):  # where placement was until version 0.2
        return import_module("treadle.pipelines.api.placed")
    raise AttributeError(f"module 'treadle.pipelines' has no attribute '{name}'")
