"""Makes control characters in log lines visible, since log lines quote names that other users chose.

A filter on each of Treadle's loggers does this, so that handlers of the user's own program get safe text, too.
"""

from __future__ import annotations

import logging
from typing import Any

from treadle.text import visible, visible_lines

NAMES = (
    "treadle.attach",
    "treadle.config",
    "treadle.control",
    "treadle.decide",
    "treadle.decide.adaptive.adaptive",
    "treadle.enforce",
    "treadle.engines.spark",
    "treadle.gate",
    "treadle.jars",
    "treadle.librdkafka",
    "treadle.loop",
    "treadle.pipelines",
    "treadle.watchdog",
)
"""All loggers of Treadle. A logger's filter does not apply to records of its child loggers, so each has the filter."""


def make_visible() -> None:
    """Install the filter on all loggers; harmless when called again."""
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
    """Keep a number, since `%d` needs it; turn any other value into safe text."""
    return value if isinstance(value, int | float) else visible(str(value))
