"""Loads a pipeline from a Python file or module; if that fails, the error names the line and the cause.

A file is run as a private module, which is removed from `sys.modules` afterwards. So two files of the same name don't
collide, and Spark's Python workers get the file's functions by value, as from a script.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from treadle.errors import ConfigError, TreadleError
from treadle.pipelines.nodes.definition import Definition
from treadle.plugins import suggestion

P = TypeVar("P", bound=Definition)
_importing: ContextVar[str | None] = ContextVar("importing", default=None)


def being_imported() -> str | None:
    """The file that is being imported to load its pipeline; it must not run the pipeline during the import."""
    return _importing.get()


def load_as(kind: type[P], path_or_module: str | Path, name: str | None = None) -> P:
    """Load and check the pipeline of `file.py` or `package.module`.

    If there are several, `name` or `file.py:name` chooses one, by its variable or by the pipeline's own name.
    """
    where = str(path_or_module)
    if name is None and not Path(where).exists() and ":" in where:
        where, _, name = where.rpartition(":")
    module = _from_module(where) if _names_a_module(where) else _from_file(Path(where))
    pipeline = _choose(kind, vars(module), name, where)
    pipeline.check()
    return pipeline


def _names_a_module(text: str) -> bool:
    return not text.endswith(".py") and not Path(text).exists() and all(p.isidentifier() for p in text.split("."))


def _from_module(name: str) -> ModuleType:
    try:
        with _import_of(name):
            return importlib.import_module(name)
    except TreadleError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no file and no module '{name}'", remedy="give a file, as pipeline.py, or an installed module"
            ) from error
        raise _broken(error, None, name) from error
    except (Exception, SystemExit) as error:
        raise _broken(error, None, name) from error


def _from_file(path: Path) -> ModuleType:
    code = _read(path)
    path = path.resolve()
    module = ModuleType(f"_treadle_pipeline_{path.stem}")
    module.__file__ = str(path)
    try:
        with _import_of(path.name), _as_script(path, module):
            exec(compile(code, str(path), "exec", dont_inherit=True), vars(module))
    except TreadleError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken(error, path, path.name) from error
    return module


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise ConfigError("is a folder", where=str(path), remedy="name a file in it, as pipeline.py")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        near = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        hint = suggestion(path.name, near[:10], "check the path")
        raise ConfigError("there is no such file", where=str(path), remedy=hint) from error
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise ConfigError(f"can't be read: {problem}", where=str(path), remedy="check its permissions") from error


@contextmanager
def _as_script(path: Path, module: ModuleType) -> Iterator[None]:
    """Context in which a file runs as with `python file.py`: its folder is in `sys.path`, its module in `sys.modules`.

    Afterwards the folder stays at the end of `sys.path`, for imports inside the pipeline's functions.
    """
    folder = str(path.parent)
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
        if before is None:
            sys.modules.pop(module.__name__, None)
        else:
            sys.modules[module.__name__] = before


def _choose(kind: type[P], found: Mapping[str, object], name: str | None, where: str) -> P:
    by_variable = {variable: value for variable, value in found.items() if isinstance(value, kind)}
    distinct = {id(p): (variable, p) for variable, p in reversed(by_variable.items())}
    if not distinct:
        raise ConfigError("has no pipeline", where=where, remedy='make one at its top level: p = Pipeline("…")')
    variables = sorted(variable for variable, _ in distinct.values())
    if name is not None:
        by_name = {p.name: p for _, p in distinct.values()}
        chosen = by_variable.get(name) or by_name.get(name)
        if chosen is None:
            raise ConfigError(
                f"has no pipeline '{name}'", where=where, remedy=suggestion(name, [*by_variable, *by_name])
            )
        return chosen
    if len(distinct) > 1:
        raise ConfigError(
            f"has several pipelines: {', '.join(variables)}",
            where=where,
            remedy=f"choose one, as {where}:{variables[0]}",
        )
    return next(iter(distinct.values()))[1]


def _broken(error: BaseException, path: Path | None, name: str) -> ConfigError:
    """Make a ConfigError from an exception in a user's file, with the last line of that file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{Path(error.filename).name}:{error.lineno}"
        return ConfigError(f"{type(error).__name__}: {error.msg}", where=place, remedy="fix this line")
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename == str(path)] if path else frames[-1:]
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else name
    if isinstance(error, SystemExit):
        return ConfigError(
            "ends the program while it is imported",
            where=place,
            remedy="put what is only for running it under: if __name__ == '__main__':",
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        package = "'treadle[spark]'" if top == "pyspark" else top
        return ConfigError(
            f"needs the module {error.name}", where=place, remedy=f"pip install {package}, or fix its name"
        )
    return ConfigError(f"{type(error).__name__}: {error}", where=place, remedy="fix this line")


@contextmanager
def _import_of(file: str) -> Iterator[None]:
    """Context in which running a pipeline is an error, while `file` is imported to load its pipeline."""
    token = _importing.set(file)
    try:
        yield
    finally:
        _importing.reset(token)
