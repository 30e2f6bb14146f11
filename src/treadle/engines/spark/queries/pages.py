"""Reads pages of Spark's UI in the first seconds: the application's name, and the queries of the running stages.

The first answer of the REST interface takes a driver 1.5 s of CPU, the first page some hundredths. On a full machine,
that is the difference between half a minute and a second. Pages say less: stages are read from them only until the REST
interface answers.
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
    before, end, _ = page.partition(" - Stages for All Jobs</title>")
    _, begin, name = before.partition("<title>")
    return html.unescape(name) if begin and end else ""


def batches(page: str) -> list[Batch]:
    """Group running and pending stages by job: a job's stages share one description, with the query and its batch."""
    found: dict[str, list[int]] = {}
    for part in _SECTION.split(page)[1:]:
        section = part.partition("</table>")[0]
        for row in section.split('<tr id="stage-')[1:]:
            stage = _STAGE.match(row)
            description = _between(row, 'class="description-input">', "</span>")
            if stage and description is not None:
                found.setdefault(html.unescape(description), []).append(int(stage[1]))
    return [Batch(description, tuple(sorted(stages))) for description, stages in found.items()]


def _between(text: str, begin: str, end: str) -> str | None:
    _, has_begun, rest = text.partition(begin)
    inside, has_ended, _ = rest.partition(end)
    return inside if has_begun and has_ended else None


_SECTION = re.compile(r'<span id="(?:active|pending)"')
_STAGE = re.compile(r'([0-9]{1,9})-[0-9]+">')
