"""Makes a graph small enough to be drawn: steps that are alike become one node, which says how many they are.

Only nodes of one layer become one, so the result has no circle and every edge still leads down.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.web.svg.layout import layers_of

MOST = 120  # nodes that are drawn
WIDEST = 10  # nodes side by side
_ALIKE = 4  # equal nodes that become one before others do

# The state of a node that stands for several: the first of these that one of them has.
_STATES = ("failed", "running", "queued", "scheduled", "waiting", "cancelled", "completed")
_TOLD = ("failed", "completed", "running", "queued", "scheduled", "waiting", "cancelled")  # in a line of numbers
_NUMBER = re.compile(r"[\s._:#/\[(-]*(?<![A-Za-z])\d+(?![A-Za-z])[\])]*|\d+$")

Edge = tuple[str, str]
Key = Callable[["Node", int], Hashable]


class Node(NamedTuple):
    """A job in a graph. `kind`: nodes of one kind may become one; its label without numbers if it is not given."""

    id: str
    label: str
    sub: str  # the second line
    state: str
    href: str | None = None
    kind: str = ""
    steps: int = 1  # that it stands for


class Folded(NamedTuple):
    nodes: list[Node]
    edges: list[Edge]
    layers: dict[str, int]  # node -> layer, 0 at the top
    steps: int  # that were folded
    groups: int  # nodes that stand for them

    @property
    def in_words(self) -> str | None:
        """What the drawing does not show one by one; None: it shows all."""
        if not self.groups:
            return None
        nodes = "1 node stands" if self.groups == 1 else f"{self.groups:,} nodes stand"
        return f"{nodes} for {self.steps:,} steps that are alike."


def fold(nodes: Sequence[Node], edges: Iterable[Edge], *, marked: str | None = None) -> Folded:
    """The graph with as few nodes folded as it takes to draw it. The marked node stays by itself."""
    known = {node.id: node for node in nodes}
    edges = [edge for edge in dict.fromkeys(edges) if edge[0] in known and edge[1] in known]
    layers = layers_of(known, edges)
    parents, children = _neighbours(edges)
    kinds = {node.id: node.kind or kind_of(node.label) for node in nodes}

    def alike(node: Node, layer: int) -> Hashable:
        return layer, kinds[node.id], tuple(parents.get(node.id, ())), tuple(children.get(node.id, ()))

    def near(node: Node, layer: int) -> Hashable:
        sides = (side.get(node.id, ()) for side in (parents, children))
        above, below = (frozenset((layers[each], kinds[each]) for each in side) for side in sides)
        return layer, kinds[node.id], above, below

    def kind(node: Node, layer: int) -> Hashable:
        return layer, kinds[node.id]

    if _fits(layers.values()):
        return Folded(list(nodes), edges, layers, 0, 0)
    ways: list[tuple[Key, tuple[int, ...]]] = [(alike, (_ALIKE, 2)), (near, (2,)), (kind, (2,))]
    for key, sizes in ways:
        found = _groups(nodes, layers, key, marked)
        for least in sizes:
            groups = _of_size(found, least)
            if _fits(layers[members[0].id] for members in groups):
                return _merged(groups, edges, layers, kinds)
    return _merged(_squeezed(nodes, layers, kinds, marked), edges, layers, kinds)


def kind_of(label: str) -> str:
    """A label without the numbers that tell equal steps apart: `load-17` and `load-18` are `load`."""
    return _NUMBER.sub("", label.strip()).strip(" ._:#/-") or label.strip()


def _fits(layers: Iterable[int]) -> bool:
    sizes = Counter(layers)
    return sizes.total() <= MOST and max(sizes.values(), default=0) <= WIDEST


def _neighbours(edges: Iterable[Edge]) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    parents, children = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for parent, child in edges:
        parents[child].append(parent)
        children[parent].append(child)
    return parents, children


def _groups(nodes: Sequence[Node], layers: Mapping[str, int], key: Key, marked: str | None) -> list[list[Node]]:
    groups = defaultdict[Hashable, list[Node]](list)
    for node in nodes:
        groups[node.id if node.id == marked else key(node, layers[node.id])].append(node)
    return list(groups.values())


def _of_size(groups: Sequence[list[Node]], least: int) -> list[list[Node]]:
    """The groups, the smaller ones taken apart again."""
    found: list[list[Node]] = []
    for members in groups:
        found += [members] if len(members) >= least else [[node] for node in members]
    return found


def _squeezed(
    nodes: Sequence[Node], layers: Mapping[str, int], kinds: Mapping[str, str], marked: str | None
) -> list[list[Node]]:
    """The last resort: many kinds in a layer, or many layers. Whole ranges of layers become one node each, and of a
    layer the largest kinds stay."""
    deep = max(layers.values()) + 1
    step = -(-deep // (MOST // 4))  # layers that become one
    most = min(WIDEST - 2, MOST // -(-deep // step) - 2)  # kinds of each; beside them the others, and the marked node
    largest = Counter((layers[node.id] // step, kinds[node.id]) for node in nodes)
    kept: dict[int, set[str]] = defaultdict(set)
    for (band, kind), _ in largest.most_common():
        if len(kept[band]) < most:
            kept[band].add(kind)
    groups = defaultdict[Hashable, list[Node]](list)
    for node in nodes:
        band, kind = layers[node.id] // step, kinds[node.id]
        groups[node.id if node.id == marked else (band, kind if kind in kept[band] else None)].append(node)
    return list(groups.values())


def _merged(
    groups: Sequence[Sequence[Node]], edges: Iterable[Edge], layers: Mapping[str, int], kinds: Mapping[str, str]
) -> Folded:
    lead = {node.id: members[0].id for members in groups for node in members}
    many = [members for members in groups if len(members) > 1]
    merged = [members[0] if len(members) == 1 else _one(members, kinds) for members in groups]
    drawn = list(dict.fromkeys((lead[parent], lead[child]) for parent, child in edges))
    # Layers are found again: ranges of them may have become one. A range may lead into itself; such edges go.
    tops = {members[0].id: min(layers[node.id] for node in members) for members in groups}
    drawn = [(parent, child) for parent, child in drawn if tops[parent] < tops[child]]
    found = layers_of({node.id: node for node in merged}, drawn)
    return Folded(merged, drawn, found, sum(map(len, many)), len(many))


def _one(members: Sequence[Node], kinds: Mapping[str, str]) -> Node:
    first, states = members[0], Counter(node.state for node in members)
    names = {kinds[node.id] for node in members}
    kind = next(iter(names)) if len(names) == 1 else f"{len(names):,} kinds"
    others = [state for state in states if state not in _STATES]
    ordered = [state for state in _STATES if states[state]] + others
    told = [state for state in _TOLD if states[state]] + others
    return Node(
        id=first.id,
        label=f"{kind} · {len(members):,} steps",
        sub=", ".join(f"{states[state]:,} {state}" for state in told),
        state=ordered[0],
        kind=kind,
        steps=len(members),
    )
