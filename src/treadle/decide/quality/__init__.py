"""Quality of data: how much of its input each sink may have, so that all keep their promises (Stream-Economics)."""

from treadle.decide.quality.controller import Controller, Decision, Measured, Move, Short
from treadle.decide.quality.flow import Flow, Promise
from treadle.decide.quality.rates import InputRate, Rate

__all__ = ["Controller", "Decision", "Flow", "InputRate", "Measured", "Move", "Promise", "Rate", "Short"]
