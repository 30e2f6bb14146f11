"""Treadle's configuration: one TOML file, one model, every value with a default; flags of the command line come last.

Looked for in this order: the file that was named, `$TREADLE_CONFIG`, `treadle.toml` in this folder, and
`treadle/treadle.toml` in the user's configuration folder. The first one found is the only one read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle import toml
from treadle.decide import registry
from treadle.errors import ConfigError

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Some = Annotated[tuple[str, ...], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Adaptive(_Section):
    """What `--policy adaptive` chooses from, by what, and how; what is not set depends on what it drives."""

    objectives: Some | None = None
    candidates: Some | None = None
    learner: Literal["roulette", "ucb", "thompson", "greedy"] = "ucb"
    delay: Positive = 2.0


class Simulate(_Section):
    """What `treadle simulate` takes where neither a flag nor the scenario says otherwise."""

    seconds: Positive | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None


class Attach(_Section):
    """What `treadle attach` takes where no flag says otherwise; priorities and quotas by patterns of query names."""

    policy: str | None = None
    enforce: str | None = None
    period: str = "50ms"
    user: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0, strict=True)] | None = None
    priorities: dict[str, NotNegative] = {}
    quotas: dict[str, Positive] = {}


class Config(_Section):
    """The whole file."""

    adaptive: Adaptive = Adaptive()
    simulate: Simulate = Simulate()
    attach: Attach = Attach()

    def policy(self, spec: str) -> str:
        """A policy as the registry takes it: a bare `adaptive` is spelt out with what is configured."""
        name, at, knob = spec.partition("@")
        if name != "adaptive":
            return spec
        a = self.adaptive
        lists = {"candidates": a.candidates, "objective": a.objectives}
        given = "".join(f"{key}={'+'.join(map(_nested, each))}," for key, each in lists.items() if each is not None)
        return f"adaptive:learner={a.learner},{given}delay={a.delay:g}{at}{knob}"


def load(named: str | None = None) -> tuple[Config, str]:
    """The configuration in force and where it came from."""
    path = _find(named)
    if path is None:
        return Config(), "defaults"
    data = toml.read(path)
    try:
        config = Config.model_validate(data)
        registry.create(config.policy("adaptive"))
        return config, str(path)
    except ConfigError as error:
        raise ConfigError(f"adaptive: {error.message}", where=str(path), remedy=error.remedy) from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(step) for step in problem["loc"])
        known = ", ".join(_keys(problem["loc"]))
        what = (
            "is not a known key"
            if problem["type"] == "extra_forbidden"
            else problem["msg"].lower().replace("tuple", "list")
        )
        raise ConfigError(f"{place}: {what}", where=str(path), remedy=f"known here: {known}") from None


def as_toml(config: Config) -> str:
    """The configuration as a file would say it; what is not set stands as a comment."""
    lines: list[str] = []
    for section, values in config.model_dump().items():
        lines += [f"[{section}]", *(_line(key, value) for key, value in values.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(key: str, value: Any) -> str:
    if value is None:
        return f"# {key} is not set"
    if isinstance(value, dict):
        pairs = ", ".join(f"{_quoted(name)} = {number}" for name, number in value.items())
        return f"{key} = {{{pairs}}}"
    if isinstance(value, tuple):
        return f"{key} = [{', '.join(_quoted(item) for item in value)}]"
    return f"{key} = {_quoted(value)}"


def _quoted(value: Any) -> str:
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else f"{value}"


def _nested(text: str) -> str:
    """What stands among others: a policy with options of its own in parentheses."""
    return f"({text})" if ":" in text else text


def _find(named: str | None) -> Path | None:
    explicit = named or os.environ.get("TREADLE_CONFIG")
    if explicit:
        return Path(explicit)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return next((path for path in (Path("treadle.toml"), home / "treadle" / "treadle.toml") if path.is_file()), None)


def _keys(place: tuple[int | str, ...]) -> list[str]:
    section = Config.model_fields.get(str(place[0])) if len(place) > 1 else None
    kind = section.annotation if section else Config
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
