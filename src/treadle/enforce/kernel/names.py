"""Group names as directory names of cgroups. Any text is allowed; forbidden characters are percent-encoded."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote

LONGEST = 255
"""The largest number of bytes in the name of a directory."""
FILES = frozenset({"tasks", "notify_on_release", "release_agent"})
CONTROL_FILE = re.compile(r"[a-z_]+\.")
"""Prefixes that the kernel reserves for its own files, such as cpu.shares and cgroup.procs."""
EMPTY = "%"
"""The directory name for an empty part of a name. It is unique, since a % in any other part is percent-encoded."""


def escape(part: str) -> str:
    """The directory name for one part of a group's name. If too long, it is shortened and made unique by a hash."""
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
    """The directory path for a group's name, which has parts separated by "/"."""
    return "/".join(escape(part) for part in name.split("/"))


def unescape(path: str) -> str:
    """The group's name for a directory path. A name that was too long can't be recovered."""
    return "/".join("" if part == EMPTY else unquote(part, errors="surrogateescape") for part in path.split("/"))


def _code(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogateescape"))
