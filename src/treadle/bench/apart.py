"""Measurements in separate processes with their own JVM, and medians of several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.errors import EngineError


def measured(module: str, order: dict[str, Any], what: str) -> dict[str, float]:
    """Run a module as a program with `order`, and return the figures that it prints as its last line."""
    command = [sys.executable, "-m", module, json.dumps(order)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise EngineError(f"{what} failed", remedy="see its message above")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the runs."""
    return {name: round(float(np.median([run[name] for run in runs])), 4) for name in runs[0]}
