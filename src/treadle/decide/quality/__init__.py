"""Data quality: which share of its input each sink gets, so that all promises are kept (Stream-Economics)."""

from treadle.decide.quality.controller import Controller, Decision, Measured, Move, Short
from treadle.decide.quality.flow import Flow, Promise
from treadle.decide.quality.measures import Kept, Measure, least_part, relative_error
from treadle.decide.quality.rates import InputRate, Rate

__all__ = [
    "Controller",
    "Decision",
    "Flow",
    "InputRate",
    "Kept",
    "Measure",
    "Measured",
    "Move",
    "Promise",
    "Rate",
    "Short",
    "least_part",
    "relative_error",
]
