from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import treadle
from treadle import logs

HOSTILE = "a\x1b]0;owned\x07\r\x9b2J\u202eb\nERROR forged"
SHOWN = "a\\x1b]0;owned\\x07\\r\\x9b2J\\u202eb\\nERROR forged"


def logged(write: object) -> str:
    """What a handler of a user's own prints."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log = logging.getLogger("treadle.attach")
    log.addHandler(handler)
    try:
        write(log)  # type: ignore[operator]
    finally:
        log.removeHandler(handler)
    return out.getvalue()


def test_names_in_log_lines_are_made_visible() -> None:
    assert logged(lambda log: log.warning("'%s' of %d is left alone", HOSTILE, 7)) == (
        f"WARNING '{SHOWN}' of 7 is left alone\n"
    )
    assert logged(lambda log: log.warning("%(name)s", {"name": HOSTILE})) == f"WARNING {SHOWN}\n"
    assert logged(lambda log: log.warning("failed: %s", ValueError(HOSTILE))) == f"WARNING failed: {SHOWN}\n"


def test_tracebacks_in_log_lines_are_made_visible_and_keep_their_lines() -> None:
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("a\x1b[31mb")
        except ValueError:
            log.exception("failed")

    said = logged(fail)
    assert "\x1b" not in said
    assert said.startswith("ERROR failed\nTraceback (most recent call last):\n")
    assert said.endswith("ValueError: a\\x1b[31mb\n")


def test_every_logger_of_treadle_does_so() -> None:
    root = Path(treadle.__file__).parent
    named = re.compile(r'getLogger\((?:"(treadle[\w.]*)"|(__name__))\)')
    found = {
        name or ".".join(("treadle", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        for name, _ in named.findall(path.read_text(encoding="utf-8"))
    }
    assert found == set(logs.NAMES)
