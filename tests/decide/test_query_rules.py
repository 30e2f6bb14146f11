"""Rules for sets of queries: what is read, which rule counts, and that a wrong one is named with its remedy."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.decide import query_rules, registry
from treadle.decide.adaptive import Adaptive
from treadle.decide.policies import Fcfs, HighestRate
from treadle.decide.policy import Policy
from treadle.decide.query_rules import QueryRule
from treadle.errors import ConfigError

ALERTS = {"queries": "alerts-*", "policy": "fcfs", "priority": 10, "period": "100ms"}
REPORTS = {"queries": "reports", "policy": "highest-rate"}


def made(spec: str | Policy) -> Policy:
    return spec if isinstance(spec, Policy) else registry.create(spec)


def read(*given: Any) -> tuple[QueryRule, ...]:
    return query_rules.read(given, made, least=0.01)


def first(rules: tuple[QueryRule, ...], query: str) -> int | None:
    return next((rule.number for rule in rules if rule.matches(query)), None)


def test_a_rule_has_a_pattern_a_policy_a_priority_and_a_period() -> None:
    alerts, reports = read(ALERTS, REPORTS)
    assert isinstance(alerts.policy, Fcfs)
    assert (alerts.priority, alerts.period) == (10.0, 0.1)
    assert isinstance(reports.policy, HighestRate)
    assert (reports.priority, reports.period) == (1.0, None)
    assert read() == ()


def test_the_first_rule_that_matches_counts() -> None:
    rules = read({"queries": "alerts-eu", "policy": "chain"}, ALERTS, {"queries": "*", "policy": "fifo"})
    assert [first(rules, name) for name in ("alerts-eu", "alerts-us", "reports")] == [1, 2, 3]
    assert first(rules[:2], "reports") is None
    assert first(rules[:2], "Alerts-us") is None


def test_what_is_shown_of_rules_can_be_read_again() -> None:
    shown = [rule.as_json() for rule in read(ALERTS, REPORTS, {"queries": "own", "policy": Fcfs()})]
    assert shown == [
        {"queries": "alerts-*", "policy": "fcfs", "priority": 10.0, "period": 0.1},
        {"queries": "reports", "policy": "highest-rate", "priority": 1.0},
        {"queries": "own", "policy": "fcfs", "priority": 1.0},
    ]
    assert [rule.as_json() for rule in read(*shown)] == shown


def test_rounds_are_as_frequent_as_the_most_frequent_set_needs() -> None:
    assert query_rules.shortest(read(ALERTS, REPORTS), 0.2) == 0.1
    assert query_rules.shortest(read(ALERTS), 0.05) == 0.05


@pytest.mark.parametrize(
    ("wrong", "where", "why", "remedy"),
    [
        ({"policy": "fcfs"}, "rule 2", "has no pattern", "queries ="),
        ({"queries": " ", "policy": "fcfs"}, "rule 2", "has no pattern", "queries ="),
        ({"queries": 3, "policy": "fcfs"}, "rule 2", "has no pattern", "queries ="),
        ({"queries": "a"}, "rule 2 ('a')", "has no policy", "policy ="),
        ({"queries": "a", "policy": "fastest"}, "rule 2 ('a')", "there is no policy 'fastest'", "use one of"),
        ({"queries": "a", "policy": 3}, "rule 2 ('a')", "policy can't be 3", "'fcfs'"),
        ({"queries": "a", "policy": "adaptive"}, "rule 2 ('a')", "judges by the figures of all", "another policy"),
        ({"queries": "a", "policy": "fcfs", "speed": 1}, "rule 2 ('a')", "there is no key 'speed'", "did you mean"),
        ({"queries": "a", "policy": "fcfs", "prio": 1}, "rule 2 ('a')", "there is no key 'prio'", "priority"),
        ({"queries": "a", "policy": "fcfs", "priority": -1}, "rule 2 ('a')", "priority can't be -1", "at least 0"),
        ({"queries": "a", "policy": "fcfs", "priority": True}, "rule 2 ('a')", "priority can't be", "at least 0"),
        ({"queries": "a", "policy": "fcfs", "priority": float("nan")}, "rule 2 ('a')", "priority", "at least 0"),
        ({"queries": "a", "policy": "fcfs", "period": "soon"}, "rule 2 ('a')", "its period is not", "500ms"),
        ({"queries": "a", "policy": "fcfs", "period": "1ms"}, "rule 2 ('a')", "too short", "10ms or longer"),
        ({"queries": "alerts-*", "policy": "rr"}, "rule 2 ('alerts-*')", "rule 1 has this pattern", "leave out one"),
        ("alerts-*", "rule 2", "can't be 'alerts-*'", '"queries"'),
    ],
)
def test_a_wrong_rule_is_named_with_its_remedy(wrong: Any, where: str, why: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(ALERTS, wrong)
    assert (raised.value.where, "\n" in str(raised.value)) == (where, False)
    assert why in raised.value.message
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("wrong", ["alerts", {"queries": "a"}, 3, None, True])
def test_rules_are_a_list(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="rules can't be"):
        query_rules.read(wrong, made, least=0.01)


def test_two_sets_never_share_an_object() -> None:
    policy = Fcfs()
    with pytest.raises(ConfigError, match=r"rule 2 \('b'\): rule 1 has the same Policy object"):
        read({"queries": "a", "policy": policy}, {"queries": "b", "policy": policy})
    with pytest.raises(ConfigError, match=r"rule 1 \('a'\): the policy for all other queries is the same object"):
        query_rules.check_with(policy, read({"queries": "a", "policy": policy}))


def test_a_learner_is_not_divided_by_rules() -> None:
    learner = registry.create("adaptive")
    assert isinstance(learner, Adaptive)
    with pytest.raises(ConfigError, match=r"rule 1 \('alerts-\*'\): 'adaptive' judges by the figures of all"):
        query_rules.check_with(learner, read(ALERTS))
    query_rules.check_with(learner, ())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("alerts-*: policy=fcfs, priority=10, period=100ms", {**ALERTS, "priority": 10.0}),
        ("a:policy=fcfs", {"queries": "a", "policy": "fcfs"}),
        ("a: policy=(weighted:qs=0.7,hr=0.3)", {"queries": "a", "policy": "weighted:qs=0.7,hr=0.3"}),
        ("a: policy=fcfs, priority=high", {"queries": "a", "policy": "fcfs", "priority": "high"}),
        ("a:", {"queries": "a"}),
    ],
)
def test_a_rule_of_the_command_line_is_parsed(text: str, rule: dict[str, Any]) -> None:
    assert query_rules.parse(text) == rule


@pytest.mark.parametrize(
    "text", ["alerts-*", "a: fcfs", "a: policy=", "a: =fcfs", "a: policy=fcfs, policy=rr", "a: x,"]
)
def test_what_is_no_rule_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--rule: .* is not a rule \(write it as 'alerts-\*: policy=fcfs"):
        query_rules.parse(text)


def test_rules_of_the_command_line_come_first_and_replace_those_of_the_same_pattern() -> None:
    found = query_rules.before(["reports: policy=rr"], [ALERTS, REPORTS])
    assert [(rule["queries"], rule["policy"]) for rule in found] == [("reports", "rr"), ("alerts-*", "fcfs")]
