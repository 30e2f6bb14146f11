"""Pipelines of these tests listen where tests of commands, which run beside them, don't find them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _sockets(own_sockets: Path) -> None:
    pass
