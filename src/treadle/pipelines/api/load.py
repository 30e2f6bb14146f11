"""Loads a pipeline from a Python file or module, for users; `files` does it."""

from __future__ import annotations

from pathlib import Path

from treadle.pipelines.api.files import load_as
from treadle.pipelines.api.pipeline import Pipeline


def load(path_or_module: str | Path, name: str | None = None) -> Pipeline:
    """Load and check the pipeline of `file.py` or `package.module`.

    If there are several, `name` or `file.py:name` chooses one, by its variable or by the pipeline's own name.
    """
    return load_as(Pipeline, path_or_module, name)
