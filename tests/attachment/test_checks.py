"""What is looked at before anything is changed."""

from __future__ import annotations

import sys

import pytest

from treadle.attachment import checks, plan
from treadle.errors import EngineError, RightsError


def test_only_what_the_plan_needs_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """To try real-time takes of the budget of others, as long as it lasts."""
    monkeypatch.delattr(sys.modules["treadle.enforce.kernel.facts"], "RealtimeKnob")
    try:
        checks.check(plan.make(None, "nice", 0.05, {}, {}, ("*",)), [])
    except (EngineError, RightsError) as error:
        pytest.skip(str(error))
