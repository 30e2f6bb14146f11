"""Failures of the conformance suites: AssertionErrors that begin with the tested object."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def demand(holds: object, who: str, message: str) -> None:
    """Raise an AssertionError unless `holds`; an assert statement could be switched off."""
    if not holds:
        raise AssertionError(f"{who}: {message}")


@contextmanager
def blaming(who: str, what: str) -> Iterator[None]:
    """Turn any exception in the block into an AssertionError that names `who`; `what` is what was called."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{who}: {what} raised {type(error).__name__}: {error}") from error
