"""What all tests of the loop begin with."""

from __future__ import annotations

import pytest

from loop.worlds import World, make_world


@pytest.fixture
def world() -> World:
    return make_world()
