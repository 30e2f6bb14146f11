"""Functions that numba compiles, and keeps compiled for as long as the file they stand in is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a decorator. A division by zero gives what numpy gives."""
    return cast("Callable[..., Any]", numba.njit(cache=True, error_model="numpy")(function))
