"""Compares rules for two sets of queries with one policy, by the goal of each set: variants, figures and claims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from treadle.bench import intervals
from treadle.bench.claims import Claims, at_least

FCFS, HR = "fcfs", "highest-rate"
BOTH_FCFS, BOTH_HR, RULES = "fcfs in both sets", "highest-rate in both sets", "rules"
NEAR = 0.67
"""The least ratio of a variant's figure to that of rules where rules must only come near the variant."""
Runs = Mapping[str, Sequence[Mapping[str, float]]]
"""By variant: the figures of each repetition."""
Goals = Sequence[tuple[str, str]]
"""The figure of a set, and a variant with one policy."""


def summary(runs: Runs, figures: Sequence[str]) -> dict[str, Any]:
    """Return by variant the means of all repetitions, and the intervals of the ratios of these figures to `RULES`."""
    made: dict[str, Any] = {}
    for name, each in runs.items():
        made[name] = {figure: round(statistics.fmean(run[figure] for run in each), 2) for figure in each[0]}
        for figure in figures if name != RULES and RULES in runs else ():
            made[name][f"{figure} : {RULES}"] = intervals.of_ratios(_ratios(runs, figure, name))
    return made


def claims(runs: Runs, better: Goals, near: Goals) -> Claims:
    """Return the claims: rules surely beat the variants in `better` at these figures, and come near those in `near`."""
    made = []
    for figure, name in better:
        text = f"rules: {figure}, {name} : rules, least of its interval"
        made.append(at_least(text, partial(_least, runs, figure, name), 1.0))
    for figure, name in near:
        made.append(at_least(f"rules: {figure}, {name} : rules", partial(_mean, runs, figure, name), NEAR))
    return made


def _ratios(runs: Runs, figure: str, name: str) -> list[float]:
    """Return by repetition the ratio of a variant's figure to that of rules; KeyError if one was not measured."""
    return [one[figure] / own[figure] for one, own in zip(runs[name], runs[RULES], strict=False)]


def _least(runs: Runs, figure: str, name: str) -> float:
    return intervals.of_ratios(_ratios(runs, figure, name))[0]


def _mean(runs: Runs, figure: str, name: str) -> float:
    return statistics.geometric_mean(_ratios(runs, figure, name))
