"""Explains an error in a scenario file to its author: the place as written in the file, and a remedy.

Only the first problem that pydantic reports is explained: one line to act on.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_EXAMPLES = {
    "at": "at = 30",
    "base_cost": "base_cost = 1e-5",
    "cost": "cost = 0.001",
    "count": "count = 10",
    "length": "length = 5",
    "mean": "mean = 0.001",
    "name": 'name = "…"',
    "operator": "[[query.operator]]",
    "operators": "operators = 10",
    "probability": "probability = 0.001",
    "seconds": "seconds = 0.2",
    "source": "source = { rate = 1000 }",
    "title": 'title = "…"',
}
_KINDS = {
    "float_type": ("a number", "write a number"),
    "int_type": ("a whole number", "write a whole number"),
    "bool_type": ("true or false", "write true or false"),
    "string_type": ("a text", "put it in quotes"),
    "tuple_type": ("a list", "put it in brackets: […]"),
    "model_type": ("a table", "write it as {{ … }} or [{key}]"),
}
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_LONGEST_SHOWN = 40


def explain(error: ValidationError, data: Mapping[str, Any], model: type[BaseModel]) -> tuple[str, str, str]:
    """Return (place, problem, remedy) of the first problem. `data` is the file's content; indices start at 1."""
    problem = error.errors()[0]
    return _place(problem["loc"], data), *_words(problem, model)


def shown(value: object) -> str:
    """Return a value as TOML writes it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…")
    text = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _place(path: tuple[int | str, ...], data: Mapping[str, Any]) -> str:
    """Return a place such as query[2].operator[1].cost, without keys that the file leaves out, such as `.mean` here."""
    place = ""
    inside: Any = data
    for step in path:
        if isinstance(step, int):
            place += f"[{step + 1}]"
            inside = inside[step] if isinstance(inside, list | tuple) and step < len(inside) else None
        elif isinstance(inside, Mapping) or inside is None:
            place += f".{step}" if place else step
            inside = inside.get(step) if isinstance(inside, Mapping) else None
    return place


def _words(problem: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    kind, value, limits = problem["type"], problem["input"], problem.get("ctx", {})
    key = next((step for step in reversed(problem["loc"]) if isinstance(step, str)), "")
    if kind == "value_error":
        said, _, remedy = str(limits["error"]).partition(": ")
        return said, remedy
    if kind == "missing":
        return "is missing", f"add {_EXAMPLES[key]}" if key in _EXAMPLES else "add it"
    if kind == "extra_forbidden":
        return "is not a known key", _known_keys(key, _model_at(problem["loc"][:-1], model))
    if kind in _KINDS:
        wanted, remedy = _KINDS[kind]
        if kind == "tuple_type" and isinstance(value, dict):
            remedy = "begin it with [[{key}]]"
        elif kind in ("float_type", "int_type", "bool_type") and isinstance(value, str):
            remedy += ", without quotes"
        return f"must be {wanted}, not {shown(value)}", remedy.format(key=key)
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return f"can't be {shown(value)}", f"use {words} {shown(limits[name])}"
    if kind == "literal_error":
        return f"can't be {shown(value)}", f"use {limits['expected']}"
    if kind == "finite_number":
        return f"can't be {shown(value)}", "use a finite number"
    if kind == "string_pattern_mismatch":
        return f"{shown(value)} can't be a name", "use letters, digits, - and _; no spaces and none of . : + [ ]"
    if kind in ("too_short", "string_too_short"):
        return "is empty", f"add {_EXAMPLES[key]}" if key in _EXAMPLES else "write something"
    if kind in ("too_long", "string_too_long"):
        return "is too long", f"use at most {limits['max_length']}"
    return problem["msg"], "change this value"


def _known_keys(key: str, model: type[BaseModel]) -> str:
    names = list(model.model_fields)
    near = difflib.get_close_matches(key, names, n=1)
    return f"did you mean {near[0]}?" if near else f"remove it; known here are {', '.join(names)}"


def _model_at(path: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    for step in path:
        if step in model.model_fields:
            model = _model_in(model.model_fields[str(step)].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
