"""Which thread, instance or group gets which value: also of rows that are unknown, and when the topology changes."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from loop.worlds import FOUND, ByQueue, MemoryEngine, TestClock, World
from treadle.decide.policies import CongestionAware, QueueSize, UserPriority
from treadle.decide.transform import nice as nice_scale
from treadle.enforce import Target, Value
from treadle.errors import ConfigError
from treadle.loop import Binding, Loop
from treadle.model import ThreadRef, Topology
from treadle.values import Groups, Schedule, Snapshot


class TestUnknown:
    def test_an_unknown_row_keeps_its_last_decision_and_then_ages_out(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        for _ in range(3):
            world.clock.time += 1
            loop.round()
            assert world.engine.nices() == [19.0, 0.0, -20.0]
        world.clock.time += 1
        (batch,) = loop.round()
        assert world.engine.nices() == [19.0, FOUND, -20.0]
        (decision,) = batch
        assert decision.instance == "mem:q.o1[0]"
        assert decision.reason == "unknown for more than 3 rounds, put back as it was found"

    def test_what_is_known_again_is_set_again(self, world: World) -> None:
        loop = world.loop(stale_after=1)
        loop.round()
        for value in (np.nan, np.nan, 50.0):
            world.engine.columns["queue"][1] = value
            world.clock.time += 1
            loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]

    def test_a_stale_value_that_cannot_be_put_back_is_tried_again(self, world: World) -> None:
        loop = world.loop(stale_after=1)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        world.engine.nice.refuses = True
        for _ in range(3):
            world.clock.time += 1
            loop.round()
        world.engine.nice.refuses = False
        world.clock.time += 1
        loop.round()
        assert world.engine.nices() == [19.0, FOUND, -20.0]

    def test_a_change_of_the_topology_makes_nothing_younger(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.columns["queue"][1] = np.nan
        loop.run(3.0)
        world.engine.run(["o1", "o0"])
        world.engine.columns["queue"] = np.array([np.nan, 5.0])
        loop.run(2.0)
        assert world.engine.nice.values[ThreadRef(2)] == FOUND

    def test_a_thread_that_serves_another_of_whom_nothing_is_known_is_put_back_at_once(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        world.engine.split("q", "other")
        world.engine.columns["queue"][2] = np.nan
        world.clock.time += 1
        batches = loop.round()
        assert world.engine.nices()[2] == FOUND
        assert "serves another instance, put back as it was found" in [
            each.reason for batch in batches for each in batch
        ]

    def test_a_thread_that_serves_a_query_that_is_not_scheduled_is_put_back_at_once(self, world: World) -> None:
        loop = world.loop(Binding(QueueSize(), "nice", 1.0, queries=("q",)))
        loop.round()
        world.engine.split("q", "other")
        world.clock.time += 1
        loop.round()
        assert world.engine.nices()[2] == FOUND

    def test_an_engine_that_stays_away_ages_out_as_a_whole(self, world: World) -> None:
        loop = world.loop(stale_after=3)
        loop.round()
        world.engine.fails = OSError("down")
        loop.run(5.0)
        assert world.engine.nices() == [FOUND] * 3


class TestTargets:
    def test_helpers_follow_their_main_where_the_policy_says_nothing_else(self) -> None:
        engine = MemoryEngine("mem", [0.0, 100.0], helpers=True)
        Loop([engine], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()).round()
        assert engine.nices() == [19.0, 19.0, -20.0, -20.0]

    def test_helpers_have_their_own_priority_where_the_policy_gives_one(self) -> None:
        engine = MemoryEngine("mem", [0.0, 100.0], helpers=True)
        engine.columns["output_queue"][:] = 100.0, 0.0
        Loop([engine], [Binding(CongestionAware(), "nice", 1.0)], clock=TestClock()).round()
        assert engine.nices() == [19.0, -20.0, -20.0, 19.0]

    def test_a_thread_of_several_instances_has_the_highest_of_their_priorities(self, world: World) -> None:
        topology = world.engine.topology()
        shared = tuple(replace(i, threads=(ThreadRef(1 + row // 2),)) for row, i in enumerate(topology.instances))
        world.engine._topology = replace(topology, instances=shared)
        world.engine.columns["queue"][:] = 50.0, 10.0, 0.0
        world.loop().round()
        assert world.engine.nice.writes == [(ThreadRef(1), -20.0), (ThreadRef(2), 19.0)]

    def test_instances_are_called_as_their_engine_calls_them(self) -> None:
        engines = [MemoryEngine(name, [1.0, 2.0]) for name in ("one", "two")]
        Loop(engines, [Binding(QueueSize(), "rank", 1.0)], clock=TestClock()).round()
        assert engines[1].rank.values == {"two:q.o0[0]": 0.0, "two:q.o1[0]": 1.0}

    def test_two_engines_are_put_on_one_scale(self) -> None:
        calm, busy = MemoryEngine("calm", [0.0, 10.0]), MemoryEngine("busy", [90.0, 100.0])
        Loop([calm, busy], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()).round()
        assert calm.nices() == [19.0, 15.0]
        assert busy.nices() == [-16.0, -20.0]

    def test_nobody_changes_places_when_the_threads_of_one_are_gone_for_a_while(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        assert world.engine.nices() == [19.0, 0.0, -20.0]
        topology = world.engine.topology()
        first, *rest = topology.instances
        world.engine._topology = replace(topology, instances=(replace(first, threads=()), *rest), version=2)
        loop.round(force=True)
        assert world.engine.nices() == [0.0, -20.0]

    def test_nobody_changes_places_when_another_engine_does_not_answer(self) -> None:
        engines = [MemoryEngine(name, [0.0]) for name in ("one", "two", "three")]
        for engine, priority in zip(engines, (0.0, 5.0, 10.0), strict=True):
            topology = engine.topology()
            engine._topology = replace(topology, queries=(replace(topology.queries[0], priority=priority),))
        loop = Loop(engines, [Binding(UserPriority(), "nice", 1.0)], clock=TestClock())
        loop.round()
        engines[0].fails = RuntimeError("late")
        loop.round(force=True)
        assert [engine.nices() for engine in engines] == [[19.0], [0.0], [-20.0]]

    def test_an_engine_that_is_added_later_shares_the_scale(self) -> None:
        calm, busy = MemoryEngine("calm", [0.0, 10.0]), MemoryEngine("busy", [90.0, 100.0])
        loop = Loop([calm], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock())
        loop.round()
        assert (calm.nices(), busy.nices()) == ([19.0, -20.0], [FOUND] * 2)
        loop.add(busy)
        loop.round(force=True)
        assert (calm.nices(), busy.nices()) == ([19.0, 15.0], [-16.0, -20.0])
        loop.restore()
        assert (calm.nices(), busy.nices()) == ([FOUND] * 2, [FOUND] * 2)
        with pytest.raises(ConfigError, match="two engines are named 'busy'"):
            loop.add(MemoryEngine("busy", [0.0]))

    def test_an_engine_that_is_removed_leaves_nothing_behind_but_the_counts(self) -> None:
        stays, goes = MemoryEngine("stays", [0.0, 10.0]), MemoryEngine("goes", [90.0, 100.0])
        loop = Loop([stays], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock())
        for number in range(3):
            loop.add(goes)
            loop.round(force=True)
            goes.fails = RuntimeError("late")
            loop.round(force=True)
            goes.fails = None  # whose traceback holds the watch
            assert loop.stats.failures == {"stays": 0, "goes": 1}
            held = weakref.ref(loop._watches[-1])
            loop.remove("goes")
            gc.collect()
            assert held() is None
            assert goes.nices() == [FOUND] * 2
            assert loop.stats.restored == 2 * (number + 1)
        changes = loop.stats.changes
        assert changes >= 6
        assert loop.stats.failures == {"stays": 0}
        assert {key[0] for key in (*loop._enforcers, *loop._rules[0].controllers)} == {"stays"}
        loop.round(force=True)
        assert stays.nices() == [19.0, -20.0]
        loop.restore()
        assert stays.nices() == [FOUND] * 2

    def test_without_any_engine_there_is_nothing_to_do_until_one_is_added(self) -> None:
        first, second = MemoryEngine("first", [0.0, 10.0]), MemoryEngine("second", [0.0, 10.0])
        loop = Loop([first], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock())
        loop.round()
        loop.remove("first")
        assert loop.round(force=True) == ()
        assert loop.settled
        loop.add(second)
        loop.round(force=True)
        assert second.nices() == [19.0, -20.0]

    def test_what_can_not_be_put_back_of_a_removed_engine_is_tried_again_at_the_end(self) -> None:
        engine = MemoryEngine("engine", [0.0, 10.0])
        with Loop([engine], [Binding(QueueSize(), "nice", 1.0)], clock=TestClock()) as loop:
            loop.round()
            engine.nice.refuses = True
            loop.remove("engine")
            assert engine.nices() == [19.0, -20.0]
            engine.nice.refuses = False
        assert engine.nices() == [FOUND] * 2

    def test_a_binding_can_have_a_scale_of_its_own(self, world: World) -> None:
        world.loop(Binding(world.policy, "nice", 1.0, scale=nice_scale(low=0))).round()
        assert world.engine.nices() == [19.0, 10.0, 0.0]

    def test_a_binding_is_for_its_queries_only_and_the_first_that_fits_has_them(self) -> None:
        engines = [MemoryEngine(name, [0.0, 10.0]) for name in ("one", "two", "three")]
        engines[2].run(["o0", "o1"], "other")
        bindings = [
            Binding(QueueSize(), "nice", 1.0, queries=("two/*", "othe?")),
            Binding(QueueSize(), "nice", 1.0, scale=nice_scale(0, 5), queries=("q",)),
        ]
        loop = Loop(engines, bindings, clock=TestClock())
        loop.round()
        assert [engine.nices() for engine in engines] == [[5.0, 0.0], [19.0, -20.0], [19.0, -20.0]]
        loop.restore()
        assert [engine.nices() for engine in engines] == [[FOUND] * 2] * 3

    def test_only_engines_that_can_be_meant_must_have_the_metrics(self) -> None:
        able, unable = MemoryEngine("able", [0.0, 1.0]), MemoryEngine("unable", [0.0, 1.0])
        unable.offers = frozenset()
        Loop([able, unable], [Binding(QueueSize(), "nice", 1.0, queries=("able/*",))], clock=TestClock()).round()
        assert (able.nices(), unable.nices()) == ([19.0, -20.0], [FOUND] * 2)


class TestGroups:
    def test_members_are_put_into_groups_before_the_groups_get_their_shares(self) -> None:
        one, two = MemoryEngine("one", [0.0, 100.0]), MemoryEngine("two", [50.0, 25.0])
        writes: list[tuple[Target, Value]] = []
        one.group.writes = one.shares.writes = writes
        loop = Loop([one, two], [Binding(QueueSize(), "shares", 1.0, grouping="query")], clock=TestClock())
        loop.round()
        assert set(one.group.values.values()) == {"one/q"}
        assert set(two.group.values.values()) == {"two/q"}
        assert one.shares.values["one/q"] == pytest.approx(2 * float(two.shares.values["two/q"]), rel=0.01)
        assert "two/q" not in one.shares.values
        assert [target for target, _ in writes] == [ThreadRef(1), ThreadRef(2), "one/q"]
        loop.restore()
        assert set(one.group.values.values()) == {"root"}
        assert one.shares.values == {"one/q": 1024.0}
        assert [target for target, _ in writes[3:]] == ["one/q", ThreadRef(1), ThreadRef(2)]

    def test_groups_of_the_policy_itself_are_taken(self, world: World) -> None:
        class Pair(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                groups = Groups(("low", "high"), np.array([0, -1, 1]), np.array([1.0, 4.0]))
                return Schedule(snapshot["queue"], groups=groups)

        world.loop(Binding(Pair(), "shares", 1.0)).round()
        assert list(world.engine.group.values.values()) == ["low", "root", "high"]
        assert world.engine.shares.values == {"low": 512.0, "high": 2048.0}

    def test_a_group_counts_in_an_engine_only_by_the_members_that_it_has_there(self) -> None:
        """In each engine only groups with a member of known priority get shares, though a decision spans both."""

        class Mixed(QueueSize):
            def decide(self, snapshot: Snapshot) -> Schedule:
                groups = Groups(("low", "mid", "high"), np.array([0, 1, 2, 1, 2]), np.array([1.0, 2.0, 4.0]))
                return Schedule(np.where(np.arange(5) == 3, np.nan, 1.0), groups=groups)

        one, two = MemoryEngine("one", [1.0, 1.0]), MemoryEngine("two", [1.0, 1.0, 1.0])
        Loop([one, two], [Binding(Mixed(), "shares", 1.0)], clock=TestClock()).round()
        assert {name: value for name, value in one.shares.values.items() if value != 1024.0} == {"low": 512.0}
        assert set(one.shares.values) == {"low", "mid"}
        assert two.shares.values == {"high": 2048.0}

    def test_a_group_that_is_not_named_any_more_keeps_its_shares_and_ages_out(self, world: World) -> None:
        loop = world.loop(Binding(world.policy, "shares", 1.0, grouping="kmeans"), stale_after=2)
        world.engine.columns["queue"][:] = 1.0, 2.0, 4.0
        loop.round()
        shares = dict(world.engine.shares.values)
        assert set(shares) == {"cluster-0", "cluster-1", "cluster-2"}
        world.engine.fails = OSError("down")
        loop.run(2.0)
        assert world.engine.shares.values == shares
        loop.run(2.0)
        assert set(world.engine.shares.values.values()) == {1024.0}
        assert set(world.engine.group.values.values()) == {"root"}
        assert {d.instance for d in loop.decisions.batches[-1]} == {""}

    def test_groups_of_two_bindings_of_one_knob_are_kept_apart(self) -> None:
        one, two = MemoryEngine("one", [0.0, 100.0]), MemoryEngine("two", [50.0, 25.0])
        bindings = [Binding(QueueSize(), "shares", 1.0, grouping="one", queries=(f"{e}/*",)) for e in ("one", "two")]
        Loop([one, two], bindings, clock=TestClock()).round()
        assert set(one.shares.values) == {"all"}
        assert set(two.shares.values) == {"all-2"}

    def test_what_is_another_bindings_does_not_grow_stale(self, world: World) -> None:
        world.engine.split("left", "right")
        world.engine.shares.values.update({"all": 10.0, "all-2": 10.0})
        loop = world.loop(
            Binding(QueueSize(), "shares", 1.0, grouping="one", queries=("left",)),
            Binding(QueueSize(), "shares", 1.0, grouping="one", queries=("right",)),
            Binding(QueueSize(), "nice", 1.0, queries=("left",)),
            Binding(QueueSize(), "nice", 1.0, queries=("right",)),
            stale_after=2,
        )
        loop.round()
        assert FOUND not in world.engine.nices()
        knobs = (world.engine.nice, world.engine.group, world.engine.shares)
        assert [len(knob.writes) for knob in knobs] == [3, 3, 2]
        loop.run(6.0)
        assert [len(knob.writes) for knob in knobs] == [3, 3, 2]
        assert world.engine.shares.values == {"all": 1024.0, "all-2": 1024.0}
        assert list(world.engine.group.values.values()) == ["all", "all", "all-2"]


class TestTopologyChanges:
    def test_new_threads_are_set_and_those_that_left_are_put_back(self, world: World) -> None:
        loop = world.loop()
        loop.round()
        world.engine.run(["o1", "o3"])
        world.engine.columns["queue"] = np.array([0.0, 9.0])
        world.engine.nice.values[ThreadRef(4)] = FOUND
        world.engine.nice.values.pop(ThreadRef(1))
        world.clock.time += 1
        loop.round()
        assert world.engine.nices() == [19.0, -20.0]
        assert world.engine.nice.values == {ThreadRef(2): 19.0, ThreadRef(3): FOUND, ThreadRef(4): -20.0}
        loop.restore()
        assert set(world.engine.nice.values.values()) == {FOUND}

    def test_an_engine_that_runs_nothing_is_no_problem(self, world: World) -> None:
        world.engine._topology = Topology((), (), 9)
        world.engine.columns["queue"] = np.zeros(0)
        loop = world.loop(Binding(world.policy, "nice", 1.0), Binding(ByQueue(), "shares", 1.0))
        loop.round()
        assert loop.stats.troubles == {}
        assert world.policy.asked == []
