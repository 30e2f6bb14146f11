# ruff: noqa: E501 (a row of the tables is a line)
"""A wrong scenario is one clear line: the file, the place as the file writes it, the problem, and the remedy."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.engines.simulator import arrivals
from treadle.engines.simulator import scenario as scenarios
from treadle.engines.simulator.engine import Simulator
from treadle.errors import ConfigError

GOOD = """
title = "t"
seconds = 2
[[query]]
name = "q"
[[query.operator]]
name = "a"
cost = 0.001
source = { rate = 100 }
"""


def plan(*operators: str, top: str = "", query: str = "") -> str:
    """A scenario of one query; an operator is the inside of its inline table."""
    inside = ", ".join(f"{{ {operator} }}" for operator in operators)
    return f'title = "t"\nseconds = 2\n{top}\n[[query]]\nname = "q"\n{query}\noperator = [{inside}]\n'


A = 'name = "a", cost = 0.001, source = { rate = 100 }'


def source(inside: str) -> str:
    return plan(f'name = "a", cost = 0.001, source = {{ {inside} }}')


def cost(value: str) -> str:
    return plan(A, f'name = "b", upstream = ["a"], cost = {value}')


def operator(inside: str) -> str:
    return plan(A, f'name = "b", upstream = ["a"], cost = 0.001, {inside}')


def execution(inside: str) -> str:
    return plan(A, top=f"execution = {{ {inside} }}")


def chains(inside: str) -> str:
    return f'title = "t"\n[[chains]]\nname = "c"\n{inside}\nsource = {{ rate = 1 }}\n'


BAD: dict[str, tuple[str, str, str, str]] = {
    # what is wrong: (text, place, part of the problem, part of the remedy)
    "no TOML": ("title = \nseconds = 2", "line 1, column 9", "is not valid TOML: invalid value", "fix this place"),
    "unclosed table": ('title = "t"\n[[query', "end of document", "is not valid TOML: expected ']]'", "fix this place"),
    "key twice": ('title = "t"\ntitle = "u"\n', "line 2, column 12", "cannot overwrite a value", "fix this place"),
    "number without end": (f"seed = {'9' * 5000}", "bad.toml", "a number has thousands of digits", "shorten the number"),
    "nested without end": (f"x = {'[' * 5000}", "bad.toml", "lists are nested too deeply", "flatten the lists"),
    "nothing at all": ("", "title", "is missing", 'add title = "…"'),
    "nothing to run": ('title = "t"', "bad.toml", "there is nothing to run", "add a [[query]]"),
    "query without operators": ('title="t"\n[[query]]\nname="q"', "query[1].operator", "is missing", "[[query.operator]]"),
    "query with no operators": (plan(), "query[1].operator", "is empty", "[[query.operator]]"),
    "a table for a list": ('title="t"\n[query]\nname="q"', "query", "must be a list, not a table", "begin it with [[query]]"),
    "a text for a table": ('title="t"\nquery=["q"]', "query[1]", "must be a table, not 'q'", "write it as { … } or [query]"),
    "unknown key on top": (GOOD.replace("seconds", "secconds"), "secconds", "is not a known key", "did you mean seconds?"),
    "unknown key below": (operator("selectivty = 0.5"), "query[1].operator[2].selectivty", "is not a known key", "selectivity?"),
    "unknown key in source": (source("rate = 1, colour = 3"), "query[1].operator[1].source.colour", "is not a known key", "known here are pattern, rate"),
    "inner names are no keys": (f'folder = "x"\n{GOOD}', "folder", "is not a known key", "known here are title"),
    "missing title": (GOOD.replace('title = "t"', ""), "title", "is missing", 'add title = "…"'),
    "missing cost": (plan('name = "a", source = { rate = 1 }'), "query[1].operator[1].cost", "is missing", "add cost = 0.001"),
    "missing mean": (cost('{ distribution = "uniform" }'), "query[1].operator[2].cost.mean", "is missing", "add mean = 0.001"),
    "negative cost": (cost("-1"), "query[1].operator[2].cost", "can't be -1", "use more than 0"),
    "negative mean": (cost("{ mean = -1 }"), "query[1].operator[2].cost.mean", "can't be -1", "use more than 0"),
    "cost zero": (cost("0"), "query[1].operator[2].cost", "can't be 0", "use more than 0"),
    "cost NaN": (cost("nan"), "query[1].operator[2].cost", "can't be nan", "use a finite number"),
    "cost infinite": (cost("inf"), "query[1].operator[2].cost", "can't be inf", "use a finite number"),
    "cost beyond floats": (cost("1e999"), "query[1].operator[2].cost", "can't be inf", "use a finite number"),
    "cost in quotes": (cost('"0.1"'), "query[1].operator[2].cost", "must be a number, not '0.1'", "without quotes"),
    "mean in quotes": (cost('{ mean = "0.1" }'), "query[1].operator[2].cost.mean", "must be a number, not '0.1'", "without quotes"),
    "cost true": (cost("true"), "query[1].operator[2].cost", "must be a number, not true", "write a number"),
    "cost a list": (cost("[1, 2]"), "query[1].operator[2].cost", "must be a number, not a list", "write a number"),
    "cost a date": (cost("2024-01-01"), "query[1].operator[2].cost", "must be a number, not 2024-01-01", "write a number"),
    "spread above one": (cost('{ mean = 1, spread = 2 }'), "query[1].operator[2].cost.spread", "can't be 2", "use at most 1"),
    "unknown distribution": (cost('{ mean = 1, distribution = "normal" }'), "cost.distribution", "can't be 'normal'", "use 'constant', 'uniform' or 'exponential'"),
    "negative selectivity": (operator("selectivity = -0.5"), "query[1].operator[2].selectivity", "can't be -0.5", "use at least 0"),
    "huge selectivity": (operator("selectivity = 1001"), "query[1].operator[2].selectivity", "can't be 1,001", "use at most 1,000"),
    "cycle": (plan(A, 'name = "b", cost = 1, upstream = ["a", "c"]', 'name = "c", cost = 1, upstream = ["b"]', 'name = "d", cost = 1, upstream = ["c"]'), "query 'q'", "has a cycle: b -> c -> b", "cut an edge"),
    "unknown upstream": (plan(A, 'name = "b", cost = 1, upstream = ["x"]'), "query 'q'", "operator 'b' reads from 'x', which does not exist", "use one of a"),
    "upstream is no name": (plan(A, 'name = "b", cost = 1, upstream = ["a\\nb"]'), "query[1].operator[2].upstream[1]", "'a\\nb' can't be a name", "letters, digits"),
    "upstream no list": (plan(A, 'name = "b", cost = 1, upstream = "a"'), "query[1].operator[2].upstream", "must be a list, not 'a'", "put it in brackets"),
    "the same upstream twice": (plan(A, 'name = "b", cost = 1, upstream = ["a", "a"]'), "query 'q'", "operator 'b' reads twice from one upstream", "name it once"),
    "operator twice": (plan(A, A), "query 'q'", "operator 'a' is defined twice", "rename one of them"),
    "query twice": (GOOD + GOOD.split("seconds = 2")[1], "query 'q'", "is defined twice", "rename one of them"),
    "chains named as a query": (GOOD + '[[chains]]\nname="z"\ncount=1\nlength=1\nbase_cost=1\nsource={rate=1}\n' + GOOD.split("seconds = 2")[1].replace('"q"', '"z-1"'), "query 'z-1'", "is defined twice", "rename one of them"),
    "no source": (plan('name = "a", cost = 1, upstream = ["b"]', 'name = "b", cost = 1, upstream = ["a"]'), "query 'q'", "has no source", "cut an edge"),
    "no sink": (plan(A, 'name = "b", cost = 1, upstream = ["a", "c"]', 'name = "c", cost = 1, upstream = ["b"]'), "query 'q'", "has no sink", "cut an edge"),
    "neither upstream nor source": (plan('name = "a", cost = 1'), "query 'q'", "operator 'a' has neither upstream nor source", "add upstream"),
    "upstream and source": (plan(A, 'name = "b", cost = 1, upstream = ["a"], source = { rate = 1 }'), "query 'q'", "operator 'b' has both upstream and source", "remove one"),
    "name with a space": (plan('name = "a b", cost = 1, source = { rate = 1 }'), "query[1].operator[1].name", "'a b' can't be a name", "no spaces"),
    "name with a dot": (GOOD.replace('"q"', '"q.1"'), "query[1].name", "'q.1' can't be a name", "none of . : + [ ]"),
    "name that can't be seen": (GOOD.replace('"q"', '"\\u0000"'), "query[1].name", "'\\x00' can't be a name", "letters, digits"),
    "empty name": (GOOD.replace('"q"', '""'), "query[1].name", "is empty", 'add name = "…"'),
    "endless name": (GOOD.replace('"q"', f'"{"q" * 81}"'), "query[1].name", "is too long", "use at most 80"),
    "name a number": (GOOD.replace('"q"', "7"), "query[1].name", "must be a text, not 7", "put it in quotes"),
    "parallelism 0": (operator("parallelism = 0"), "query[1].operator[2].parallelism", "can't be 0", "use at least 1"),
    "half a copy": (operator("parallelism = 1.5"), "query[1].operator[2].parallelism", "must be a whole number, not 1.5", "write a whole number"),
    "capacity 0": (operator("capacity = 0"), "query[1].operator[2].capacity", "can't be 0", "use at least 1"),
    "capacity beyond integers": (operator(f"capacity = {10**30}"), "query[1].operator[2].capacity", "can't be 1,000,", "use at most 1,000,000,000"),
    "priority infinite": (GOOD.replace('name = "q"', 'name = "q"\npriority = inf'), "query[1].priority", "can't be inf", "finite"),
    "join of one stream": (operator("window = 1"), "query 'q'", "operator 'b' has a window, but 1 upstream", "name the two upstreams"),
    "join of no stream": (plan(f"{A}, window = 1"), "query 'q'", "operator 'a' has a window, but no upstreams", "name the two upstreams"),
    "window negative": (operator("window = -1"), "query[1].operator[2].window", "can't be -1", "use more than 0"),
    "blocking for certain and more": (operator("blocking = { probability = 1.1, seconds = 1 }"), "query[1].operator[2].blocking.probability", "can't be 1.1", "use at most 1"),
    "blocking without seconds": (operator("blocking = { probability = 0.1 }"), "query[1].operator[2].blocking.seconds", "is missing", "add seconds"),
    "fused unknown": (plan(A, query='fused = [["a", "x"]]'), "query 'q'", "fused a+x: there is no operator 'x'", "use a"),
    "fused but no neighbours": (plan(A, 'name = "b", cost = 1, upstream = ["a"]', 'name = "c", cost = 1, upstream = ["b"]', query='fused = [["a", "c"]]'), "query 'q'", "fused a+c: 'a' and 'c' are not connected only to each other", "fuse neighbours"),
    "fused at a branch": (plan(A, 'name = "b", cost = 1, upstream = ["a"]', 'name = "c", cost = 1, upstream = ["a"]', query='fused = [["a", "b"]]'), "query 'q'", "are not connected only to each other", "fuse neighbours"),
    "fused against the stream": (plan(A, 'name = "b", cost = 1, upstream = ["a"]', query='fused = [["b", "a"]]'), "query 'q'", "are not connected only to each other", "in the order of the data"),
    "fused twice": (plan(A, 'name = "b", cost = 1, upstream = ["a"]', query='fused = [["a", "b"], ["b"]]'), "query 'q'", "operator 'b' is fused twice", "name it in one chain"),
    "fused of unlike parallelism": (plan(A, 'name = "b", cost = 1, upstream = ["a"], parallelism = 2', query='fused = [["a", "b"]]'), "query 'q'", "fused a+b: parallelism differs", "the same"),
    "fused join": (plan(A, A.replace('"a"', '"b"'), 'name = "c", cost = 1, upstream = ["a", "b"], window = 1', 'name = "d", cost = 1, upstream = ["c"]', query='fused = [["c", "d"]]'), "query 'q'", "fused c+d: 'c' is a join", "leave it out"),
    "processors 0": (execution("processors = 0"), "execution.processors", "can't be 0", "use at least 1"),
    "processors 65": (execution("processors = 65"), "execution.processors", "can't be 65", "use at most 64"),
    "batch 0": (execution("batch = 0"), "execution.batch", "can't be 0", "use at least 1"),
    "batch beyond integers": (execution(f"batch = {10**40}"), "execution.batch", "can't be 10,000,", "use at most 1,000,000,000"),
    "negative period": (execution("period = -1"), "execution.period", "can't be -1", "use at least 0"),
    "period 0 with threads": (execution('mode = "os", period = 0'), "execution", "period = 0 is for the cooperative mode, not os", "set period = 0.1"),
    "fluid in batches": (execution("fluid = true, period = 0, batch = 10"), "execution", "a fluid plan serves one unit at a time", "batch = 1"),
    "unknown mode": (execution('mode = "turbo"'), "execution.mode", "can't be 'turbo'", "use 'cooperative', 'os' or 'realtime'"),
    "no time slice": (execution("time_slice = 1e-9"), "execution.time_slice", "can't be 1e-09", "use at least 1e-06"),
    "flag in words": (execution('fluid = "yes"'), "execution.fluid", "must be true or false, not 'yes'", "without quotes"),
    "flag as a number": (GOOD.replace("seconds = 2", "drain = 1"), "drain", "must be true or false, not 1", "write true or false"),
    "warm-up takes all": (GOOD.replace("seconds = 2", "seconds = 2\nwarm_up = 2"), "bad.toml", "warm_up = 2 leaves nothing of seconds = 2", "lower it"),
    "seconds 0": (GOOD.replace("seconds = 2", "seconds = 0"), "seconds", "can't be 0", "use more than 0"),
    "more than a day": (GOOD.replace("seconds = 2", "seconds = 90000"), "seconds", "can't be 90,000", "use at most 86,400"),
    "seed negative": (GOOD.replace("seconds = 2", "seed = -1"), "seed", "can't be -1", "use at least 0"),
    "unknown pattern": (source('pattern = "wave"'), "query[1].operator[1].source.pattern", "can't be 'wave'", "use 'constant', 'bursts'"),
    "constant without rate": (source("start = 1"), "query[1].operator[1].source", "a constant source needs a rate", "add rate = 1000"),
    "poisson without rate": (source('pattern = "poisson"'), "query[1].operator[1].source", "a poisson source needs a mean", "add rate = 1000 or between = [500, 1500]"),
    "poisson with both": (source('pattern = "poisson", rate = 1, between = [1, 2]'), "query[1].operator[1].source", "a poisson source has a rate and a range", "remove rate or between"),
    "between reversed": (source('pattern = "poisson", between = [9, 1]'), "query[1].operator[1].source", "between is from high to low", "swap"),
    "between of one": (source('pattern = "poisson", between = [9]'), "query[1].operator[1].source.between[2]", "is missing", "add it"),
    "between of three": (source('pattern = "poisson", between = [1, 2, 3]'), "query[1].operator[1].source.between", "is too long", "use at most 2"),
    "trace without file": (source('pattern = "trace"'), "query[1].operator[1].source", "a trace source needs a file", 'add file = "arrivals.txt"'),
    "ticks without counts": (source('pattern = "ticks"'), "query[1].operator[1].source", "a ticks source needs counts", "add counts"),
    "ticks of less than nothing": (source('pattern = "ticks", counts = [1, -1]'), "query[1].operator[1].source.counts[2]", "can't be -1", "use at least 0"),
    "a key of another pattern": (source("rate = 1, between = [1, 2]"), "query[1].operator[1].source", "a constant source has no between", 'set pattern = "poisson"'),
    "stop before start": (source("rate = 1, start = 2, stop = 1"), "query[1].operator[1].source", "stop = 1 is not after start = 2", "raise stop"),
    "rate negative": (source("rate = -1"), "query[1].operator[1].source.rate", "can't be -1", "use at least 0"),
    "a change of nothing": (f"{GOOD}\n[[change]]\nat = 1", "change[1]", "changes nothing", "add processors, batch, period, policy, assign, objectives or candidates"),
    "a change without time": (f"{GOOD}\n[[change]]\nbatch = 1", "change[1].at", "is missing", "add at = 30"),
    "a change too late": (f"{GOOD}\n[[change]]\nat = 5\nbatch = 1", "bad.toml", "a change at = 5 comes after seconds = 2", "lower it"),
    "a change to no processors": (f"{GOOD}\n[[change]]\nat = 1\nprocessors = 0", "change[1].processors", "can't be 0", "use at least 1"),
    "chains without end": (chains("count = 10001\nlength = 1\nbase_cost = 1"), "chains[1].count", "can't be 10,001", "use at most 10,000"),
    "cost classes reversed": (chains("count = 1\nlength = 1\nbase_cost = 1\ncost_classes = [4, 0]"), "chains[1]", "cost_classes is from high to low", "swap"),
    "selectivities reversed": (chains("count = 1\nlength = 1\nbase_cost = 1\nselectivity = [1, 0.5]"), "chains[1]", "selectivity is from high to low", "swap"),
    "chains beyond floats": (chains("count = 1\nlength = 2\nbase_cost = 1e308"), "chains 'c'", "gives an operator a cost of inf", "smaller"),
    "sleepy chains without a sleep": (chains("count = 1\nlength = 1\nbase_cost = 1\nblocking_share = 0.5"), "chains[1]", "blocking_share needs blocking", "add blocking"),
    "random plan of one": ('title="t"\n[[random]]\nname="r"\noperators=1\nsource={rate=1}', "random[1].operators", "can't be 1", "use at least 2"),
    "random plan beyond floats": ('title="t"\n[[random]]\nname="r"\noperators=1000\nbranch=0\njoin=0\nselectivity=[1000, 1000]\nsource={rate=1}', "random 'r'", "gives an operator a cost of 0", "smaller"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", BAD)
def test_a_wrong_scenario_is_one_line_with_its_place_and_remedy(wrong: str, tmp_path: Path) -> None:
    text, place, problem, remedy = BAD[wrong]
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    _check_line(lambda: scenarios.load(str(path)), path, place, problem, remedy)


RUNTIME: dict[str, tuple[str, str, str]] = {
    # what is wrong with a source that only a run finds: (inside of the source, part of the problem, part of the remedy)
    "missing trace": ('pattern = "trace", file = "none.txt"', "none.txt': No such file", "beside the scenario"),
    "a folder as trace": ('pattern = "trace", file = "."', "Is a directory", "beside the scenario"),
    "garbage in the trace": ('pattern = "trace", file = "garbage.txt"', "garbage.txt', line 3: 'three' is not a time", "one time in seconds per line"),
    "trace with NaN": ('pattern = "trace", file = "nan.txt"', "nan.txt', line 2: 'nan' is not a time", "one time in seconds per line"),
    "trace out of order": ('pattern = "trace", file = "back.txt"', "back.txt', line 3: 1 is earlier", "sort it"),
    "trace that is no text": ('pattern = "trace", file = "binary.txt"', "binary.txt' is not a text file", "write one time per line"),
    "huge rate": ("rate = 1e12", "2e+12 tuples would arrive here", "lower the rate"),
    "huge poisson": ('pattern = "poisson", rate = 1e300', "2e+300 tuples would arrive here", "lower the rate"),
    "huge ticks": ('pattern = "ticks", every = 1, counts = [1000000000]', "1e+09 tuples would arrive", "lower the rate"),
    "nervous bursts": ('pattern = "bursts", rate = 1, on = 1e-9, off = 0', "the rate changes 2e+09 times", "less often"),
    "nervous steps": ('pattern = "step", rate = 1, every = 1e-300', "the rate changes 1e+300 times", "less often"),
    "nervous means": ('pattern = "poisson", between = [1, 2], redraw = 1e-12', "the rate changes 2e+12 times", "less often"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", RUNTIME)
def test_a_source_that_cannot_be_is_told_before_anything_runs(wrong: str, tmp_path: Path) -> None:
    inside, problem, remedy = RUNTIME[wrong]
    (tmp_path / "garbage.txt").write_text("1\n\nthree\n")
    (tmp_path / "nan.txt").write_text("1\nnan\n")
    (tmp_path / "back.txt").write_text("0.5\n2\n1\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    path = tmp_path / "bad.toml"
    path.write_text(source(inside), encoding="utf-8")
    loaded = scenarios.load(str(path))
    _check_line(lambda: Simulator(loaded), path, "query 'q', source of 'a'", problem, remedy)


def test_many_modest_sources_are_too_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MOST_ARRIVALS", 1000)
    loaded = scenarios.parse(chains("count = 20\nlength = 1\nbase_cost = 1"), where="many.toml")
    with pytest.raises(ConfigError, match=r"many.toml: query 'c-17', source of 'op1': .* more than 1,000 in all"):
        Simulator(loaded)


@pytest.mark.parametrize(
    ("seconds", "seed", "problem"),
    [
        (0.0, 1, "can't run for 0 seconds"),
        (-1.0, 1, "can't run for -1 seconds"),
        (0.5, 1, "can't run for 0.5 seconds .use more than 1, which is the warm-up"),
        (float("nan"), 1, "can't run for nan seconds"),
        (float("inf"), 1, "can't run for inf seconds"),
        (2.0, -3, "can't draw from seed -3"),
    ],
)
def test_what_is_set_instead_of_the_file_is_checked_too(seconds: float, seed: int, problem: str) -> None:
    loaded = scenarios.parse(GOOD.replace("seconds = 2", "seconds = 2\nwarm_up = 1"), where="good.toml")
    with pytest.raises(ConfigError, match=f"good.toml: {problem}"):
        Simulator(loaded, seconds=seconds, seed=seed)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    _check_line(lambda: scenarios.load(str(path)), path, "", "can't be read: No such file", "check the path")


def test_a_shipped_one_with_its_ending_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "syn.toml"
    _check_line(lambda: scenarios.load(str(path)), path, "", "can't be read", "comes with Treadle, write syn")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.mkdir()
    _check_line(lambda: scenarios.load(str(path)), path, "", "can't be read: Is a directory", "check the path")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes('title = "Zürich"'.encode("latin-1"))
    _check_line(lambda: scenarios.load(str(path)), path, "", "is not UTF-8 text", "save it as UTF-8")


@pytest.mark.parametrize("name", ["sin", "", ".", "../syn", "x" * 5000, "a\0b", "two\nlines"])
def test_an_unknown_name_is_answered_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenarios.load(name)
    assert "\n" not in str(caught.value)
    assert "there is no scenario" in caught.value.message
    assert all(known in caught.value.remedy for known in scenarios.shipped())


# ---------------------------------------------------------------- whatever stands there

RICH: dict[str, Any] = {
    "title": "t",
    "seconds": 0.2,
    "warm_up": 0.01,
    "drain": False,
    "policies": ["fifo"],
    "seed": 3,
    "execution": {"mode": "os", "processors": 2, "period": 0.1, "batch": 3, "time_slice": 0.003, "fluid": False},
    "query": [
        {
            "name": "q",
            "priority": 1.0,
            "latency_goal": 0.5,
            "fused": [["c", "d"]],
            "operator": [
                {"name": "a", "cost": 0.001, "source": {"pattern": "poisson", "between": [5, 9], "redraw": 0.1}},
                {"name": "b", "cost": {"mean": 0.001, "spread": 0.1}, "source": {"pattern": "ticks", "counts": [1, 0]}},
                {"name": "j", "cost": 0.001, "upstream": ["a", "b"], "window": 0.1, "helper_cost": 0.1, "capacity": 9},
                {"name": "c", "cost": 0.001, "upstream": ["j"], "blocking": {"probability": 0.1, "seconds": 0.1}},
                {"name": "d", "cost": 0.001, "upstream": ["c"], "selectivity": {"mean": 0.5, "distribution": "even"}},
            ],
        }
    ],
    "chains": [
        {"name": "x", "count": 2, "length": 3, "base_cost": 0.001, "selectivity": [0.1, 1], "source": {"rate": 5.5}}
    ],
    "random": [{"name": "r", "operators": 4, "load": 0.5, "branch": 0.1, "source": {"pattern": "bursts", "rate": 9}}],
    "change": [{"at": 0.1, "processors": 1, "policy": "fifo"}],
}
ODD: list[Any] = [
    *("", "a", "a b", "\n", "\x00", "é" * 99, "1", -1, 0, 1, 65, 1025, 10**30, -0.5, 1e-300, 1e308),
    *(math.nan, math.inf, -math.inf, True, False, [], [[]], ["a"], ["a", "a"], [1, 2, 3], {}, {"a": 1}, {"rate": 1}),
]


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(inner) for inner in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    return str(value)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every key and entry."""
    steps = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [found for step in steps for found in ((*path, step), *places(value[step], (*path, step)))]


