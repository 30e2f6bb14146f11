"""Setups that can not work are refused before anything is changed."""

from __future__ import annotations

import math

import pytest

from loop.worlds import NeedsCost, World
from treadle.decide.policies import QueueSize
from treadle.errors import ConfigError, EngineError
from treadle.loop import Binding, Loop


class TestWrongSetups:
    @pytest.mark.parametrize("period", [0.0, -1.0, math.nan, math.inf])
    def test_a_period_must_be_above_zero(self, period: float) -> None:
        with pytest.raises(ConfigError, match="policy 'queue-size': its period can't be"):
            Binding(QueueSize(), "nice", period)

    def test_what_is_unknown_is_named(self) -> None:
        with pytest.raises(ConfigError, match="unknown grouping 'colour'"):
            Binding(QueueSize(), "shares", 1.0, grouping="colour")
        with pytest.raises(ConfigError, match="knob 'volume' has no scale of its own"):
            Binding(QueueSize(), "volume", 1.0)
        with pytest.raises(ConfigError, match="names no queries"):
            Binding(QueueSize(), "nice", 1.0, queries=())

    def test_a_knob_that_no_engine_has_is_named_with_those_it_has(self, world: World) -> None:
        with pytest.raises(EngineError, match=r"no engine has a knob 'rt' \(mem has group, nice, rank, shares"):
            world.loop(Binding(world.policy, "rt", 1.0))
        with pytest.raises(EngineError, match=r"its queries flink/\* match no engine"):
            world.loop(Binding(world.policy, "nice", 1.0, queries=("flink/*",)))

    def test_a_grouping_is_for_groups(self, world: World) -> None:
        with pytest.raises(ConfigError, match="knob 'nice' is not for groups"):
            world.loop(Binding(world.policy, "nice", 1.0, grouping="query"))

    def test_a_metric_that_cannot_be_had_is_named_before_anything_is_changed(self, world: World) -> None:
        with pytest.raises(EngineError, match="needs-cost"):
            world.loop(Binding(world.policy, "rank", 1.0), Binding(NeedsCost(), "nice", 1.0))
        assert world.engine.rank.writes == []

    def test_a_loop_needs_engines_of_different_names_and_a_policy(self, world: World) -> None:
        with pytest.raises(ConfigError, match="there is no policy to run"):
            Loop([world.engine], [])
        with pytest.raises(ConfigError, match="there is no engine to run"):
            Loop([], [Binding(world.policy, "nice", 1.0)])
        with pytest.raises(ConfigError, match="two engines are named 'mem'"):
            Loop([world.engine, world.engine], [Binding(world.policy, "nice", 1.0)])
        with pytest.raises(ConfigError, match="stale_after=0"):
            world.loop(stale_after=0)
        with pytest.raises(ConfigError, match="sample_timeout=0"):
            world.loop(sample_timeout=0)
        with pytest.raises(ConfigError, match="tau can't be -1"):
            world.loop(tau=-1)
