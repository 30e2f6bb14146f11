"""Arrival times of tuples, all drawn before a scenario runs, so that every policy gets the same load."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treadle.engines.simulator.spec import Source
from treadle.errors import ConfigError
from treadle.model import Floats, Ints

MOST_ARRIVALS = 20_000_000
MOST_PIECES = 1_000_000
"""Maximum number of rate changes of a source."""


@dataclass(frozen=True)
class Feed:
    """A source and the nodes that take turns to receive from it."""

    receivers: tuple[int, ...]
    source: Source
    where: str = ""
    """Its name in errors."""


def draw(feeds: list[Feed], seconds: float, seed: int, folder: Path) -> tuple[Floats, Ints]:
    """Return (times, nodes) of all arrivals, merged in time; node -1 marks a tick on which nothing arrived."""
    times: list[Floats] = []
    nodes: list[Ints] = []
    room = float(MOST_ARRIVALS)
    for number, feed in enumerate(feeds):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0xA11, number)))
        at, empty = _arrivals(feed, seconds, rng, folder, room)
        room -= len(at)
        times += [at, empty]
        turns = np.resize(np.array(feed.receivers, dtype=np.int64), len(at))
        nodes += [turns, np.full(len(empty), -1, dtype=np.int64)]
    time, of = np.concatenate(times), np.concatenate(nodes)
    order = np.argsort(time, kind="stable")
    return time[order], of[order]


def _arrivals(feed: Feed, seconds: float, rng: np.random.Generator, folder: Path, room: float) -> tuple[Floats, Floats]:
    """Return the arrival times of one source between its start and stop, and the times of its ticks without tuples."""
    source = feed.source
    end = seconds if source.stop is None else min(seconds, source.stop)
    empty = np.empty(0)
    if source.pattern == "trace":
        at = _trace(folder / (source.file or ""), feed.where)
    elif source.pattern == "ticks":
        _limit(float(sum(source.counts)), room, feed.where)
        at, empty = _ticks(source)
    elif source.pattern == "poisson":
        at = _poisson(source, end, rng, room, feed.where)
    else:
        at = _evenly(*_pieces(source, end, feed.where), room, feed.where)
    return at[(at >= source.start) & (at <= end)], empty[empty <= end]


def _pieces(source: Source, end: float, where: str) -> tuple[Floats, Floats]:
    """Return the times at which the rate changes, with start and end, and the rate between each two of them."""
    rate = source.rate or 0.0
    span = max(end - source.start, 0.0)
    if source.pattern == "constant":
        return np.array([source.start, source.start + span]), np.array([rate])
    bursts = source.pattern == "bursts"
    lengths = (source.on, source.off) if bursts else (source.every, source.every)
    count = 2 * _count(span, sum(lengths), where)
    number = np.arange(count)
    edges = source.start + np.concatenate([[0.0], np.cumsum(np.resize(lengths, count))])
    rates = np.resize((rate, source.idle_rate), count) if bursts else np.maximum(rate + number * source.step, 0.0)
    return np.minimum(edges, source.start + span), rates


def _evenly(edges: Floats, rates: Floats, room: float, where: str) -> Floats:
    """Return arrival times for `rates` between `edges`.

    Tuple k arrives when the integral of the rate reaches k, so no fraction of a tuple is lost when the rate changes.
    """
    due = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])
    _limit(due[-1], room, where)
    number = np.arange(np.ceil(due[-1] - 1e-9))
    piece = np.searchsorted(due, number, side="right") - 1
    return np.asarray(edges[piece] + (number - due[piece]) / rates[piece])


def _poisson(source: Source, end: float, rng: np.random.Generator, room: float, where: str) -> Floats:
    span = max(end - source.start, 0.0)
    length = source.redraw if source.between else span
    pieces: list[Floats] = []
    for number in range(_count(span, length, where)):
        mean = float(rng.uniform(*source.between)) if source.between else source.rate or 0.0
        _limit(mean * length, room, where)
        begin = source.start + number * length
        pieces.append(np.sort(begin + rng.uniform(0.0, length, size=rng.poisson(mean * length))))
        room -= len(pieces[-1])
    return np.concatenate(pieces) if pieces else np.empty(0)


def _ticks(source: Source) -> tuple[Floats, Floats]:
    at = source.start + source.every * np.arange(len(source.counts))
    counts = np.array(source.counts)
    return np.repeat(at, counts), at[counts == 0]


def _trace(path: Path, where: str) -> Floats:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(
            f"can't read the trace '{path}': {error.strerror}", where=where, remedy="name a file beside the scenario"
        ) from None
    except ValueError:
        raise ConfigError(
            f"the trace '{path}' is not a text file", where=where, remedy="write one time per line"
        ) from None
    times: list[float] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        time = _number(line)
        if not np.isfinite(time):
            problem, remedy = f"{line.strip()[:40]!r} is not a time", "write one time in seconds per line"
        elif times and time < times[-1]:
            problem, remedy = f"{time:g} is earlier than the line before", "sort it"
        else:
            times.append(time)
            continue
        raise ConfigError(f"trace '{path}', line {number}: {problem}", where=where, remedy=remedy)
    return np.array(times)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _count(span: float, length: float, where: str) -> int:
    """Return how many pieces of `length` seconds make up `span`; an error if they are too many."""
    count = np.ceil(span / length) if span > 0 else 0.0
    if count > MOST_PIECES:
        raise ConfigError(
            f"the rate changes {count:.2g} times, which is more than {MOST_PIECES:,}",
            where=where,
            remedy="let it change less often",
        )
    return int(count)


def _limit(arrivals: float, room: float, where: str) -> None:
    if arrivals > room:
        raise ConfigError(
            f"{arrivals:.2g} tuples would arrive here, which makes more than {MOST_ARRIVALS:,} in all",
            where=where,
            remedy="lower the rate or the seconds",
        )
