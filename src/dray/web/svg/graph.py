"""A graph of jobs: layers from the top down, parents above children."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from dray.web.show import plain
from dray.web.svg.folding import Edge, Folded, Node, fold
from dray.web.svg.layout import lay_out
from dray.web.svg.tags import decimal, tag

__all__ = ["Edge", "Folded", "Node", "draw", "fold", "graph"]

_HEIGHT, _STEP = 42, 70  # of a node; from one layer to the next
_LEFT = 26  # of the text in a node, beside its mark
_NARROW, _WIDE, _WIDE_GROUP = 124, 200, 300
_LABEL, _SUB = 6.7, 5.7  # about the width of a character, in the fonts of the two lines
_LEAST_WIDTH = 340  # a graph of one node is not blown up to fill its card
_MARGIN = 4
_TITLE, _DESCRIPTION = 300, 1_500  # characters
_STATES = frozenset({"waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled"})


def graph(nodes: Sequence[Node], edges: Sequence[Edge], *, marked: str | None = None, title: str) -> Markup:
    """Draws a graph, folded if it is large; see `fold` for what to say of that. `marked`: the job this page is of."""
    return draw(fold(nodes, edges, marked=marked), marked=marked, title=title)


def draw(folded: Folded, *, marked: str | None = None, title: str) -> Markup:
    widths = {node.id: _width(node) for node in folded.nodes}
    layout = lay_out(widths, folded.layers, folded.edges)
    width = max(layout.width, _LEAST_WIDTH) + 2 * _MARGIN
    height = (max(folded.layers.values(), default=0)) * _STEP + _HEIGHT + 2 * _MARGIN
    left = (width - layout.width) / 2
    by_id = {node.id: node for node in folded.nodes}
    lines = [
        _edge([(left + x, layer) for x, layer in path], is_done=by_id[parent].state == "completed")
        for (parent, _), path in layout.paths.items()
    ]
    boxes = [
        _box(node, left + layout.x[node.id], folded.layers[node.id], widths[node.id], is_marked=node.id == marked)
        for node in folded.nodes
    ]
    has_links = any(node.href for node in folded.nodes)
    return tag(
        "svg",
        tag("title", plain(title), id="dag-t"),
        tag("desc", _in_words(folded, marked), id="dag-d"),
        *lines,
        *boxes,
        class_="dag",
        viewBox=f"0 0 {decimal(width)} {decimal(height)}",
        width=decimal(width),
        height=decimal(height),
        role="group" if has_links else "img",  # what is in an image cannot be reached by the keyboard
        aria_labelledby="dag-t",
        aria_describedby="dag-d",
    )


def _edge(points: list[tuple[float, int]], *, is_done: bool) -> Markup:
    """From the foot of the parent to the head of the child; straight down where it passes a layer by."""
    parts: list[str] = []
    for (x1, layer1), (x2, layer2) in pairwise(points):
        y1, y2 = _MARGIN + layer1 * _STEP + _HEIGHT, _MARGIN + layer2 * _STEP
        bend = min(18, (y2 - y1) / 2)
        xa, xb = decimal(x1), decimal(x2)
        parts.append(f"M{xa} {y1}" if not parts else f"V{y1}")
        parts.append(f"C{xa} {decimal(y1 + bend)} {xb} {decimal(y2 - bend)} {xb} {y2}")
    return tag("path", class_="edge done" if is_done else "edge", d="".join(parts))


def _box(node: Node, middle: float, layer: int, width: float, *, is_marked: bool) -> Markup:
    x, y = middle - width / 2, _MARGIN + layer * _STEP
    room = width - _LEFT - 8
    whole = ": ".join(filter(None, (plain(node.label), plain(node.sub))))
    inside = [tag("title", _cut(whole, _TITLE))]
    if node.steps > 1:
        inside += [_rect("more", x + 4, y + 4, width), _rect("more", x + 2, y + 2, width)]
    inside += [
        _rect(None, x, y, width),
        tag("circle", class_="pip", cx=decimal(x + 15), cy=y + 16, r=4),
        tag("text", _cut(plain(node.label), int(room / _LABEL)), x=decimal(x + _LEFT), y=y + 20),
        tag("text", _cut(plain(node.sub), int(room / _SUB)), class_="sub", x=decimal(x + _LEFT), y=y + 34),
    ]
    state = node.state if node.state in _STATES else "waiting"
    words = f"node {state}{' marked' if is_marked else ''}"
    return tag("a", *inside, class_=words, href=node.href) if node.href else tag("g", *inside, class_=words)


def _rect(name: str | None, x: float, y: float, width: float) -> Markup:
    return tag("rect", class_=name, x=decimal(x + 0.5), y=y + 0.5, width=decimal(width - 1), height=_HEIGHT - 1, rx=7)


def _width(node: Node) -> float:
    needed = _LEFT + 10 + max(len(plain(node.label)) * _LABEL, len(plain(node.sub)) * _SUB)
    return max(_NARROW, min(_WIDE_GROUP if node.steps > 1 else _WIDE, round(needed)))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _in_words(folded: Folded, marked: str | None) -> str:
    """The layers as a sentence, for those who do not see the drawing."""
    rows = defaultdict[int, list[str]](list)
    for node in folded.nodes:
        mine = ", this job" if node.id == marked else ""
        rows[folded.layers[node.id]].append(f"{plain(node.label)} ({plain(node.sub) or node.state}{mine})")
    if not rows:
        return "No steps."
    return _cut("; then ".join(", ".join(rows[layer]) for layer in sorted(rows)) + ".", _DESCRIPTION)
