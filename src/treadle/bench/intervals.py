"""Confidence intervals of means of a few repetitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""By number of repetitions: the 97.5 % quantile of Student's distribution."""


def of_ratios(ratios: Sequence[float]) -> list[float]:
    """Return the 95 % confidence interval of the geometric mean of the ratios; NaN for one repetition."""
    if len(ratios) < 2:
        return [math.nan, math.nan]
    logs = [math.log(ratio) for ratio in ratios]
    middle, half = statistics.fmean(logs), _STUDENT.get(len(logs), 2.0) * statistics.stdev(logs) / math.sqrt(len(logs))
    return [round(math.exp(middle - half), 4), round(math.exp(middle + half), 4)]