@given(place=st.sampled_from(places(RICH)), odd=st.sampled_from(ODD), remove=st.booleans(), rename=st.booleans())
@settings(max_examples=150)
def test_whatever_stands_somewhere_is_either_fine_or_one_line(
    place: tuple[Any, ...], odd: Any, remove: bool, rename: bool
) -> None:
    data = copy.deepcopy(RICH)
    inside: Any = data
    for step in place[:-1]:
        inside = inside[step]
    if remove:
        value = inside.pop(place[-1])
        if rename and isinstance(inside, dict):
            inside["other"] = value
    else:
        inside[place[-1]] = odd
    text = "\n".join(f"{key} = {toml(value)}" for key, value in data.items())
    error = _refusal(text)
    if error is not None:
        assert str(error).startswith("bad.toml: ")
        assert "\n" not in str(error)
        assert error.remedy


def _refusal(text: str) -> ConfigError | None:
    try:
        loaded = scenarios.parse(text, where="bad.toml")
        if loaded.seconds <= 1.0:
            Simulator(loaded).advance(0.05)
    except ConfigError as error:
        return error
    return None


def test_the_scenario_that_is_spoiled_above_is_fine_itself() -> None:
    text = "\n".join(f"{key} = {toml(value)}" for key, value in RICH.items())
    Simulator(scenarios.parse(text, where="rich.toml")).advance(0.2)


def _check_line(act: Callable[[], object], path: Path, place: str, problem: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        act()
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.where.startswith(str(path))
    assert (caught.value.where.endswith(place) or not place) if place != "bad.toml" else caught.value.where == str(path)
    assert problem in caught.value.message
    assert remedy in caught.value.remedy
    assert line.endswith(f"({caught.value.remedy})")
