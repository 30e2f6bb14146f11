"""Broken variants of a valid text, for tests of what reads the text of other processes."""

from __future__ import annotations

import json
import random
from typing import Any

ODD: tuple[Any, ...] = (None, True, False, 0, -1, 1.5, 10**400, 1e308, "", "\x1b[2J", "[red]", [], {}, [[]], {"a": {}})
TOKENS = (
    *(b"NaN", b"Infinity", b"-", b"1e999", b'"', b"{", b"null", b"\\ud800", b"\x00", b"\xff"),
    *(b"]" * 9, b"[" * 5000, b"1" * 5000),
)


def mutated(valid: Any, chance: random.Random) -> bytes:
    """A JSON text in which a value was replaced, removed or repeated, or bytes were; sometimes mere noise."""
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.randrange(40))
    value = json.loads(json.dumps(valid))
    if kind < 0.7:
        for _ in range(chance.randrange(1, 4)):
            value = _changed(value, chance)
        return json.dumps(value).encode()
    text = bytearray(json.dumps(value).encode())
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        text[at : at + chance.choice((0, 1, 5, len(text)))] = chance.choice(TOKENS)
    return bytes(text)


def _changed(value: Any, chance: random.Random) -> Any:
    """The value with one part, at any depth, replaced, removed or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        key = chance.choice(list(value))
        if chance.random() < 0.2:
            return {each: part for each, part in value.items() if each != key}
        return {**value, key: _changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return chance.choice(
            ([*value[:at], _changed(value[at], chance), *value[at + 1 :]], value[:at], [*value, *value[:at]])
        )
    return chance.choice(ODD)
