"""When tuples arrive. All arrivals of a scenario are drawn before it runs, so that every policy meets the same load."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from treadle.engines.simulator.scenario import Source
from treadle.errors import ConfigError
from treadle.model import Floats, Ints

MOST_ARRIVALS = 50_000_000


def draw(sources: list[tuple[tuple[int, ...], Source]], seconds: float, seed: int, folder: Path) -> tuple[Floats, Ints]:
    """(times, nodes) of all sources, merged in time; node -1 marks a tick on which nothing arrived.

    The copies of a parallel source take turns.
    """
    times: list[Floats] = []
    nodes: list[Ints] = []
    for number, (receivers, source) in enumerate(sources):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0xA11, number)))
        at, empty = _ticks(source) if source.pattern == "ticks" else (_times(source, seconds, rng, folder), np.empty(0))
        end = seconds if source.stop is None else min(seconds, source.stop)
        at = at[(at >= source.start) & (at <= end)]
        times += [at, empty]
        turns = np.resize(np.array(receivers, dtype=np.int64), len(at))
        nodes += [turns, np.full(len(empty), -1, dtype=np.int64)]
    time, of = np.concatenate(times), np.concatenate(nodes)
    order = np.argsort(time, kind="stable")
    return time[order], of[order]


def _times(source: Source, seconds: float, rng: np.random.Generator, folder: Path) -> Floats:
    if source.pattern == "trace":
        return _trace(folder / (source.file or ""))
    rate = source.rate or 0.0
    if source.pattern == "constant":
        return source.start + _spaced(rate, seconds - source.start)
    if source.pattern == "poisson":
        return _poisson(source, seconds, rng)
    pieces: list[Floats] = []
    begin, number = source.start, 0
    while begin < seconds:
        if source.pattern == "bursts":
            length, now = (source.off, source.idle_rate) if number % 2 else (source.on, rate)
        else:
            length, now = source.every, max(rate + number * source.step, 0.0)
        pieces.append(begin + _spaced(now, min(length, seconds - begin)))
        begin, number = begin + length, number + 1
    return np.concatenate(pieces) if pieces else np.empty(0)


def _spaced(rate: float, seconds: float) -> Floats:
    _limit(rate * seconds)
    return np.arange(int(rate * max(seconds, 0.0))) / rate if rate > 0 else np.empty(0)


def _poisson(source: Source, seconds: float, rng: np.random.Generator) -> Floats:
    pieces: list[Floats] = []
    begin = source.start
    length = source.redraw if source.between else max(seconds - begin, 0.0)
    while begin < seconds and length > 0:
        mean = float(rng.uniform(*source.between)) if source.between else source.rate or 0.0
        _limit(mean * length)
        pieces.append(np.sort(begin + rng.uniform(0.0, length, size=rng.poisson(mean * length))))
        begin += length
    return np.concatenate(pieces) if pieces else np.empty(0)


def _ticks(source: Source) -> tuple[Floats, Floats]:
    at = source.start + source.every * np.arange(len(source.counts))
    counts = np.array(source.counts)
    return np.repeat(at, counts), at[counts == 0]


def _trace(path: Path) -> Floats:
    try:
        lines = path.read_text(encoding="utf-8").split()
        times = np.array([float(line) for line in lines])
    except OSError as error:
        raise ConfigError(f"can't read the trace: {error.strerror}", where=str(path), remedy="check its path") from None
    except (ValueError, UnicodeDecodeError):
        raise ConfigError(
            "the trace holds something that is no number", where=str(path), remedy="write one time in seconds a line"
        ) from None
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise ConfigError("the trace is not in order of time", where=str(path), remedy="sort it; no NaN, no infinity")
    return times


def _limit(arrivals: float) -> None:
    if arrivals > MOST_ARRIVALS:
        raise ConfigError(
            f"a source sends {arrivals:.2g} tuples, more than {MOST_ARRIVALS:.0e}",
            remedy="lower its rate or the seconds",
        )
