"""Draws a pipeline as a tree for the terminal, or as a self-contained SVG in layers from left to right.

It shows the graph and what sinks require, nothing of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from itertools import pairwise

from treadle import durations
from treadle.errors import ConfigError
from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.node import Kind, Node

_HEIGHT, _GAP_Y, _GAP_X, _MARGIN = 44.0, 16.0, 64.0, 24.0
_TITLE, _BETWEEN = 56.0, 30.0
_LONGEST = 34  # characters of a name that are shown in a box
_Place = tuple[int, float]
"""A point of the drawing: the number of its layer, and its distance from the top in pixels."""
_COLOURS = {
    Kind.SOURCE: ("#e6f4ea", "#2e7d4f"),
    Kind.FEED: ("#e0f3f1", "#1f7a74"),
    Kind.TOPIC: ("#e8f1dc", "#5b7a1f"),
    Kind.OPERATOR: ("#e8eefb", "#3a5fb0"),
    Kind.SINK: ("#fdeee0", "#b5651d"),
    Kind.WRITER: ("#f8e9ef", "#a0426a"),
}
_STYLE = """
text { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1d2430; }
.title { font-size: 18px; font-weight: 600; }
.name { font-size: 13px; font-weight: 600; }
.small { font-size: 11px; fill: #56606e; }
.edge { fill: none; stroke: #97a1b0; stroke-width: 1.4; }
""".strip()


def text(p: Pipeline) -> str:
    """The graph as a text tree from each source to its sinks. A subtree is drawn once, and then shown as `as above`."""
    p.check()
    nodes = {node.name: node for node in p.nodes}
    readers = graph.downstream(nodes)
    lines = [f"{p.name}: {_counts(p.nodes)}", ""]
    shown: set[str] = set()

    def draw(name: str, lead: str, below: str, parent: str) -> None:
        node = nodes[name]
        again = name in shown and bool(readers[name])
        others = [up for up in node.inputs if up != parent]
        also = f" (with {', '.join(others)})" if others else ""
        lines.append(f"{lead}{name}  {'as above' if again else _details(node)}{also}")
        if again:
            return
        shown.add(name)
        for number, reader in enumerate(readers[name]):
            last = number == len(readers[name]) - 1
            draw(reader, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "), name)

    for node in p.nodes:
        if node.kind.starts:
            draw(node.name, "", "", "")
    return "\n".join(lines) + "\n"


def svg(p: Pipeline) -> str:
    """The graph as a self-contained SVG; a node's tooltip is the line that defines it."""
    p.check()
    nodes = {node.name: node for node in p.nodes}
    layouts = [_lay_out(part) for part in graph.parts(nodes, through=True)]
    widths = _column_widths(layouts)
    left = [_MARGIN + sum(widths[:i]) + _GAP_X * i for i in range(len(widths))]
    body: list[str] = []
    top = _TITLE
    for layout in layouts:
        body += _edges(layout, left, widths, top) + _boxes(layout, left, widths, top)
        top += layout.height + _BETWEEN
    legend, legend_width = _legend({node.kind for node in nodes.values()}, top - _BETWEEN + 34)
    width = max(left[-1] + widths[-1], legend_width, _text_width(p.name, 18) + _MARGIN) + _MARGIN
    height = top - _BETWEEN + 34 + _MARGIN
    title = escape(p.name)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{title}: {_counts(p.nodes)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0.6 L7.5,4 L0,7.4 z" fill="#97a1b0"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        f'<text class="title" x="{_MARGIN:.0f}" y="34">{title}</text>',
    ]
    return "\n".join([*head, *body, *legend, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Layout:
    """One connected part of the graph: where each node's box has its middle, and where long edges cross layers."""

    nodes: Mapping[str, Node]
    places: Mapping[str, _Place]
    ways: Sequence[tuple[str, Sequence[_Place], str]]

    @property
    def height(self) -> float:
        return max(y for _, y in [*self.places.values(), *(at for _, way, _ in self.ways for at in way)]) + _HEIGHT / 2


def _lay_out(part: Sequence[Node]) -> _Layout:
    """Lay out one connected part by Sugiyama's method. igraph draws from top to bottom, the result is left to right."""
    if find_spec("igraph") is None:
        raise ConfigError("igraph is not installed", where="picture", remedy="pip install 'treadle[plot]'")
    from igraph import Graph

    nodes, depth = {node.name: node for node in part}, _depths(part)
    layers = [depth[name] for name in nodes]
    number = {name: vertex for vertex, name in enumerate(nodes)}
    ways: list[tuple[str, list[int], str]] = []
    for node in part:
        for up in node.inputs:  # a long edge gets a vertex in each layer that it crosses, so that it crosses no box
            crossed = range(depth[up] + 1, depth[node.name])
            ways.append((up, [len(layers) + each for each in range(len(crossed))], node.name))
            layers += crossed
    edges = [edge for up, way, down in ways for edge in pairwise([number[up], *way, number[down]])]
    drawn = Graph(len(layers), edges, directed=True).layout_sugiyama(layers=layers, hgap=_HEIGHT + _GAP_Y)
    at = _apart(layers, [x for x, _ in drawn.coords])
    places = {name: at[vertex] for name, vertex in number.items()}
    return _Layout(nodes, places, [(up, [at[each] for each in way], down) for up, way, down in ways])


def _apart(layers: Sequence[int], heights: Sequence[float]) -> list[_Place]:
    """Return the place of each vertex, with at least the usual gap between boxes; igraph sometimes halves the gap."""
    middle = [0.0] * len(layers)
    lowest: dict[int, float] = {}
    for vertex in sorted(range(len(layers)), key=lambda each: heights[each]):
        least = lowest.get(layers[vertex], 0.0)
        middle[vertex] = max(least, heights[vertex] - min(heights)) + _HEIGHT / 2
        lowest[layers[vertex]] = middle[vertex] + _HEIGHT / 2 + _GAP_Y
    return list(zip(layers, middle, strict=True))


def _depths(part: Sequence[Node]) -> dict[str, int]:
    """Layer of each node: its longest path from a source. For short edges, sources move next to their first reader."""
    depth: dict[str, int] = {}
    for node in part:
        depth[node.name] = max((depth[up] + 1 for up in node.inputs), default=0)
    for node in part:
        if node.kind.starts:
            depth[node.name] = min(depth[other.name] for other in part if node.name in other.inputs) - 1
    return depth


def _column_widths(layouts: Sequence[_Layout]) -> list[float]:
    widths = [0.0] * (1 + max(level for layout in layouts for level, _ in layout.places.values()))
    for layout in layouts:
        for name, (level, _) in layout.places.items():
            widest = max(_text_width(_short(name), 13), _text_width(_details(layout.nodes[name]), 11))
            widths[level] = max(widths[level], widest + 28)
    return widths


def _boxes(layout: _Layout, left: list[float], widths: list[float], top: float) -> list[str]:
    out = []
    for name, (level, middle) in layout.places.items():
        node = layout.nodes[name]
        fill, line = _COLOURS[node.kind]
        x, y = left[level], top + middle - _HEIGHT / 2
        out.append(
            f"<g><title>{escape(node.where)}</title>"
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{widths[level]:.1f}" height="{_HEIGHT:.0f}" rx="7"'
            f' fill="{fill}" stroke="{line}" stroke-width="1.2"/>'
            f'<text class="name" x="{x + 14:.1f}" y="{y + 19:.1f}">{escape(_short(name))}</text>'
            f'<text class="small" x="{x + 14:.1f}" y="{y + 34:.1f}">{escape(_details(node))}</text></g>'
        )
    return out


def _edges(layout: _Layout, left: list[float], widths: list[float], top: float) -> list[str]:
    out = []
    for up, way, down in layout.ways:
        stations = [layout.places[up], *way, layout.places[down]]
        path = ""
        for (level, y0), (following, y1) in pairwise(stations):
            x0, x1 = left[level] + widths[level], left[following] - (2 if following == stations[-1][0] else 0)
            half = (x0 + x1) / 2
            begin = f"L{x0:.1f},{top + y0:.1f}" if path else f"M{x0:.1f},{top + y0:.1f}"
            path += f"{begin} C{half:.1f},{top + y0:.1f} {half:.1f},{top + y1:.1f} {x1:.1f},{top + y1:.1f} "
        out.append(f'<path class="edge" marker-end="url(#tip)" d="{path.strip()}"/>')
    return out


def _legend(kinds: set[Kind], y: float) -> tuple[list[str], float]:
    out, x = [], _MARGIN
    for kind in Kind:
        if kind in kinds:
            fill, line = _COLOURS[kind]
            out.append(
                f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="3" fill="{fill}" stroke="{line}"/>'
                f'<text class="small" x="{x + 18:.1f}" y="{y:.1f}">{kind}</text>'
            )
            x += 18 + _text_width(kind, 11) + 20
    return out, x


def _details(node: Node) -> str:
    """A node's kind and requirements, in a few words."""
    words = [str(node.kind)]
    if node.kind is Kind.TOPIC and node.topic != node.name:
        words[0] += f" {node.topic}"
    if node.kind is Kind.WRITER:
        words[0] += f" {node.format}"
    if node.stateful:
        words.append("stateful")
    if node.kind.ends:
        words.append(f"priority {node.priority:g}")
    if node.latency_goal is not None:
        words.append(f"within {durations.text(node.latency_goal)}")
    if node.min_accuracy is not None:
        words.append(f"accuracy ≥ {node.min_accuracy:g}")
    return ", ".join(words)


def _counts(nodes: Sequence[Node]) -> str:
    """`2 sources, 1 operator, 1 sink`: feeds and topics are sources, writers are sinks."""
    roles = Counter("source" if n.kind.starts else "sink" if n.kind.ends else "operator" for n in nodes)
    return ", ".join(
        f"{roles[r]} {r}{'s' if roles[r] != 1 else ''}" for r in ("source", "operator", "sink") if roles[r]
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _text_width(words: str, size: float) -> float:
    """Estimated width in pixels, rather too large, since the reader's font is unknown."""
    return sum(0.36 if c in "ijl.,:;|' " else 0.92 if c in "mwMW" else 0.62 for c in words) * size
