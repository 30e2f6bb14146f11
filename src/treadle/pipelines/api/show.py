"""A pipeline as a tree for the terminal and as a self-contained SVG: layers from left to right, colours by kind.

It draws the graph and what sinks require, nothing of a run. The layout is the usual one for layered graphs: long edges
get a place in each layer, layers are sorted by the positions of neighbours, and boxes move towards the mean height of
their neighbours as far as other boxes leave room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from treadle import durations
from treadle.pipelines.api.pipeline import Pipeline
from treadle.pipelines.nodes import graph
from treadle.pipelines.nodes.node import Kind, Node

_HEIGHT, _GAP_Y, _GAP_X, _MARGIN = 44.0, 16.0, 64.0, 24.0
_TITLE, _BETWEEN = 56.0, 30.0
_LONGEST = 34  # characters of a name that are shown in a box
_SWEEPS = 12
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


@dataclass
class _Layout:
    """One connected part: its spots by layer, with y positions. A tuple is where a long edge crosses a layer."""

    nodes: Mapping[str, Node]
    ways: list[list[_Spot]]
    layers: list[list[_Spot]]
    y: dict[_Spot, float] = field(default_factory=dict)

    @property
    def height(self) -> float:
        return max(self.y[spot] + self.size(spot) for layer in self.layers for spot in layer)

    def size(self, spot: _Spot) -> float:
        return _HEIGHT if isinstance(spot, str) else 6.0


_Spot = str | tuple[str, str, int]


def _lay_out(part: Sequence[Node]) -> _Layout:
    nodes = {node.name: node for node in part}
    depth = _depths(part)
    layers: list[list[_Spot]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in part:
        layers[depth[node.name]].append(node.name)
    ways: list[list[_Spot]] = []
    for node in part:
        for up in node.inputs:
            stations: list[_Spot] = [(up, node.name, level) for level in range(depth[up] + 1, depth[node.name])]
            for level, station in enumerate(stations, depth[up] + 1):
                layers[level].append(station)
            ways.append([up, *stations, node.name])
    layout = _Layout(nodes, ways, layers)
    before, after = _neighbours(ways)
    _sort_layers(layers, before, after)
    _place(layout, before, after)
    return layout


def _depths(part: Sequence[Node]) -> dict[str, int]:
    """Layer of each node: its longest path from a source. For short edges, sources move next to their first reader."""
    depth: dict[str, int] = {}
    for node in part:
        depth[node.name] = max((depth[up] + 1 for up in node.inputs), default=0)
    for node in part:
        if node.kind.starts:
            depth[node.name] = min(depth[other.name] for other in part if node.name in other.inputs) - 1
    return depth


def _neighbours(ways: list[list[_Spot]]) -> tuple[dict[_Spot, list[_Spot]], dict[_Spot, list[_Spot]]]:
    before: dict[_Spot, list[_Spot]] = {}
    after: dict[_Spot, list[_Spot]] = {}
    for way in ways:
        for start, end in pairwise(way):
            after.setdefault(start, []).append(end)
            before.setdefault(end, []).append(start)
    return before, after


def _sort_layers(
    layers: list[list[_Spot]], before: Mapping[_Spot, list[_Spot]], after: Mapping[_Spot, list[_Spot]]
) -> None:
    """Sort each layer by the mean positions of neighbours, forwards and backwards; keep the fewest crossings."""
    best, fewest = [list(layer) for layer in layers], _crossings(layers, after)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        forwards = sweep % 2 == 0
        for layer in layers if forwards else layers[::-1]:
            near = before if forwards else after
            place = {spot: number for other in layers for number, spot in enumerate(other)}
            layer.sort(key=lambda s: _mean([place[n] for n in near.get(s, [])], place[s]))
        if (count := _crossings(layers, after)) < fewest:
            best, fewest = [list(layer) for layer in layers], count
    layers[:] = best
    if fewest:
        _swap(layers, after)


def _swap(layers: list[list[_Spot]], after: Mapping[_Spot, list[_Spot]]) -> None:
    """Swap adjacent spots of a layer as long as that reduces the number of crossings."""
    better = True
    while better:
        better = False
        for number, layer in enumerate(layers):
            near = layers[max(0, number - 1) : number + 2]
            count = _crossings(near, after)
            for i in range(len(layer) - 1):
                layer[i], layer[i + 1] = layer[i + 1], layer[i]
                if (less := _crossings(near, after)) < count:
                    count, better = less, True
                else:
                    layer[i], layer[i + 1] = layer[i + 1], layer[i]


def _crossings(layers: list[list[_Spot]], after: Mapping[_Spot, list[_Spot]]) -> int:
    count = 0
    for layer, following in pairwise(layers):
        place = {spot: number for number, spot in enumerate(following)}
        ends = [sorted(place[n] for n in after.get(spot, [])) for spot in layer]
        seen: list[int] = []
        for group in ends:
            count += sum(earlier > end for end in group for earlier in seen)
            seen += group
    return count


def _place(layout: _Layout, before: Mapping[_Spot, list[_Spot]], after: Mapping[_Spot, list[_Spot]]) -> None:
    """Set y: each spot moves to the mean height of its neighbours, without overlap in its layer."""
    y = layout.y
    for layer in layout.layers:
        top = 0.0
        for spot in layer:
            y[spot] = top
            top += layout.size(spot) + _GAP_Y
    for sweep in range(6 * _SWEEPS):
        for layer in layout.layers if sweep % 2 else layout.layers[::-1]:
            wanted = []
            for spot in layer:
                near = [*before.get(spot, []), *after.get(spot, [])]
                middle = _mean([y[n] + layout.size(n) / 2 for n in near], y[spot] + layout.size(spot) / 2)
                wanted.append(middle - layout.size(spot) / 2)
            for spot, top in zip(layer, _spread(wanted, [layout.size(s) + _GAP_Y for s in layer]), strict=True):
                y[spot] = top
    lowest = min(y.values())
    for spot in y:
        y[spot] -= lowest


def _spread(wanted: list[float], sizes: list[float]) -> list[float]:
    """The positions nearest to the wanted ones (least squares) without overlap: pool adjacent violators."""
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    blocks: list[tuple[float, int]] = []  # (mean of wanted position minus offset, members)
    for want, offset in zip(wanted, offsets, strict=True):
        mean, members = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean = (mean * members + other * count) / (members + count)
            members += count
        blocks.append((mean, members))
    means = [mean for mean, members in blocks for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _column_widths(layouts: Sequence[_Layout]) -> list[float]:
    widths = [0.0] * max(len(layout.layers) for layout in layouts)
    for layout in layouts:
        for number, layer in enumerate(layout.layers):
            for spot in layer:
                if isinstance(spot, str):
                    widest = max(_text_width(_short(spot), 13), _text_width(_details(layout.nodes[spot]), 11))
                    widths[number] = max(widths[number], widest + 28)
    return widths


def _boxes(layout: _Layout, left: list[float], widths: list[float], top: float) -> list[str]:
    out = []
    for number, layer in enumerate(layout.layers):
        for spot in layer:
            if not isinstance(spot, str):
                continue
            node = layout.nodes[spot]
            fill, line = _COLOURS[node.kind]
            x, y, width = left[number], top + layout.y[spot], widths[number]
            out.append(
                f"<g><title>{escape(node.where)}</title>"
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="7"'
                f' fill="{fill}" stroke="{line}" stroke-width="1.2"/>'
                f'<text class="name" x="{x + 14:.1f}" y="{y + 19:.1f}">{escape(_short(spot))}</text>'
                f'<text class="small" x="{x + 14:.1f}" y="{y + 34:.1f}">{escape(_details(node))}</text></g>'
            )
    return out


def _edges(layout: _Layout, left: list[float], widths: list[float], top: float) -> list[str]:
    column = {spot: number for number, layer in enumerate(layout.layers) for spot in layer}
    out = []
    for way in layout.ways:
        points = []
        for spot in way:
            number, y = column[spot], top + layout.y[spot] + layout.size(spot) / 2
            if spot != way[0]:
                points.append((left[number] - (2 if spot == way[-1] else 0), y))
            if spot != way[-1]:
                points.append((left[number] + widths[number], y))
        path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
        for number, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
            half = (x0 + x1) / 2
            curve = f" C{half:.1f},{y0:.1f} {half:.1f},{y1:.1f} {x1:.1f},{y1:.1f}"
            path += curve if number % 2 == 0 else f" L{x1:.1f},{y1:.1f}"
        out.append(f'<path class="edge" marker-end="url(#tip)" d="{path}"/>')
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


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
