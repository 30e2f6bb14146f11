"""Call records for tests: single lines, and traffic in which each part of the score takes many values."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from random import Random

from treadle.workloads.voip_stream.reference import Call

BEGIN = datetime(2021, 3, 2, 10, 0, tzinfo=timezone(timedelta(hours=1)))
SECOND = int(BEGIN.timestamp())
"""The second 0 of the functions below, since 1970."""


def number(place: int) -> int:
    return 10**10 + place


def line(calling: int, called: int, at: float, duration: int = 60, established: bool = True) -> str:
    """A record of a call between two numbers of a small pool, at a second."""
    answered = (BEGIN + timedelta(seconds=at)).isoformat(timespec="milliseconds").replace("+01:00", "+0100")
    return f"{number(calling)},{number(called)},{answered},{duration},{str(established).lower()}"


def call(place: int, calling: int, called: int, at: int, duration: int = 60, *, established: bool = True) -> Call:
    """The call of such a record, as the parser returns it."""
    return Call(place, number(calling), number(called), SECOND + at, duration, established)


def traffic(count: int, seed: int = 0) -> list[str]:
    """Calls of twelve numbers, some of which call rarely. Pairs repeat.

    The average duration of all calls stays close to that of the first ten calls. So these are short, and the durations
    of the others are from half of theirs to 15 times as long.
    """
    random = Random(seed)
    found, at = [], 0.0
    for place in range(count):
        at += random.choice([0.0, 0.5, 1.0, 3.0])
        calling = min(int(random.expovariate(0.4)), 11)
        called = random.choice([each for each in range(12) if each != calling])
        duration = 100 if place < 10 else random.randint(50, 1_500)
        found.append(line(calling, called, at, duration, random.random() < 0.9))
    return found
