"""The setting `quality` of an attachment: the promises by patterns of query names, or false to keep all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.control.settings import Setting
from treadle.errors import ConfigError

if TYPE_CHECKING:  # promises need compiled code, which takes as long to load as all the rest
    from treadle.attachment.quality.keeper import PromiseKeeper
    from treadle.decide.quality import Promise

WHERE = "attachment"


def setting(keeper: PromiseKeeper | None) -> Setting:
    """Make the setting. A number is a `min_accuracy`; the priority stays that of the former promise of this name.

    Without a keeper, as in an attachment that was started without promises, every value but false is refused.
    """

    def read() -> Any:
        return False if keeper is None or keeper.suspended else _shown(keeper.promises)

    def prepare(value: Any) -> Callable[[], None]:
        if keeper is None and value is False:
            return lambda: None
        new = None if isinstance(value, bool) else _checked(value, keeper)
        if keeper is None:
            remedy = "end this attachment, and attach with --qod (qod)"
            raise ConfigError("no agent that drops rows is loaded", where=WHERE, remedy=remedy)
        return partial(_put, keeper, new, suspended=value is False)

    def becomes(value: Any) -> Any:
        if keeper is None or value is False:
            return False
        return _shown(keeper.promises if value is True else _checked(value, keeper))

    return Setting(read, prepare, becomes)


def _put(keeper: PromiseKeeper, new: Mapping[str, Promise] | None, *, suspended: bool) -> None:
    keeper.suspended = suspended
    if new is not None:
        keeper.promises = new


def _checked(value: Any, keeper: PromiseKeeper | None) -> dict[str, Promise]:
    from treadle.attachment.quality import promises

    if not isinstance(value, Mapping):
        remedy = 'use true, false or {"PATTERN": share}'
        raise ConfigError(f"quality can't be {value!r}", where=WHERE, remedy=remedy)
    former = {} if keeper is None else keeper.promises
    whole = {
        pattern: said
        if isinstance(said, Mapping)
        else {"priority": promises.of(pattern, former).priority, "min_accuracy": said}
        for pattern, said in value.items()
    }
    return {str(pattern): promises.checked(f"quality of '{pattern}'", said) for pattern, said in whole.items()}


def _shown(promises: Mapping[str, Promise]) -> dict[str, dict[str, float]]:
    return {pattern: {"priority": each.priority, "min_accuracy": each.accuracy} for pattern, each in promises.items()}
