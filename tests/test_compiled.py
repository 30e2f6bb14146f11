import importlib.util
from pathlib import Path
from typing import Any

import numba
import pytest

CALLER = """
from treadle.compiled import compiled

@compiled
def answer():
    return 42
"""


@pytest.fixture(autouse=True)
def _not_kept_by_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba, "njit", lambda **_: lambda function: function)


def _name(room: Path) -> str:
    file = room / "caller.py"
    file.write_text(CALLER)
    spec = importlib.util.spec_from_file_location("caller", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.answer.__qualname__)


def test_code_that_calls_a_changed_file_of_its_room_is_compiled_again(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one", "same", "other"))
    for room, called in ((one, "a = 1"), (same, "a = 1"), (other, "a = 2")):
        room.mkdir()
        (room / "called.py").write_text(called)
    assert _name(one) == _name(same)
    assert _name(one) != _name(other)
