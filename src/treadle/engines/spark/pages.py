"""What the pages of Spark's UI say, for the first seconds: who the application is, and whose the running stages are.

The first answer of the REST interface takes a driver 1.5 s of CPU, the first page some hundredths. On a machine that is
full, that is the difference between half a minute and a second. The pages say less, and are asked only until then.
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

STAGES = "stages/?completedStage.pageSize=1&skippedStage.pageSize=1&failedStage.pageSize=1"


class Batch(NamedTuple):
    """The running stages of one batch of a query."""

    description: str
    stages: tuple[int, ...]


def title(page: str) -> str:
    """The name of the application; empty if the page does not say."""
    found = _TITLE.search(page)
    return html.unescape(found[1]) if found else ""


def batches(page: str) -> list[Batch]:
    """What runs or is about to, by job: the stages of one job have one description, with the query and its batch."""
    found: dict[str, list[int]] = {}
    for section in _SECTION.findall(page):
        for stage, description in _STAGE.findall(section):
            found.setdefault(html.unescape(description), []).append(int(stage))
    return [Batch(description, tuple(sorted(stages))) for description, stages in found.items()]


_TITLE = re.compile(r"<title>(.*) - Stages for All Jobs</title>", re.DOTALL)
_SECTION = re.compile(r'<span id="(?:active|pending)".*?</table>', re.DOTALL)
_STAGE = re.compile(r'<tr id="stage-(\d+)-\d+">.*?class="description-input">(.*?)</span>', re.DOTALL)
