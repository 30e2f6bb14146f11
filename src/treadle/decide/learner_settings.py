"""The settings of an adaptive policy that can be changed while it is in charge: its objectives and its candidates.

What was measured is kept when they change. Pipelines, gates and attachments have the same settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.control.settings import Setting
from treadle.decide import registry
from treadle.decide.adaptive import Adaptive, as_text, from_text, joined, respelt
from treadle.errors import ConfigError


def make(
    in_charge: Callable[[], Adaptive | None],
    check: Callable[[Adaptive], None],
    adopt: Callable[[Adaptive], None],
    where: str,
) -> dict[str, Setting]:
    """Return the settings by name. `in_charge` returns the adaptive policy in charge, or None if another policy is.

    `check` raises an error for a policy that could not run there, and `adopt` follows the changed policy.
    """
    found = _LearnerSettings(in_charge, check, adopt, where)
    return {
        "objectives": Setting(found.objectives, found.prepared_objectives, found.objectives_as_text, ("policy",)),
        "candidates": Setting(found.candidates, found.prepared_candidates, found.candidates_as_text, ("policy",)),
    }


@dataclass(frozen=True)
class _LearnerSettings:
    """The functions of both settings, for one pipeline, gate or attachment."""

    in_charge: Callable[[], Adaptive | None]
    check: Callable[[Adaptive], None]
    adopt: Callable[[Adaptive], None]
    where: str

    def objectives(self) -> str | None:
        now = self.in_charge()
        return None if now is None else as_text(now.objectives)

    def candidates(self) -> str | None:
        now = self.in_charge()
        return None if now is None else joined(now.candidates)

    def objectives_as_text(self, value: Any) -> str:
        return as_text(from_text(value))

    def candidates_as_text(self, value: Any) -> str:
        return joined(registry.candidates(self._text(value), self._learner("candidates").policies))

    def prepared_objectives(self, value: Any) -> Callable[[], None]:
        now, wanted = self._learner("objectives"), from_text(value)
        probe = now.sibling(objectives=wanted)
        if now.measured:
            probe.check_objectives(now.measured, self.where)
        self.check(probe)

        def put() -> None:
            now.set_objectives(wanted)
            self._follow(now, objective=as_text(wanted))

        return put

    def prepared_candidates(self, value: Any) -> Callable[[], None]:
        now, text = self._learner("candidates"), self._text(value)
        wanted = registry.candidates(text, now.policies)
        self.check(now.sibling(candidates=wanted))

        def put() -> None:
            now.set_candidates(wanted)
            self._follow(now, candidates=text)

        return put

    def _learner(self, setting: str) -> Adaptive:
        found = self.in_charge()
        if found is None:
            problem = f"the policy in charge has no {setting}"
            raise ConfigError(problem, where=self.where, remedy="set policy=adaptive first")
        return found

    def _follow(self, changed: Adaptive, **options: str) -> None:
        if changed.spec is not None:
            changed.spec = respelt(changed.spec, **options)
        self.adopt(changed)

    def _text(self, value: Any) -> str:
        if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
            return joined(value)
        if not isinstance(value, str):
            remedy = 'join the names of policies by +, as "chain+fcfs"'
            raise ConfigError(f"candidates can't be {value!r}", where=self.where, remedy=remedy)
        return value
