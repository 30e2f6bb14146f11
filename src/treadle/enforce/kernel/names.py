"""Group names as cgroups take them. Any text is a name; what a directory can't be called is written as in a link."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote

LONGEST = 255
"""Bytes in the name of a directory."""
FILES = frozenset({"tasks", "notify_on_release", "release_agent"})
CONTROL_FILE = re.compile(r"[a-z_]+\.")
"""The kernel keeps such beginnings for files of its own: cpu.shares, cgroup.procs."""
EMPTY = "%"
"""What a part without a character is called: no other part is, since its own % would be written as a code."""


def escape(part: str) -> str:
    """One part of a name as the name of a directory. A very long one is cut, and ends in what tells it from others."""
    text = "".join(char if char >= " " and char not in "/%\x7f" else _code(char) for char in part) or EMPTY
    if text in FILES or text[0] == ".":
        text = _code(text[0]) + text[1:]
    elif CONTROL_FILE.match(text):
        text = text.replace(".", _code("."), 1)
    whole = text.encode(errors="surrogateescape")
    if len(whole) <= LONGEST:
        return text
    digest = hashlib.sha256(whole).hexdigest()[:16]
    return f"{whole[: LONGEST - 20].decode(errors='ignore')}~{digest}"


def escape_parts(name: str) -> str:
    """A name whose parts are separated by "/"."""
    return "/".join(escape(part) for part in name.split("/"))


def unescape(path: str) -> str:
    """The name, if it was not too long."""
    return "/".join("" if part == EMPTY else unquote(part, errors="surrogateescape") for part in path.split("/"))


def _code(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogateescape"))
