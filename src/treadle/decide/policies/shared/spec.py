"""Policies in one line of text: `name` or `name:key=value,...`; a nested policy with options is in parentheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from treadle.decide.policy import Policy
from treadle.errors import ConfigError
from treadle.plugins import suggestion

_FORM = "write name or name:key=value,key=value; a nested policy with options goes in parentheses"


class Options:
    """The options of a policy, for its `from_options` to read; options that it does not read are refused."""

    def __init__(
        self, spec: str, values: Mapping[str, str], rng: np.random.Generator, create: Callable[[str], Policy]
    ) -> None:
        self.spec = spec
        self.rng = rng
        self.create = create
        self._where = where(spec)
        self._values = dict(values)
        self._asked: set[str] = set()

    def unread(self) -> tuple[str, ...]:
        """Return the given keys that were not read yet."""
        return tuple(key for key in self._values if key not in self._asked)

    def text(self, key: str, default: str | None = None) -> str:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise ConfigError(f"option '{key}' is missing", where=self._where, remedy=f"add {key}=...")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.text(key, None if default is None else repr(default))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ConfigError(f"{key} is '{value}'", where=self._where, remedy=f"give a number, as in {key}=0.5")
        return number

    def integer(self, key: str, default: int | None = None) -> int:
        number = self.number(key, default)
        if number != int(number):
            raise ConfigError(f"{key} is {number:g}", where=self._where, remedy="give a whole number")
        return int(number)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.text(key, None if default is None else str(default)).lower()
        if value not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            raise ConfigError(f"{key} is '{value}'", where=self._where, remedy="give true or false")
        return value in ("true", "yes", "on", "1")

    def policy(self, key: str, default: str | None = None) -> Policy:
        """Read a nested policy."""
        return self.create(bare(self.text(key, default)))

    def policies(self, key: str, default: str | None = None) -> list[Policy]:
        """Read nested policies, joined by `+`."""
        return [self.create(bare(part)) for part in split(self.text(key, default), "+")]

    def refuse_the_rest(self) -> None:
        """Refuse options that the policy did not read."""
        for key in self.unread():
            remedy = suggestion(key, sorted(self._asked), none="leave it out: this policy has no options")
            raise ConfigError(f"there is no option '{key}'", where=self._where, remedy=remedy)


def parse(spec: str) -> tuple[str, dict[str, str]]:
    """Return a spec's name, in lower case with hyphens, and its options as text."""
    name, colon, rest = spec.strip().partition(":")
    name = name.strip().lower().replace("_", "-")
    if not name or any(mark in name for mark in "(),="):
        raise ConfigError(f"'{name}' is not the name of a policy", where=where(spec), remedy=_FORM)
    options: dict[str, str] = {}
    for part in split(rest, ",", spec) if colon else ():
        key, *value = split(part, "=", spec, at_most=1)
        if not key or not value or not value[0]:
            raise ConfigError(f"'{part}' is not an option", where=where(spec), remedy=_FORM)
        if key in options:
            raise ConfigError(f"option '{key}' is given twice", where=where(spec), remedy="keep one of them")
        options[key] = value[0]
    return name, options


def split(text: str, mark: str, spec: str | None = None, *, at_most: int = -1) -> list[str]:
    """Split a text at a mark, but not within parentheses; the parts are stripped."""
    parts: list[str] = []
    begin = depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            break
        if char == mark and depth == 0 and len(parts) != at_most:
            parts.append(text[begin:at].strip())
            begin = at + 1
    if depth != 0:
        raise ConfigError("the parentheses are unbalanced", where=where(text if spec is None else spec), remedy=_FORM)
    return [*parts, text[begin:].strip()]


def bare(text: str) -> str:
    """Return a nested spec without the parentheses around it."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")") and _closes_at_end(text):
        text = text[1:-1].strip()
    return text


def where(spec: str) -> str:
    """Return how errors name a spec."""
    return f"policy '{spec.strip()}'"


def _closes_at_end(text: str) -> bool:
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at == len(text) - 1
    return False
