"""Compiles functions with numba, which caches the compiled code on disk until the function's source file changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the decorated function. Division by zero gives what numpy gives."""
    return cast("Callable[..., Any]", numba.njit(cache=True, error_model="numpy")(function))
