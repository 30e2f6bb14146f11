"""Reads the TOML files that users write, and reports what is wrong with one as a ConfigError."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError


def read(path: Path) -> dict[str, Any]:
    """Parse a TOML file, or raise a ConfigError that names it."""
    try:
        return parse(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"can't read it: {error.strerror}", where=str(path), remedy="check the path") from None


def parse(text: bytes, path: Path) -> dict[str, Any]:
    """Parse TOML text, or raise a ConfigError that names its file."""
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"is not valid TOML: {error}", where=str(path), remedy="fix this line") from None
