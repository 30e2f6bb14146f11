"""An attachment that can't be made safe is refused before anything is changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from treadle.attachment import plan
from treadle.attachment.control import Attachment
from treadle.errors import EngineError


def test_without_a_guardian_it_is_refused_and_leaves_no_journal(
    own_journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="guardian: can't be started"):
        Attachment(plan.make(None, "nice", 0.05, {}, {}, ("*",)), {}, {}, {})
    assert list(own_journals.iterdir()) == []
