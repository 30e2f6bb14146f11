"""The tree names every node and what is asked of it; the picture is well-formed, and no box lies on another."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from treadle.cli.show import show as command
from treadle.errors import ConfigError
from treadle.pipelines import Pipeline
from treadle.pipelines.api import show

SVG = "{http://www.w3.org/2000/svg}"
MINIMUM_GAP = 15.9


def take(*names: str) -> Callable[..., None]:
    return eval(f"lambda {', '.join(names)}: None")  # type: ignore[no-any-return]


def fraud() -> Pipeline:
    p = Pipeline("fraud")
    p.source(name="payments")(take("spark"))
    p.topic("limits", topic="limits-v2", format="raw")
    p.operator(name="clean")(take("payments"))
    p.operator(name="scored", stateful=True)(take("clean", "limits"))
    p.sink(name="alerts", priority=10, latency_goal="500ms", min_accuracy=0.9)(take("scored"))
    p.write("archive", reads="clean", format="parquet")
    return p


def some(seed: int, size: int) -> Pipeline:
    """A random pipeline of about this many nodes."""
    choose = random.Random(seed)
    p = Pipeline("some")
    names: list[str] = []
    read: set[str] = set()
    for number in range(size):
        name = f"n{number}_{'x' * choose.randint(0, 40)}"
        ups = choose.sample(names[-8:], min(len(names), choose.randint(0, 3)))
        if ups:
            p.operator(name=name)(take(*ups))
        else:
            p.feed(name, schema="id long")
        read |= set(ups)
        names.append(name)
    for number, name in enumerate(set(names) - read):
        p.sink(name=f"s{number}", priority=number)(take(name))
    return p


def boxes(picture: str) -> dict[str, tuple[float, float, float, float]]:
    """Shown name -> x, y, width, height."""
    found = {}
    for group in ElementTree.fromstring(picture).iter(f"{SVG}g"):
        rect, name = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        assert rect is not None
        assert name is not None
        x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
        found[str(name.text)] = (x, y, width, height)
    return found


class TestTree:
    def test_it_shows_the_graph_and_what_the_sinks_ask_for(self) -> None:
        assert show.text(fraud()) == (
            "fraud: 2 sources, 2 operators, 2 sinks\n"
            "\n"
            "payments  source\n"
            "└─ clean  operator\n"
            "   ├─ scored  operator, stateful (with limits)\n"
            "   │  └─ alerts  sink, priority 10, within 500ms, accuracy ≥ 0.9\n"
            "   └─ archive  writer parquet, priority 0\n"
            "limits  topic limits-v2\n"
            "└─ scored  as above (with clean)\n"
        )

    @given(st.integers(0, 10**6), st.integers(1, 25))
    def test_every_edge_is_a_line_and_no_node_is_drawn_twice(self, seed: int, size: int) -> None:
        p = some(seed, size)
        lines = show.text(p).splitlines()[2:]
        whole = [re.split(r"[ │├└─]*", line, maxsplit=1)[1].split()[0] for line in lines if "as above" not in line]
        assert sorted(whole) == sorted(node.name for node in p.nodes)
        sources = sum(node.kind.starts for node in p.nodes)
        assert len(lines) == sources + sum(len(node.inputs) for node in p.nodes)

    def test_a_graph_that_makes_no_sense_is_not_drawn(self) -> None:
        p = Pipeline("p")
        p.feed("a", schema="id long")
        with pytest.raises(ConfigError, match="nothing reads 'a'"):
            show.text(p)
        with pytest.raises(ConfigError, match="nothing reads 'a'"):
            show.svg(p)


class TestPicture:
    def test_it_says_what_the_tree_says(self) -> None:
        picture = show.svg(fraud())
        words = [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]
        assert {"fraud", "alerts", "sink, priority 10, within 500ms, accuracy ≥ 0.9"} <= set(words)
        assert picture.count('class="edge"') == 5
        assert "operator 'scored' (test_show.py:" in picture.replace("&#x27;", "'")

    def test_it_needs_nothing_from_elsewhere(self) -> None:
        picture = show.svg(fraud())
        assert "href" not in picture
        assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")

    def test_text_from_outside_is_escaped(self) -> None:
        p = Pipeline("p")
        p.feed("a", schema="id long")
        p.write("w", reads="a", format='<script>"&')
        ElementTree.fromstring(show.svg(p))
        assert "<script>" not in show.svg(p)

    def test_data_flows_from_left_to_right(self) -> None:
        p = fraud()
        placed = boxes(show.svg(p))
        for node in p.nodes:
            for up in node.inputs:
                x, _, width, _ = placed[up]
                assert x + width < placed[node.name][0]

    def test_a_source_stands_next_to_its_first_reader(self) -> None:
        placed = boxes(show.svg(fraud()))
        assert placed["limits"][0] == placed["clean"][0]

    def test_parallel_chains_do_not_cross_and_are_straight(self) -> None:
        p = Pipeline("p")
        for number in range(13):
            p.feed(f"in{number}", schema="id long")
            p.operator(name=f"work{number}")(take(f"in{number}"))
            p.sink(name=f"out{number}")(take(f"work{number}"))
        placed = boxes(show.svg(p))
        heights = [{placed[f"{kind}{number}"][1] for kind in ("in", "work", "out")} for number in range(13)]
        assert all(len(h) == 1 for h in heights)
        assert [min(h) for h in heights] == sorted(min(h) for h in heights)

    @given(st.integers(0, 10**6), st.integers(1, 40))
    def test_all_boxes_are_inside_and_apart(self, seed: int, size: int) -> None:
        picture = show.svg(some(seed, size))
        root = ElementTree.fromstring(picture)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        placed = list(boxes(picture).values())
        assert all(x >= 0 and x + w <= width and y >= 0 and y + h <= height for x, y, w, h in placed)
        for (x0, y0, w0, h0), (x1, y1, w1, h1) in combinations(placed, 2):
            beside = x0 + w0 <= x1 or x1 + w1 <= x0
            assert beside or y0 + h0 + MINIMUM_GAP <= y1 or y1 + h1 + MINIMUM_GAP <= y0

    def test_it_is_the_same_every_time(self) -> None:
        assert show.svg(fraud()).partition("<g>")[0] == show.svg(fraud()).partition("<g>")[0]


class TestCommand:
    FILE = """
from treadle.pipelines import Pipeline
p = Pipeline("fraud")
p.feed("payments", schema="id long")
p.write("archive", reads="payments", format="parquet")
"""

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(sys, "path", list(sys.path))
        path = tmp_path / "flow.py"
        path.write_text(self.FILE)
        return path

    def run(self, *words: str) -> click.testing.Result:
        return CliRunner().invoke(command, list(words))

    def test_it_prints_the_tree(self, file: Path) -> None:
        result = self.run(str(file))
        assert result.exit_code == 0
        assert "└─ archive  writer parquet, priority 0" in result.output

    def test_it_draws_into_a_file(self, file: Path) -> None:
        picture = file.with_suffix(".svg")
        assert f"picture: {picture}" in self.run(str(file), "--svg", str(picture)).output
        assert set(boxes(picture.read_text())) == {"payments", "archive"}

    def test_a_file_that_can_not_be_written_is_a_clear_error(self, file: Path) -> None:
        result = self.run(str(file), "--svg", str(file / "x.svg"))
        assert isinstance(result.exception, ConfigError)
        assert "can't be written" in str(result.exception)
