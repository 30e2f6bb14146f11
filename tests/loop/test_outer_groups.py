"""Groups within groups: both kinds get shares, each on a scale of its own."""

from __future__ import annotations

import numpy as np

from loop.worlds import MemoryEngine, TestClock, World
from treadle.decide.policies import QueueSize
from treadle.loop import Binding, Loop
from treadle.values import Groups, Schedule, Snapshot


class Nested(QueueSize):
    """Three groups in two: a has the first two rows, b all others."""

    def decide(self, snapshot: Snapshot) -> Schedule:
        queue = snapshot["queue"]
        rows = np.arange(len(queue))
        outer = Groups(("a", "b"), (rows > 1).astype(np.int64), np.array([1.0, 4.0]))
        return Schedule(
            queue, groups=Groups(("a/x", "a/y", "b/z"), np.minimum(rows, 2), np.array([1.0, 2.0, 4.0]), outer)
        )


def test_outer_groups_compete_with_each_other_and_not_with_inner_ones(world: World) -> None:
    with world.loop(Binding(Nested(), "shares", 1.0)) as loop:
        loop.round()
        assert world.engine.shares.values == {"a/x": 512.0, "a/y": 1024.0, "b/z": 2048.0, "a": 512.0, "b": 2048.0}
        assert list(world.engine.group.values.values()) == ["a/x", "a/y", "b/z"]
        assert {(each.target, each.instance) for each in loop.decisions if each.target in ("a", "b")} == {
            ("a", "mem:q.o1[0]"),
            ("b", "mem:q.o2[0]"),
        }
    assert set(world.engine.shares.values.values()) == {1024.0}


def test_an_outer_group_of_an_engine_that_fails_keeps_its_place_on_the_scale() -> None:
    one, two = MemoryEngine("one", [1.0, 2.0]), MemoryEngine("two", [3.0])
    loop = Loop([one, two], [Binding(Nested(), "shares", 1.0)], clock=TestClock())
    loop.round()
    first = dict(one.shares.values)
    assert (first["a"], two.shares.values["b"]) == (512.0, 2048.0)
    two.fails = OSError("down")
    loop.round(force=True)
    assert (one.shares.values["a"], two.shares.values["b"]) == (512.0, 2048.0)


def test_an_outer_group_without_a_member_of_known_priority_is_left_as_it_is(world: World) -> None:
    loop = world.loop(Binding(Nested(), "shares", 1.0), stale_after=1)
    loop.round()
    world.engine.columns["queue"][2] = np.nan
    loop.round(force=True)
    assert world.engine.shares.values["b"] == 2048.0
    loop.round(force=True)
    loop.round(force=True)
    assert (world.engine.shares.values["b"], world.engine.shares.values["b/z"]) == (1024.0, 1024.0)
    assert world.engine.group.values[world.engine.topology().threads[2]] == "root"
