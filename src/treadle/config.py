"""Treadle's configuration: one TOML file, one model, every value with a default; command-line flags override it.

The file is searched in this order: the file that was named, `$TREADLE_CONFIG`, `treadle.toml` in this folder, and
`treadle/treadle.toml` in the user's configuration folder. Only the first one found is read. In the last two places a
file is ignored if another user could have written it: root must not obey a file of whatever folder it works in.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from treadle import toml
from treadle.decide import registry
from treadle.errors import ConfigError
from treadle.linux import users

log = logging.getLogger("treadle.config")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Some = Annotated[tuple[str, ...], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Adaptive(_Section):
    """Options of `--policy adaptive`. Where none are set, candidates and objectives depend on the engine."""

    objectives: Some | None = None
    candidates: Some | None = None
    learner: Literal["roulette", "ucb", "thompson", "greedy"] = "ucb"
    delay: Positive = 2.0


class Simulate(_Section):
    """Used by `treadle simulate` instead of what the scenario says; a flag overrides them."""

    seconds: Positive | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None


class Attach(_Section):
    """Defaults of `treadle attach`, which flags override; priorities and quotas are by patterns of query names."""

    policy: str | None = None
    enforce: str | None = None
    period: str = "50ms"
    user: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0, strict=True)] | None = None
    priorities: dict[str, NotNegative] = {}
    strict: Annotated[bool, Field(strict=True)] = False
    quotas: dict[str, Positive] = {}


class Config(_Section):
    """The whole configuration file."""

    adaptive: Adaptive = Adaptive()
    simulate: Simulate = Simulate()
    attach: Attach = Attach()

    def policy(self, spec: str) -> str:
        """Return the policy for the registry: a bare `adaptive` gets the configured options."""
        name, at, knob = spec.partition("@")
        if name != "adaptive":
            return spec
        a = self.adaptive
        lists = {"candidates": a.candidates, "objective": a.objectives}
        given = "".join(f"{key}={'+'.join(map(_nested, each))}," for key, each in lists.items() if each is not None)
        return f"adaptive:learner={a.learner},{given}delay={a.delay:g}{at}{knob}"


def load(named: str | None = None) -> tuple[Config, str]:
    """Return the configuration in force and where it came from."""
    found = _find(named)
    if found is None:
        return Config(), "defaults"
    path, data = found
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
    """Return the configuration as TOML; a key that is not set becomes a comment."""
    sections = []
    for section, values in config.model_dump(mode="json").items():
        known = {key: value for key, value in values.items() if value is not None}
        header, *lines = tomli_w.dumps({section: known}).split("\n")
        unset = [f"# {key} is not set" for key, value in values.items() if value is None]
        sections.append("\n".join([header, *unset, *lines]).rstrip())
    return "\n\n".join(sections) + "\n"


def _nested(text: str) -> str:
    """Put an item that has options of its own in parentheses, for a list of items."""
    return f"({text})" if ":" in text else text


def _find(named: str | None) -> tuple[Path, dict[str, Any]] | None:
    """Return the file in force and its contents; None if there is none."""
    explicit = named or os.environ.get("TREADLE_CONFIG")
    if explicit:
        path = Path(explicit)
        with suppress(OSError):
            if doubt := _doubt(path.lstat()) or _doubt(path.stat()):
                log.warning("%s is used since it was named, but %s", path, doubt)
        return path, toml.read(path)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for path in (Path("treadle.toml"), home / "treadle" / "treadle.toml"):
        if path.is_file() and (text := _trusted(path)) is not None:
            return path, toml.parse(text, path)
    return None


def _trusted(path: Path) -> bytes | None:
    """Return the text of a file; None, with a warning in the log, if another user could have written it."""
    try:
        link = path.lstat()
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if doubt := _doubt(link) or _doubt(os.fstat(file.fileno())):
                log.warning("%s is ignored: %s (to use it all the same: --config %s)", path, doubt, path)
                return None
            return file.read()
    except OSError as error:
        raise ConfigError(f"can't read it: {error.strerror}", where=str(path), remedy="check its rights") from None


def _doubt(found: os.stat_result) -> str:
    """Return why another user could have written a file; empty if none could."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {users.name(found.st_uid)}"
    if found.st_mode & 0o022 and not stat.S_ISLNK(found.st_mode):
        return "other users can write to it (chmod go-w)"
    return ""


def _keys(place: tuple[int | str, ...]) -> list[str]:
    section = Config.model_fields.get(str(place[0])) if len(place) > 1 else None
    kind = section.annotation if section else Config
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
