"""How the suites speak: every failure is an AssertionError that begins with who failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def demand(holds: object, who: str, message: str) -> None:
    """What must hold; not an assert statement, since those can be switched off."""
    if not holds:
        raise AssertionError(f"{who}: {message}")


@contextmanager
def blaming(who: str, what: str) -> Iterator[None]:
    """Whatever is raised inside is their fault."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{who}: {what} raised {type(error).__name__}: {error}") from error
