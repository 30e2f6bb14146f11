"""Compiles functions with numba, which keeps the compiled code on disk until a file in the function's room changes."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the decorated function. Division by zero gives what numpy gives.

    Numba compiles the functions that it calls into it, but compiles it again only if its own file has changed. So the
    name under which numba keeps it contains a digest of all files of its room.
    """
    function.__qualname__ += f"-{_digest(Path(inspect.getfile(function)).parent)}"
    return cast("Callable[..., Any]", numba.njit(cache=True, error_model="numpy")(function))


@cache
def _digest(room: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(room.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
