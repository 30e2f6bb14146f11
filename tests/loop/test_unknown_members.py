"""Threads and groups of which some members are unknown, and targets that grow stale each at its own time."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from loop.worlds import FOUND, MemoryKnob, World
from treadle.decide.policies import QueueSize
from treadle.loop import Binding
from treadle.loop.quality_rule import QualityRule
from treadle.model import ThreadRef


def share_threads(world: World, *threads: int) -> None:
    """From now on the instances have these threads."""
    topology = world.engine.topology()
    instances = [replace(i, threads=(ThreadRef(n),)) for i, n in zip(topology.instances, threads, strict=True)]
    world.engine._topology = replace(topology, instances=tuple(instances), version=topology.version + 1)


@pytest.mark.parametrize("queues", [(50.0, 10.0, 30.0), (10.0, 50.0, 30.0)])
def test_a_thread_has_the_priority_of_its_most_urgent_instance(world: World, queues: tuple[float, ...]) -> None:
    share_threads(world, 1, 1, 2)
    world.engine.columns["queue"][:] = queues
    world.loop().round()
    assert world.engine.nices() == [-20.0, -20.0, 19.0]


@pytest.mark.parametrize("queues", [(np.nan, 10.0, 30.0), (10.0, np.nan, 30.0)])
def test_a_thread_of_which_one_instance_is_unknown_has_the_priority_of_the_others(
    world: World, queues: tuple[float, ...]
) -> None:
    share_threads(world, 1, 1, 2)
    world.engine.columns["queue"][:] = queues
    world.loop().round()
    assert world.engine.nices() == [19.0, 19.0, -20.0]


@pytest.mark.parametrize(("queues", "urgent"), [((np.nan, 10.0, 5.0), 1), ((10.0, np.nan, 5.0), 0)])
def test_a_group_is_represented_by_its_most_urgent_member_of_known_priority(
    world: World, queues: tuple[float, ...], urgent: int
) -> None:
    world.engine.columns["queue"][:] = queues
    world.engine.shares.values["all"] = 10.0
    *_, batch = world.loop(Binding(QueueSize(), "shares", 1.0, grouping="one")).round()
    (decision,) = batch
    assert (decision.instance, decision.priority) == (f"mem:q.o{urgent}[0]", 10.0)


def test_the_groups_of_a_binding_are_made_of_its_own_rows_only(world: World) -> None:
    world.engine.split("left", "right")
    world.engine.columns["queue"][:] = 1.0, 4.0, 2.0
    world.loop(Binding(QueueSize(), "shares", 1.0, grouping="kmeans", queries=("left",))).round()
    assert list(world.engine.group.values.values()) == ["cluster-0", "cluster-1", "root"]
    assert world.engine.shares.values == {"cluster-0": 512.0, "cluster-1": 2048.0}


def test_a_group_of_a_part_of_the_rows_grows_stale_like_any_other(world: World) -> None:
    world.engine.split("left", "right")
    world.engine.shares.values["right"] = 10.0
    loop = world.loop(Binding(QueueSize(), "shares", 1.0, grouping="query", queries=("right",)), stale_after=1)
    loop.round()
    assert world.engine.shares.values["right"] == 1024.0
    world.engine.columns["queue"][2] = np.nan
    loop.run(4.0)
    assert world.engine.shares.values["right"] == 10.0


def test_instances_are_put_into_groups_where_the_engine_groups_instances(world: World) -> None:
    members = MemoryKnob("group", "instance", dict.fromkeys(world.engine.topology().ids, "root"))
    world.engine._knobs = {**world.engine.knobs(), "group": members}
    world.engine.split("left", "right")
    members.values = dict.fromkeys(world.engine.topology().ids, "root")
    world.engine.columns["queue"][0] = np.nan
    with world.loop(Binding(QueueSize(), "shares", 1.0, queries=("left",))) as loop:
        loop.round()
        assert members.values == {"mem:left.o0[0]": "root", "mem:left.o1[0]": "left", "mem:right.o2[0]": "root"}
    assert set(members.values.values()) == {"root"}


@pytest.mark.parametrize("refuses", [False, True])
def test_each_target_grows_stale_at_its_own_time_also_after_another_one_did(world: World, refuses: bool) -> None:
    loop = world.loop(stale_after=3)
    loop.round()
    world.engine.columns["queue"][0] = np.nan
    loop.run(3.0)
    world.engine.columns["queue"][2] = np.nan
    world.engine.nice.refuses = refuses
    loop.run(1.0)
    world.engine.nice.refuses = False
    loop.run(2.0)
    assert world.engine.nices()[0] == FOUND
    assert world.engine.nices()[2] == -20.0
    loop.run(1.0)
    assert world.engine.nices()[2] == FOUND


def test_the_first_failure_to_keep_promises_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        period = 1.0
        in_process = True
        controller = None

        def measure(self, now: float) -> None:
            raise ValueError("no figures")

        def carry_out(self, decision: object, now: float) -> None:
            raise AssertionError

        def keep_all(self) -> None:
            pass

    caplog.set_level(logging.WARNING)
    QualityRule(Broken(), 60.0).round(10.0)
    (record,) = caplog.records
    assert record.exc_info is not None
