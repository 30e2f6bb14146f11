"""Log lines quote names that other users chose: control characters in them are made visible, whoever prints the lines.

A filter on each of Treadle's loggers does it, so that handlers of the user's own program get safe text, too.
"""

from __future__ import annotations

import logging
from typing import Any

from treadle.text import visible, visible_lines

NAMES = (
    "treadle.attach",
    "treadle.config",
    "treadle.decide.adaptive.adaptive",
    "treadle.enforce",
    "treadle.engines.spark",
    "treadle.gate",
    "treadle.jars",
    "treadle.librdkafka",
    "treadle.loop",
    "treadle.pipelines",
    "treadle.pipelines.run.control_socket",
    "treadle.watchdog",
)
"""All loggers of Treadle. A filter of a logger is not asked for the lines of those below it, so each has its own."""


def make_visible() -> None:
    """Have it done from now on; harmless when called again."""
    for name in NAMES:
        logging.getLogger(name).addFilter(_FILTER)


class _Visible(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, dict):
            record.args = {key: _visible(each) for key, each in record.args.items()}
        elif record.args:
            record.args = tuple(map(_visible, record.args))
        if record.exc_info and not record.exc_text:
            record.exc_text = visible_lines(logging.Formatter().formatException(record.exc_info))
        return True


_FILTER = _Visible()


def _visible(value: Any) -> Any:
    """Numbers stay, since `%d` needs them; whatever else is printed by its text."""
    return value if isinstance(value, int | float) else visible(str(value))
