"""Treadle's configuration: one TOML file, one model, every value with a default; command-line flags override it.

The file is searched in this order: the file that was named, `$TREADLE_CONFIG`, `treadle.toml` in the current folder,
and `treadle/treadle.toml` in the user's configuration folder. Only the first one found is read. A file in the last two
places is ignored if another user could have written it: root must not obey a file only because of the current folder.
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
from treadle.decide import query_rules, registry
from treadle.errors import ConfigError
from treadle.linux import users

log = logging.getLogger("treadle.config")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Some = Annotated[tuple[str, ...], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Adaptive(_Section):
    """Options of `--policy adaptive`. If `candidates` or `objectives` is not set, the default depends on the engine."""

    objectives: Some | None = None
    candidates: Some | None = None
    learner: Literal["roulette", "ucb", "thompson", "greedy"] = "ucb"
    delay: Positive = 2.0
    learned: Annotated[str, Field(min_length=1)] | None = None


class Simulate(_Section):
    """Values that `treadle simulate` uses instead of those in the scenario; command-line flags override them."""

    seconds: Positive | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] | None = None


class Attach(_Section):
    """Defaults of `treadle attach`; flags override them. `priorities` and `quotas` are by patterns of query names."""

    policy: str | None = None
    enforce: str | None = None
    period: str = "50ms"
    user: Annotated[str, Field(min_length=1)] | Annotated[int, Field(ge=0, strict=True)] | None = None
    priorities: dict[str, NotNegative] = {}
    strict: Annotated[bool, Field(strict=True)] = False
    slots: Annotated[int, Field(ge=1, strict=True)] | Literal["auto"] | None = None
    quotas: dict[str, Positive] = {}


class Config(_Section):
    """The whole configuration file."""

    adaptive: Adaptive = Adaptive()
    simulate: Simulate = Simulate()
    attach: Attach = Attach()
    rules: tuple[dict[str, Any], ...] = ()
    """Sets of queries with a policy, a priority and a period of their own, for `treadle attach` and `treadle run`."""

    def policy(self, spec: str, *, simulated: bool = False) -> str:
        """Return `spec` as the registry takes it: `adaptive` without options gets the configured options.

        If it is simulated, it does not get the learned file, which belongs to what really runs.
        """
        name, at, knob = spec.partition("@")
        if name != "adaptive":
            return spec
        a = self.adaptive
        lists = {"candidates": a.candidates, "objective": a.objectives}
        given = "".join(f"{key}={'+'.join(map(_nested, each))}," for key, each in lists.items() if each is not None)
        given += f"learned=({a.learned})," if a.learned and not simulated else ""
        return f"adaptive:learner={a.learner},{given}delay={a.delay:g}{at}{knob}"


def load(named: str | None = None) -> tuple[Config, str]:
    """Return the configuration in force, and the path of its file; 'defaults' without a file."""
    found = _find(named)
    if found is None:
        return Config(), "defaults"
    path, data = found
    try:
        config = Config.model_validate(data)
        _check(config)
        return config, str(path)
    except ConfigError as error:
        raise ConfigError(f"{error.where}: {error.message}", where=str(path), remedy=error.remedy) from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(step) for step in problem["loc"])
        known = ", ".join(_keys(problem["loc"]))
        what = (
            "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].lower().replace("tuple", "list")
        )
        raise ConfigError(f"{place}: {what}", where=str(path), remedy=f"known here: {known}") from None


def _check(config: Config) -> None:
    """Raise a ConfigError, with the part of the file in its `where`, for values that the model can't check."""
    try:
        registry.create(config.policy("adaptive"))
    except ConfigError as error:
        raise ConfigError(error.message, where="adaptive", remedy=error.remedy) from None
    query_rules.read(config.rules, lambda spec: registry.create(str(spec)), least=0.0)


def as_toml(config: Config) -> str:
    """Return the configuration as TOML; a key that is not set becomes a comment."""
    sections = []
    dumped: dict[str, Any] = config.model_dump(mode="json")
    rules = dumped.pop("rules")
    for section, values in dumped.items():
        known = {key: value for key, value in values.items() if value is not None}
        header, *lines = tomli_w.dumps({section: known}).split("\n")
        unset = [f"# {key} is not set" for key, value in values.items() if value is None]
        sections.append("\n".join([header, *unset, *lines]).rstrip())
    sections += [f"[[rules]]\n{tomli_w.dumps(rule)}".rstrip() for rule in rules]
    return "\n\n".join(sections) + "\n"


def _nested(text: str) -> str:
    """Put an item of a list in parentheses if it has options of its own."""
    return f"({text})" if ":" in text else text


def _find(named: str | None) -> tuple[Path, dict[str, Any]] | None:
    """Return the file in force and its contents; None if there is none."""
    explicit = named or os.environ.get("TREADLE_CONFIG")
    if explicit:
        path = Path(explicit)
        with suppress(OSError):
            if doubt := _doubt(path.lstat()) or _doubt(path.stat()):
                log.warning("%s is used, since you named it, but %s", path, doubt)
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
        raise ConfigError(f"can't read it: {error.strerror}", where=str(path), remedy="check its permissions") from None


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
