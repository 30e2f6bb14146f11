"""The file in which an adaptive policy keeps what it has measured, so that a restart needs no second warm-up.

Whatever is wrong with the file, the policy runs on without it: that is one warning in the log, never an error. A file
that is not this policy's is never overwritten. It is written in a thread of its own, and at the end.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.errors import RightsError
from treadle.linux.files import trusted

log = logging.getLogger("treadle.decide.adaptive.adaptive")

FORMAT = "treadle learned 1"
EVERY = 10.0
"""Least seconds between two writes while the policy runs."""
MOST = 1 << 24
"""Size in bytes from which on a file can't be ours: the largest memory takes some megabytes."""


class LearnedFile:
    """One file of measurements."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._usable = True
        self._failed = False
        self._written = time.monotonic()
        self._thread: threading.Thread | None = None

    def read(self) -> dict[str, Any] | None:
        """Return what the file has; None if there is none, or if it can't be used."""
        if why := trusted.doubt(self.path.parent):
            self.refuse(why, "use a folder that only you can change")
            return None
        if not self.path.parent.is_dir():
            self.refuse("its folder does not exist", "make the folder")
            return None
        if not os.path.lexists(self.path):
            return None
        try:
            return self._read()
        except RightsError as error:
            self.refuse(error.message, "name a file of yours that only you can write")
        except (ValueError, RecursionError):
            self.refuse("it has no measurements of an adaptive policy", "delete it, or name another file")
        return None

    def refuse(self, why: str, remedy: str) -> None:
        """Neither use nor overwrite the file, and log why."""
        self._usable = False
        log.warning("learned '%s' is left out, and is not written: %s; %s", self.path, why, remedy)

    def write_sometimes(self, state: Callable[[], dict[str, Any]]) -> None:
        """Write in a thread of its own, unless the last write is less than `EVERY` seconds ago."""
        if not self._usable or time.monotonic() - self._written < EVERY:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._written = time.monotonic()
        self._thread = threading.Thread(target=self._write, args=(state(),), name="treadle-learned", daemon=True)
        self._thread.start()

    def write(self, state: dict[str, Any]) -> None:
        """Write now."""
        if self._thread is not None:
            self._thread.join()
        if self._usable:
            self._written = time.monotonic()
            self._write(state)

    def _read(self) -> dict[str, Any] | None:
        if os.lstat(self.path).st_size > MOST:
            raise ValueError("too long")
        text = trusted.read(self.path)
        if not text.strip():
            return None
        found = json.loads(text)
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ValueError("another format")
        return found

    def _write(self, state: dict[str, Any]) -> None:
        try:
            trusted.write(self.path, json.dumps({"format": FORMAT, **state}, allow_nan=False).encode())
        except (OSError, RightsError, ValueError) as error:
            if not self._failed:
                log.warning("learned '%s' can't be written: %s", self.path, error)
            self._failed = True
        else:
            self._failed = False
