"""Logs which minima can't be kept: once when a shortage begins, and once when it ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from treadle.decide.quality.controller import Short


class Shortages:
    """The shortages known so far; `kind` is a word for the sinks, such as sink or query."""

    def __init__(self, kind: str, log: logging.Logger) -> None:
        self._kind = kind
        self._log = log
        self._told: set[str] = set()

    def tell(self, short: Sequence[Short]) -> None:
        names = {each.sink for each in short}
        for each in short:
            if each.sink not in self._told:
                self._log.warning("%s", each.told(self._kind), extra={self._kind: each.sink})
        for name in sorted(self._told - names):
            # The level is that of the warning that it ends.
            self._log.warning("%s '%s' has its minimum again", self._kind, name, extra={self._kind: name})
        self._told = names
