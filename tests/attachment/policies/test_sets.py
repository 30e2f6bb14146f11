"""Rules under attach: what nice, CPU groups and real-time priorities each set and its queries get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.attachment import plan
from treadle.attachment.plan import Plan
from treadle.attachment.policies.limits import STEPS, WIDEST
from treadle.decide.transform import NICE_STEP
from treadle.errors import ConfigError
from treadle.model import Floats, Instance, Operator, Query, Topology
from treadle.values import Schedule, Snapshot

NAN = float("nan")
ALERTS = {"queries": "alerts-*", "policy": "fcfs", "priority": 10}
REPORTS = {"queries": "reports-*", "policy": "highest-rate"}
NAMES = ("alerts-a", "alerts-b", "alerts-c", "reports-a", "reports-b", "reports-c", "other", "driver")
AGES = [1.0, 5.0, 3.0, 9.0, 9.0, 9.0, 1.0, NAN]
RATES = [1.0, 1.0, 1.0, 1000.0, 1.0, 10.0, 1.0, NAN]


def made(enforce: str | None, *rules: Mapping[str, Any], policy: str | None = None, **options: Any) -> Plan:
    return plan.make(policy, enforce, 0.05, {}, {}, ("*",), rules=rules, **options)


def snapshot(names: Sequence[str] = NAMES, ages: Sequence[float] = (), rates: Sequence[float] = ()) -> Snapshot:
    """One stage for each query."""
    queries = tuple(Query(name, (Operator("all"),), 1.0) for name in names)
    rows = tuple(Instance(name, ("all",), 0, "spark") for name in names)
    columns = {"head_age": np.array(ages or AGES[: len(names)]), "global_rate": np.array(rates or RATES[: len(names)])}
    return Snapshot(Topology(queries, rows, 1), 0.0, columns)


def decided(chosen: Plan, seen: Snapshot, version: int = 1) -> dict[str, tuple[Schedule, Floats]]:
    """By knob: the schedule and what the kernel gets: of groups if there are any."""
    found = {}
    for binding in chosen.bindings(version)[0]:
        schedule = binding.policy.decide(seen)
        priority = schedule.scalar if schedule.groups is None else schedule.groups.priority
        found[binding.knob] = schedule, binding.to_scale.apply(priority, schedule.spacing)
    return found


def test_each_set_is_a_cpu_group_and_has_the_whole_of_nice_inside() -> None:
    found = decided(made(None, ALERTS, REPORTS), snapshot())
    schedule, shares = found["shares"]
    assert schedule.groups is not None
    assert schedule.groups.names == ("rule-1", "rule-2", "driver", "others")
    assert schedule.groups.of_row.tolist() == [0, 0, 0, 1, 1, 1, 3, 2]
    assert (shares / shares[1]).tolist() == pytest.approx([10, 1, 10, 1], rel=0.01)
    assert not np.isnan(schedule.scalar).any(), "every thread has its place in a group"
    nices = found["nice"][1]
    assert nices[:3].tolist() == [19, -20, 0]  # the oldest row first
    assert nices[3:6].tolist() == [-20, 11, 1]  # the highest rate first, by the ratio of the rates
    assert np.isnan(nices[6])  # downstream-first says nothing of a query with one stage
    assert nices[7] == 0


def test_by_nice_alone_the_most_urgent_threads_of_two_sets_have_the_ratio_of_their_priorities() -> None:
    (nices,) = (values for _, values in decided(made("nice", ALERTS, REPORTS), snapshot()).values())
    assert nices[:3].tolist() == [9, -20, -6]
    assert nices[3:6].tolist() == [-10, 19, 9]
    assert nices[6:].tolist() == [-10, -20]  # a driver is as urgent as the most important set
    assert NICE_STEP ** (min(nices[3:6]) - min(nices[:3])) == pytest.approx(10, rel=0.1)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=4),
    st.lists(st.floats(0, 100), min_size=8, max_size=8),
    st.sampled_from(["nice", "nice:low=0", "nice:low=-3,high=4"]),
    st.booleans(),
)
def test_within_the_limits_each_set_keeps_the_order_of_its_policy_and_no_set_is_put_above_a_more_important_one(
    priorities: list[float], ages: list[float], enforce: str, strict: bool
) -> None:
    rules = [{"queries": f"s{n}-*", "policy": "fcfs", "priority": p} for n, p in enumerate(priorities)]
    names = [f"s{n % len(priorities)}-{n}" for n in range(8)]
    chosen = made(enforce, *rules, strict=strict)
    (nices,) = (values for _, values in decided(chosen, snapshot(names, ages, ages)).values())
    low, high = {"nice": (-20, 19), "nice:low=0": (0, 19)}.get(enforce, (-3, 4))
    assert low <= nices.min()
    assert nices.max() <= high
    first = [min(nices[n] for n in range(8) if n % len(priorities) == s) for s in range(min(8, len(priorities)))]
    assert max(first) - min(first) <= min(STEPS, (high - low) / 2)
    for a, b in np.ndindex(8, 8):
        if a % len(priorities) == b % len(priorities) and ages[a] > ages[b]:
            assert nices[a] <= nices[b]
    for a, b in np.ndindex(len(first), len(first)):
        if priorities[a] > priorities[b]:
            assert first[a] <= first[b]


@pytest.mark.parametrize("version", [1, 2])
def test_by_cgroup_alone_queries_have_groups_in_those_of_their_sets(version: int) -> None:
    chosen = made("cgroup", ALERTS, REPORTS)
    ((schedule, shares),) = decided(chosen, snapshot(), version).values()
    groups = schedule.groups
    assert groups is not None
    assert groups.outer is not None
    assert groups.names[:4] == ("rule-1/alerts-a", "rule-1/alerts-b", "rule-1/alerts-c", "rule-2/reports-a")
    assert groups.names[6:] == ("others/other", "driver/driver")
    assert groups.outer.names == ("rule-1", "rule-2", "driver", "others")
    assert groups.outer.priority.tolist() == pytest.approx([10, 1, 10, 1])
    assert (shares[:3] / shares[0]).tolist() == pytest.approx([1, WIDEST, WIDEST**0.5], rel=0.01)
    assert (shares[3:6] / shares[4]).tolist() == pytest.approx([WIDEST, 1, WIDEST**0.5], rel=0.01)


@pytest.mark.parametrize("enforce", ["rt", "slice"])
def test_by_order_alone_sets_are_in_the_order_of_their_priorities(enforce: str) -> None:
    ((schedule, _),) = decided(made(enforce, REPORTS, ALERTS), snapshot()).values()
    order = [NAMES[row] for row in np.argsort(-schedule.scalar[:6])]
    assert order == ["alerts-b", "alerts-c", "alerts-a", "reports-a", "reports-c", "reports-b"]


def test_in_strict_order_only_the_order_of_the_sets_counts() -> None:
    for low in (1, 9):
        rules: list[dict[str, Any]] = [
            ALERTS,
            {**REPORTS, "priority": 0.5},
            {"queries": "other", "policy": "fcfs", "priority": low},
        ]
        shares = decided(made(None, *rules, strict=True), snapshot())["shares"][1]
        assert shares[0] / shares[1] == pytest.approx(WIDEST, rel=0.01)
        assert shares[0] / shares[2] == pytest.approx(WIDEST ** (1 / 3) if low == 9 else WIDEST**0.5, rel=0.01)


def test_a_set_of_which_nothing_is_known_has_the_place_of_its_priority() -> None:
    (nices,) = (v for _, v in decided(made("nice", ALERTS), snapshot(NAMES[:2], [NAN, NAN], [1, 1])).values())
    assert nices.tolist() == [-20, -20]


def test_no_pattern_matches_a_driver_unless_it_is_its_name() -> None:
    everything = {"queries": "*", "policy": "fcfs", "priority": 2}
    groups = decided(made(None, everything), snapshot())["shares"][0].groups
    assert groups is not None
    assert groups.names == ("rule-1", "driver")
    named = {"queries": "driver", "policy": "none", "priority": 50}
    schedule, shares = decided(made(None, named, everything), snapshot())["shares"]
    assert schedule.groups is not None
    assert schedule.groups.names == ("rule-1", "rule-2")
    assert shares[0] / shares[1] == pytest.approx(25, rel=0.01)


def test_two_applications_may_have_queries_of_one_name() -> None:
    seen = snapshot(("shop/alerts-a", "bank/alerts-a", "shop/driver", "bank/driver"), [1.0] * 4, [1.0] * 4)
    groups = decided(made(None, ALERTS), seen)["shares"][0].groups
    assert groups is not None
    assert [groups.names[number] for number in groups.of_row] == ["rule-1", "rule-1", "driver", "driver"]


def test_sets_have_periods_of_their_own() -> None:
    chosen = made(None, {**ALERTS, "period": "20ms"}, {**REPORTS, "period": "1s"})
    assert (chosen.period, chosen.rounds) == (0.05, 0.02)
    assert {binding.period for binding in chosen.bindings(1)[0]} == {0.02}


@pytest.mark.parametrize(
    ("enforce", "caps", "rule", "why"),
    [
        ("quota", {"a": 1.0}, ALERTS, r"rule 1 \('alerts-\*'\): a quota needs a CPU group for each query"),
        ("cgroup+nice", {"a": 1.0}, ALERTS, r"rule 1 \('alerts-\*'\): a quota needs .*leave out the quotas, or the"),
        ("cgroup:by=operator", {}, ALERTS, r"rule 1 \('alerts-\*'\): rules make the CPU groups, so 'cgroup:by=oper"),
        ("cgroup:by=query/operator", {}, ALERTS, r"rule 1 .*\(use cgroup, or cgroup\+nice\)"),
        ("nice", {}, {**ALERTS, "period": "1ms"}, r"rule 1 \('alerts-\*'\): its period is too short"),
        ("nice", {}, {**ALERTS, "policy": "adaptive"}, r"rule 1 \('alerts-\*'\): 'adaptive' judges by the figures"),
    ],
)
def test_what_can_not_be_had_is_refused_with_the_reason(
    enforce: str, caps: dict[str, float], rule: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        plan.make("fcfs", enforce, 0.05, {}, caps, ("*",), rules=[rule])


def test_what_only_an_agent_counts_is_refused_without_one_by_the_rule() -> None:
    chosen = made(None, REPORTS)
    with pytest.raises(ConfigError, match=r"rule 1 \('reports-\*'\): 'highest-rate' needs .* only an agent can count"):
        chosen.check(1, beans=True, agent=False)
    chosen.check(1, beans=True, agent=True)
    assert chosen.counts_period(0.2, 1.0) == 0.2
    assert made(None, {"queries": "a", "policy": "none"}).counts_period(0.2, 1.0) == 1.0
