"""The numbers of Linear Road's rules, which the reference and the Spark operators share."""

from __future__ import annotations

from typing import Literal

Mode = Literal["per_minute", "constant_load"]
"""`per_minute`: Linear Road's rules. `constant_load`: one row out for each row in, as in Lachesis' measurements."""

LAS, CV, POS = "las", "cv", "pos"
KINDS = (LAS, CV, POS)
"""Kinds of notifications, in the order in which they leave for one position report."""

POSITION_REPORT = 0
EAST = 0
EXIT_LANE = 4
FREE_VEHICLES = 50
"""A segment with at most so many vehicles in a minute is free of charge."""
SLOW = 40
"""Miles per hour: a toll is due only where the latest average velocity (LAV) is lower."""
LAV_MINUTES = 5
"""Minutes over which the LAV is computed."""
LAV_VALUES = 11
"""In the mode `constant_load`, the most values of which the LAV is the mean. Linear Road itself has no such limit."""
STOPPED_AFTER = 4
"""A vehicle has stopped when so many consecutive reports have the same position."""
DOWNSTREAM = 4
"""An accident makes its own segment free of charge, and so many segments before it in the direction of travel."""


def minute_of(time: int) -> int:
    """The number of the minute of a time in seconds; the first minute is 1."""
    return time // 60 + 1
