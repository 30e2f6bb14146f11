"""A load generator: a process of its own that fills topics and embedded channels at given rates, open loop."""

from treadle.workloads.load.load import Load, Outcome, Progress, Report, Total
from treadle.workloads.load.rates import Rate, bursty, constant, stepped, trace
from treadle.workloads.load.targets import Channel, Topic

__all__ = [
    "Channel",
    "Load",
    "Outcome",
    "Progress",
    "Rate",
    "Report",
    "Topic",
    "Total",
    "bursty",
    "constant",
    "stepped",
    "trace",
]
