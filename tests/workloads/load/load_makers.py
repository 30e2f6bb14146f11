"""Makers for the load process of the tests, which imports this module by name."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa


def lines(count: int, *, seed: int) -> list[str]:
    sys.stdout.write("what a maker prints does no harm")
    return [f'{seed}/{number} "ü\\" €' for number in range(count)]


def long_lines(count: int, *, seed: int) -> list[str]:
    return ["x" * 2_000_000] * count


def numbers(first: int, count: int, random: np.random.Generator) -> pa.Table:
    return pa.table({"square": np.arange(first, first + count) ** 2, "v": random.random(count)})


def fails(count: int, *, seed: int) -> list[str]:
    raise ValueError("no data here")


def nothing(count: int, *, seed: int) -> list[str]:
    return []


def taken(first: int, count: int, random: np.random.Generator) -> pa.Table:
    return pa.table({"id": np.arange(count)})


def short(first: int, count: int, random: np.random.Generator) -> pa.Table:
    return pa.table({"v": random.random(count - 1)})
