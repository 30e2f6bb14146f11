"""The schema of an attachment's status as another process sends it: an answer that does not fit is refused.

Unknown fields are kept, so that an older Treadle can show the status of a newer one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from treadle.errors import EngineError


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Application(_Part):
    name: str
    ended: bool


class _Thread(_Part):
    tid: int
    role: str
    has: str


class _Row(_Part):
    application: str
    query: str
    operator: str
    index: int
    threads: Annotated[list[_Thread], Field(min_length=1)]
    queue: FiniteFloat | None
    queue_is_estimate: bool
    latency: FiniteFloat | None
    cost: FiniteFloat | None
    cpu: FiniteFloat | None
    wait: FiniteFloat | None
    priority: FiniteFloat | None
    change: str
    why: str


class _Promise(_Part):
    query: str
    min_accuracy: FiniteFloat
    promised: FiniteFloat
    accuracy: FiniteFloat | None
    real_time: bool
    measured: bool
    keeps_all: str | None


class _Quality(_Part):
    queries: list[_Promise]
    suspended: dict[str, int]
    short: list[str]


class _Status(_Part):
    applications: list[_Application]
    policy: str
    enforce: str
    period: Annotated[FiniteFloat, Field(gt=0)]
    dry_run: bool
    changes: int
    released: dict[str, str]
    rows: list[_Row]
    quality: _Quality | None


def read(text: bytes) -> dict[str, Any]:
    """Parse the status in an answer; raise an EngineError if the answer does not fit the schema."""
    try:
        return _Status.model_validate_json(text).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the answer"
        raise EngineError(
            f"its status can't be read: {place}: {first['msg'].lower()}", remedy="use the same version of Treadle"
        ) from None
