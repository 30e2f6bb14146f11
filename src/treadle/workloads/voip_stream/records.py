"""Generates call records: random calls between the numbers of a pool, as for Lachesis, with telemarketers among them.

The pool, the lengths of calls and the share of established calls are those of Lachesis' generator. Its calls have no
telemarketers, so that no score has a meaning. Here a few callers make many short calls, each to another number.

    48213075561,90377421806,2021-03-02T10:15:42.123+0100,31542,true

A line has the calling and the called number, the time at which the call was answered, its duration in seconds, and
whether it was established.
"""

from __future__ import annotations

import numpy as np

from treadle.model import Bools, Ints

CALL = (
    "^[1-9][0-9]{10},[1-9][0-9]{10},"
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}[+-][0-9]{4},"
    "[0-9]{1,9},(true|false)$"
)
"""A line, as a regular expression of Python and of Java."""
POOL = 1_000_000
LOWEST, HIGHEST = 10**10, 10**11 - 1
"""Numbers have 11 digits."""
LONGEST = 86_400
"""Durations are uniform, in seconds below this."""
ESTABLISHED = 0.95
RATE = 1_000
"""Calls per second of event time, all at equal distances. This is the lowest rate with which Lachesis was run."""
BEGIN = np.datetime64("2021-03-02T10:00:00.000", "ms")
"""Local time of the first call, in the zone +0100."""
TELEMARKETERS = 0.001
"""Share of the numbers that are telemarketers."""
BUSY = 100
"""A telemarketer makes this many times as many calls as another number."""
SHORT = 60
"""Durations of telemarketers' calls are uniform, in seconds below this."""
REPEATED = 0.045
"""Share of calls between two numbers that had a call shortly before. The original's Bloom filters took 4.5 % of the
calls for repeated ones by mistake. Exact state makes no such mistake, so the calls themselves are repeated."""
SHORTLY = 10_000
"""A repeated call repeats one of this many calls before it."""


def lines(
    count: int,
    *,
    seed: int = 0,
    pool: int = POOL,
    rate: int = RATE,
    telemarketers: float = TELEMARKETERS,
    repeated: float = REPEATED,
) -> list[str]:
    """Return `count` call records.

    `pool` is the number of phone numbers, `rate` the calls per second of event time. With a pool of 100,000 and 100
    calls per second each number has as many calls in its minute as by default. A list that is replayed should have
    calls of at least 3 seconds: then operators find out by the answer times that it has begun again.
    """
    random = np.random.default_rng(seed)
    numbers = _numbers(random, pool)
    sellers = round(pool * telemarketers)
    share = BUSY * sellers / (BUSY * sellers + pool - sellers)
    selling: Bools = random.random(count) < share
    sold = int(np.count_nonzero(selling))
    calling, called = np.empty(count, np.int64), np.empty(count, np.int64)
    calling[selling], called[selling] = _telemarketing(random, sold, sellers, pool)
    calling[~selling], called[~selling] = _ordinary(random, count - sold, sellers, pool, repeated / (1 - share))
    durations = np.where(selling, random.integers(SHORT, size=count), random.integers(LONGEST, size=count))
    established = np.where(random.random(count) < ESTABLISHED, "true", "false")
    answered = np.datetime_as_string(BEGIN + (np.arange(count) * 1000 // rate).astype("timedelta64[ms]"))
    columns = (numbers[calling], numbers[called], answered, durations, established)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [f"{caller},{callee},{at}+0100,{duration},{known}" for caller, callee, at, duration, known in rows]


def _numbers(random: np.random.Generator, size: int) -> Ints:
    """Different phone numbers, in random order. A few more are drawn than needed, since some are equal."""
    drawn = np.unique(random.integers(LOWEST, HIGHEST, size=size + size // 1000 + 100, endpoint=True))
    return random.permutation(drawn)[:size]


def _ordinary(random: np.random.Generator, count: int, sellers: int, pool: int, repeated: float) -> tuple[Ints, Ints]:
    """Callers and called ones of ordinary calls, by their places in the pool. The first places are telemarketers'."""
    calling = random.integers(sellers, pool, size=count)
    called = _another(calling, random.integers(pool - 1, size=count), pool)
    places = np.arange(count)
    again: Bools = (random.random(count) < repeated) & (places > 0)
    back = 1 + (random.random(count) * np.minimum(places, SHORTLY)).astype(np.int64)
    origin = np.where(again, places - back, places)
    while again[origin].any():  # a repeated call may repeat a repeated one
        origin = origin[origin]
    return calling[origin], called[origin]


def _telemarketing(random: np.random.Generator, count: int, sellers: int, pool: int) -> tuple[Ints, Ints]:
    """Callers and called ones of telemarketers. Each begins anywhere in the pool and calls one place after another."""
    calling = random.integers(max(1, sellers), size=count)
    begin = random.integers(pool - 1, size=max(1, sellers))
    order = np.argsort(calling, kind="stable")
    in_order = calling[order]
    before = np.empty(count, np.int64)
    before[order] = np.arange(count) - np.searchsorted(in_order, in_order)
    return calling, _another(calling, begin[calling] + before, pool)


def _another(places: Ints, steps: Ints, pool: int) -> Ints:
    """The places that are so many steps further in the pool, round and round, without the places themselves."""
    return (places + 1 + steps % (pool - 1)) % pool
