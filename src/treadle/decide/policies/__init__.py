"""All policies that come with Treadle, one per module. `treadle.decide.registry` creates them from text."""

from treadle.decide.policies.around.multi_class import MultiClass
from treadle.decide.policies.around.weighted import Weighted
from treadle.decide.policies.chain import Chain, Segment, segments
from treadle.decide.policies.congestion_aware import CongestionAware
from treadle.decide.policies.downstream_first import DownstreamFirst
from treadle.decide.policies.fcfs import Fcfs
from treadle.decide.policies.fifo import Fifo
from treadle.decide.policies.highest_rate import HighestRate
from treadle.decide.policies.min_latency import MinLatency
from treadle.decide.policies.mtiq import Mtiq
from treadle.decide.policies.none import Nothing
from treadle.decide.policies.normalized_rate import NormalizedRate
from treadle.decide.policies.queue_size import QueueSize
from treadle.decide.policies.random import Random
from treadle.decide.policies.round_robin import RoundRobin
from treadle.decide.policies.shared.spec import Options
from treadle.decide.policies.user_priority import UserPriority

__all__ = [
    "Chain",
    "CongestionAware",
    "DownstreamFirst",
    "Fcfs",
    "Fifo",
    "HighestRate",
    "MinLatency",
    "Mtiq",
    "MultiClass",
    "NormalizedRate",
    "Nothing",
    "Options",
    "QueueSize",
    "Random",
    "RoundRobin",
    "Segment",
    "UserPriority",
    "Weighted",
    "segments",
]
