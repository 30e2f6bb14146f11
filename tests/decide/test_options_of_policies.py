"""The options of policies as text: their kinds, their defaults, and what is wrong with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from treadle.decide import adaptive
from treadle.decide.adaptive import Adaptive, Greedy, Thompson
from treadle.decide.policies import RoundRobin
from treadle.decide.policies.shared.spec import Options, bare, parse, split
from treadle.decide.policy import Policy
from treadle.decide.registry import create, describe
from treadle.errors import ConfigError
from treadle.model import Operator, Query, Topology
from treadle.values import Snapshot


def nobody(text: str) -> Policy:
    raise AssertionError(f"no policy is asked for: {text}")


def of(**values: str) -> Options:
    return Options("some:key=1", values, np.random.default_rng(0), nobody)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        (text, flag)
        for flag, texts in ((True, "true yes on 1 TRUE"), (False, "false no off 0 No"))
        for text in texts.split()
    ],
)
def test_a_flag_may_be_written_in_several_ways(text: str, flag: bool) -> None:
    assert of(key=text).flag("key") is flag
    assert of(key=text).flag("key", not flag) is flag


def test_what_is_not_given_has_its_default() -> None:
    options = of()
    assert (options.flag("key", True), options.flag("key", False)) == (True, False)
    assert (options.number("key", 0.1), options.integer("key", 7), options.text("key", "x")) == (0.1, 7, "x")


def test_what_is_missing_or_of_another_kind_is_refused_with_the_remedy() -> None:
    place = "policy 'some:key=1': "
    for ask in (of().text, of().number, of().integer, of().flag):
        assert refused(partial(ask, "key")) == f"{place}option 'key' is missing (add key=...)"
    for wrong in ("much", "nan", "inf"):
        assert refused(partial(of(key=wrong).number, "key")) == (
            f"{place}key is '{wrong}' (give a number, as in key=0.5)"
        )
    assert refused(lambda: of(key="1.5").integer("key")) == f"{place}key is 1.5 (give a whole number)"
    assert refused(lambda: of(key="perhaps").flag("key")) == f"{place}key is 'perhaps' (give true or false)"


def test_options_that_nobody_reads_are_refused() -> None:
    options = of(one="1", two="2")
    assert options.unread() == ("one", "two")
    options.number("one")
    assert options.unread() == ("two",)
    assert refused(options.refuse_the_rest).startswith("policy 'some:key=1': there is no option 'two' (")
    options.number("two")
    options.refuse_the_rest()
    assert "leave it out: this policy has no options" in refused(of(one="1").refuse_the_rest)


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("(a)", "a"),
        (" ( (a) ) ", "a"),
        ("(a)+(b)", "(a)+(b)"),
        ("((a)+(b))", "(a)+(b)"),
        ("a", "a"),
        ("(a", "(a"),
        ("a)", "a)"),
        ("()", ""),
        ("", ""),
        ("a(b)", "a(b)"),
    ],
)
def test_only_parentheses_around_the_whole_are_taken_off(text: str, inside: str) -> None:
    assert bare(text) == inside


def test_a_text_is_split_at_marks_outside_of_parentheses() -> None:
    assert split(" a , (b,c) ,d", ",") == ["a", "(b,c)", "d"]
    assert split("a=b=c", "=", at_most=1) == ["a", "b=c"]
    assert split("", ",") == [""]


def test_a_spec_is_a_name_and_options_as_text() -> None:
    assert parse(" Congestion_Aware ") == ("congestion-aware", {})
    assert parse("x: a = b=c , d=(e,f=g)") == ("x", {"a": "b=c", "d": "(e,f=g)"})
    form = "write name or name:key=value,key=value; a nested policy with options goes in parentheses"
    for wrong, says in (
        ("", f"'' is not the name of a policy ({form})"),
        ("a,b", f"'a,b' is not the name of a policy ({form})"),
        ("x:a", f"'a' is not an option ({form})"),
        ("x:=1", f"'=1' is not an option ({form})"),
        ("x:a=1,a=2", "option 'a' is given twice (keep one of them)"),
    ):
        assert refused(partial(parse, wrong)) == f"policy '{wrong}': {says}"


def test_every_policy_is_described_in_a_line() -> None:
    for each in describe():
        assert each.help.endswith(".")
        assert "\n" not in each.help


def test_a_policy_that_draws_is_seeded_unless_a_generator_is_given() -> None:
    nothing = Snapshot(Topology.of([Query("q", (Operator("op"),))]), 0.0, {})
    drawn = [create("random", rng).decide(nothing).scalar.tolist() for rng in (None, np.random.default_rng(0))]
    assert drawn[0] == drawn[1]


def test_parentheses_that_do_not_fit_are_refused_with_the_whole_spec() -> None:
    form = "write name or name:key=value,key=value; a nested policy with options goes in parentheses"
    for wrong in ("(a", "a)", ")a("):
        assert refused(partial(split, wrong, ",")) == (f"policy '{wrong}': the parentheses are unbalanced ({form})")
        assert refused(partial(split, wrong, ",", "whole")).startswith("policy 'whole': the parentheses")
    assert refused(lambda: parse("x:a=(")) == f"policy 'x:a=(': the parentheses are unbalanced ({form})"


def test_the_defaults_of_an_adaptive_policy_from_text_are_those_of_one_from_code() -> None:
    made = create("adaptive")
    assert isinstance(made, Adaptive)
    plain = adaptive.create([create("rr")], "min latency")
    assert made.candidates == ("rr", "fifo", "mtiq", "chain")
    assert (made.delay, made.warm_up, made.settle) == (plain.delay, plain.warm_up, plain.settle)
    assert (made.history.maxlen, made.objectives, made.learner) == (
        plain.history.maxlen,
        plain.objectives,
        plain.learner,
    )
    assert vars(made._memory).keys() == vars(plain._memory).keys()
    for name in ("decay", "discount", "inherit"):
        assert getattr(made._memory, name) == getattr(plain._memory, name)


def test_every_option_of_an_adaptive_policy_can_be_written_as_text() -> None:
    made = create(
        "adaptive:candidates=rr+fifo,objective=max throughput,learner=(greedy:epsilon=0.5),delay=7,warm_up=3,"
        "settle=0.1,decay=0.2,discount=0.8,inherit=no,memory=9"
    )
    assert isinstance(made, Adaptive)
    assert (made.candidates, str(made.objectives[0])) == (("rr", "fifo"), "max output_rate 1")
    assert (made.learner, made.delay, made.warm_up, made.settle) == (Greedy(epsilon=0.5), 7.0, 3, 0.1)
    memory = made._memory
    assert (memory.decay, memory.discount, memory.inherit, made.history.maxlen) == (0.2, 0.8, False, 9)
    assert isinstance(create("adaptive:learner=thompson").learner, Thompson)  # type: ignore[attr-defined]


def test_an_adaptive_policy_draws_from_the_generator_that_is_given() -> None:
    rng = np.random.default_rng(3)
    made = create("adaptive:learner=roulette", rng)
    assert isinstance(made, Adaptive)
    assert made._rng is rng


def test_a_round_robin_takes_one_in_turn_unless_its_step_is_given() -> None:
    for text, step in (("rr", 1), ("rr:step=3", 3)):
        made = create(text)
        assert isinstance(made, RoundRobin)
        assert made._step == step


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("rr:step=0", "policy 'rr': step is 0 (use 1 or more)"),
        (
            "multi-class:medium=rr",
            "policy 'multi-class': 'medium' is not a class (use high, low or a query's priority)",
        ),
        ("weighted", "policy 'weighted': has no members (name some, as in weighted:qs=0.7,hr=0.3)"),
        ("weighted:qs=0", "policy 'weighted': the weight of 'queue-size' is 0 (give a number above 0)"),
        ("adaptive:objective=fast", "objectives: 'fast' is not an objective (write "),
    ],
)
def test_options_that_can_not_be_are_refused_with_the_remedy(spec: str, says: str) -> None:
    assert refused(lambda: create(spec)).startswith(says)


def test_an_objective_that_is_a_table_is_shown_as_it_was_given() -> None:
    for table in ({"metric": "latency"}, {"metric": "latency", "maximise": False, "weight": "x"}):
        assert refused(partial(adaptive.parse_objective, table)).startswith(
            f"objectives: {table!r} is not an objective (write "
        )


def test_the_usual_options_of_an_adaptive_policy_are_spelt_out_but_for_those_that_are_given() -> None:
    usual = {"objective": "min latency", "delay": "2"}
    assert adaptive.spelt_out("adaptive", usual) == "adaptive:objective=min latency,delay=2"
    assert adaptive.spelt_out("amos:delay=7,memory=9", usual) == "amos:objective=min latency,delay=7,memory=9"
    assert adaptive.spelt_out("Adaptive", {}) == "adaptive"
    assert adaptive.spelt_out("weighted:qs=1,hr=2", usual) == "weighted:qs=1,hr=2"
