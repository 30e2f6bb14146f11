"""Two versions of a pipeline are compared by names, inputs and code, without Spark."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treadle
from treadle.errors import ConfigError
from treadle.pipelines.nodes.definition import Definition
from treadle.pipelines.nodes.difference import difference, union
from treadle.pipelines.nodes.same_code import same

EXAMPLES = Path(__file__).parents[3] / "examples"
FILE = """
import re
import treadle
from pathlib import Path

LIMIT = 100
SHAPE = re.compile("[a-z]+")
p = treadle.Pipeline("versions")
p.feed("fed", schema="a bigint")


def save(rows, table):
    rows.write.parquet(f"{Path('out')}/{table}/{SHAPE.pattern}")


@p.operator
def large(fed):
    '''Those over the limit.'''
    return fed.where(lambda row: row.a > LIMIT)


@p.sink(priority=1)
def out(large, batch_id):
    save(large, "out")


@p.sink
def all_of(fed, batch_id):
    save(fed, "all")
"""


@st.composite
def versions(draw: st.DrawFn) -> tuple[Definition, Definition]:
    """Two versions of one graph that have some of its sinks each."""
    p = treadle.Pipeline("versions")
    p.feed("fed", schema="a bigint")
    nodes = ["fed"]
    for number in range(draw(st.integers(0, 2))):
        p.source(name=f"source{number}")(lambda spark: spark)
        nodes.append(f"source{number}")
    for number in range(draw(st.integers(0, 5))):
        inputs = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=2, unique=True))
        p.operator(name=f"operator{number}", inputs=inputs)((lambda a: a) if len(inputs) == 1 else lambda a, b: a)
        nodes.append(f"operator{number}")
    sinks = [f"sink{number}" for number in range(draw(st.integers(2, 5)))]
    for name in sinks:
        p.write(name, reads=draw(st.sampled_from(nodes)), format="noop", priority=draw(st.integers(0, 2)))
    some = st.sets(st.sampled_from(sinks), min_size=1)
    return p.restricted(sorted(draw(some))), p.restricted(sorted(draw(some)))


def names(definition: Definition) -> set[str]:
    return {node.name for node in definition.nodes}


@given(versions())
def test_a_version_does_not_differ_from_itself_and_the_way_back_is_the_reverse(
    pair: tuple[Definition, Definition],
) -> None:
    before, after = pair
    assert difference(before, before).nothing
    there, back = difference(before, after), difference(after, before)
    assert (there.changed, there.adjusted, there.refused) == ((), (), ())
    assert (names(before) - set(there.removed)) | set(there.added) == names(after)
    assert (set(back.added), set(back.removed)) == (set(there.removed), set(there.added))
    assert set(back.kept) == set(there.kept)
    assert names(union(before, after)) == names(before) | names(after)


def _ids(definition: Definition, named: dict[str, str]) -> dict[str, str]:
    return {each.operators[-1]: each.id for each in definition.topology(named=named).instances}


def _named(definition: Definition, named: dict[str, str]) -> dict[str, str]:
    return {name: each.query for each in definition.topology(named=named).instances for name in each.operators}


@given(versions())
def test_hops_that_stay_keep_their_names_at_the_gate_unless_two_queries_become_one(
    pair: tuple[Definition, Definition],
) -> None:
    before, after = pair
    both = union(before, after)
    named = _named(before, {})
    during = _named(both, named)
    joined = {query for query in named.values() if query not in during.values()}
    for name, query in named.items():
        assert during[name] == query or query in joined
    ids = _ids(both, during)
    assert _ids(after, during) == {name: identity for name, identity in ids.items() if name in names(after)}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("import re\n", "import re\n# another line\n\n", []),
        ("Those over", "Rows over", ["large"]),
        ("row.a > LIMIT", "row.a >= LIMIT", ["large"]),
        ("LIMIT = 100", "LIMIT = 101", ["large"]),
        ("LIMIT = 100", "LIMIT = 100.0", ["large"]),
        ("[a-z]+", "[a-y]+", ["out", "all_of"]),
        ("Path('out')", "Path('other')", ["out", "all_of"]),
        ('save(fed, "all")', 'save(fed, "every")', ["all_of"]),
        ("out(large, batch_id)", "out(large)", ["out"]),
    ],
)
def test_code_has_changed_if_the_function_or_what_it_uses_has(
    tmp_path: Path, old: str, new: str, changed: list[str]
) -> None:
    assert old in FILE
    (tmp_path / "a.py").write_text(FILE)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.py").write_text(FILE.replace(old, new))
    before, again, after = (treadle.load(tmp_path / file) for file in ("a.py", "a.py", "b/a.py"))
    assert difference(before, again).nothing
    assert sorted(difference(before, after).changed) == sorted(changed)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("0*.py")), ids=lambda file: file.stem)
def test_an_example_does_not_differ_from_itself(file: Path) -> None:
    assert difference(treadle.load(file), treadle.load(file)).nothing


def test_priorities_goals_and_on_failure_change_without_a_restart() -> None:
    def version(**options: Any) -> Definition:
        p = treadle.Pipeline("versions")
        p.feed("fed", schema="a bigint")
        p.write("out", reads="fed", format="noop", **options)
        return p

    for options in ({"priority": 3}, {"latency_goal": "1s"}, {"on_failure": "retry"}):
        found = difference(version(), version(**options))
        assert (found.adjusted, found.changed, found.nothing) == (("out",), (), False)
        assert "goes on" in found.lines()[0]
    assert difference(version(), version(options={"path": "x"})).changed == ("out",)
    with pytest.raises(ConfigError, match="on_failure is 'ignore'"):
        version(on_failure="ignore")


def _write(p: treadle.Pipeline) -> None:
    p.write("out", reads="op", format="noop")


@pytest.mark.parametrize(
    ("feed", "kind", "inputs", "form", "why"),
    [
        ("a string", "operator", "fed", "noop", "feed 'fed' .* is another source than before"),
        ("a bigint", "operator", "other", "noop", "operator 'op' .* reads other and no longer fed"),
        ("a bigint", "source", "", "noop", "source 'op' .* was a operator"),
        ("a bigint", "operator", "fed", "console", "writer 'out' .* writes console and no longer noop"),
        ("a long", "operator", "fed", "noop", ""),
    ],
)
def test_what_a_checkpoint_can_not_continue_is_refused(feed: str, kind: str, inputs: str, form: str, why: str) -> None:
    def version(feed: str, kind: str, inputs: str, form: str) -> Definition:
        p = treadle.Pipeline("versions")
        p.feed("fed", schema=feed)
        p.feed("other", schema="a bigint")
        p.write("aside", reads="other", format="noop")
        p.write("next", reads="fed", format="noop")
        (p.source(name="op") if kind == "source" else p.operator(name="op", inputs=inputs))(lambda rows: rows)
        p.write("out", reads="op", format=form)
        return p

    found = difference(version("a bigint", "operator", "fed", "noop"), version(feed, kind, inputs, form))
    assert len(found.refused) == bool(why)
    if why:
        with pytest.raises(ConfigError, match=why):
            found.check("here")


def test_what_refers_to_itself_or_has_no_equality_is_compared_by_what_it_is_made_of() -> None:
    def made(number: int) -> Any:
        scope: dict[str, Any] = {"re": re}
        text = f"""
        class Table:
            def __init__(self):
                self.me, self.size = self, {number}
            def rows(self):
                return self.size + again(0)

        table = Table()

        def again(n):
            return table.rows() if n else again(n - 1)
        """
        exec(dedent(text), scope)
        return scope["again"]

    assert not same(partial(made, 1), partial(made, 2))
    assert not same([math.nan], [1.0])
    assert same([math.nan], [float("nan")])
    assert same(made(1), made(1))
    assert not same(made(1), made(2))
    assert not same(made(1), len)
