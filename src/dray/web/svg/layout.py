"""Where the nodes of a graph stand: layers from the top down, parents above children, few crossings.

Layers are longest paths. The order within a layer comes from the mean place of the neighbours (barycentres); then
each node moves as near to the middle of its neighbours as those beside it allow. An edge that passes layers by gets a
place of its own in each of them, so that it does not run behind a node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 6
_MOST_BENDS = 600  # of all edges together; with more, edges go straight
_GAP = 16.0
_BEND = 10.0  # the width of an edge that passes a layer by

Edge = tuple[str, str]
Place = str | tuple[str, str, int]  # a node, or an edge in a layer that it passes


class Layout(NamedTuple):
    x: dict[str, float]  # node -> its middle
    width: float
    paths: dict[Edge, list[tuple[float, int]]]  # edge -> (x, layer) where it passes, from its parent to its child


def layers_of(nodes: Iterable[str], edges: Iterable[Edge]) -> dict[str, int]:
    """node -> the number of its ancestors on the longest way up."""
    layers = dict.fromkeys(nodes, 0)
    children, open_parents = defaultdict[str, list[str]](list), dict.fromkeys(layers, 0)
    for parent, child in edges:
        children[parent].append(child)
        open_parents[child] += 1
    free = [node for node, count in open_parents.items() if not count]
    for parent in free:  # grows as children become free
        for child in children[parent]:
            layers[child] = max(layers[child], layers[parent] + 1)
            open_parents[child] -= 1
            if not open_parents[child]:
                free.append(child)
    return layers


def lay_out(widths: Mapping[str, float], layers: Mapping[str, int], edges: Sequence[Edge]) -> Layout:
    """Places nodes of these widths. Edges lead from a layer to a lower one; others are left out."""
    edges = [(parent, child) for parent, child in edges if layers[parent] < layers[child]]
    bends = sum(layers[child] - layers[parent] - 1 for parent, child in edges)
    routes: dict[Edge, list[Place]] = {}
    for parent, child in edges:
        between = range(layers[parent] + 1, layers[child]) if bends <= _MOST_BENDS else range(0)
        routes[parent, child] = [parent, *((parent, child, layer) for layer in between), child]
    rows: list[list[Place]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for node, layer in layers.items():
        rows[layer].append(node)
    above, below = defaultdict[Place, list[Place]](list), defaultdict[Place, list[Place]](list)
    for route in routes.values():
        for place in route[1:-1]:
            rows[_layer(place, layers)].append(place)
        for upper, lower in pairwise(route):
            below[upper].append(lower)
            above[lower].append(upper)
    _order(rows, above, below)
    x = _align(rows, above, below, {place: _width(place, widths) for row in rows for place in row})
    paths = {edge: [(x[place], _layer(place, layers)) for place in route] for edge, route in routes.items()}
    right = max((x[node] + width / 2 for node, width in widths.items()), default=0.0)
    return Layout({node: x[node] for node in widths}, right, paths)


def _layer(place: Place, layers: Mapping[str, int]) -> int:
    return layers[place] if isinstance(place, str) else place[2]


def _width(place: Place, widths: Mapping[str, float]) -> float:
    return widths[place] if isinstance(place, str) else _BEND


def _order(rows: list[list[Place]], above: Mapping[Place, list[Place]], below: Mapping[Place, list[Place]]) -> None:
    """Sorts layers by the mean place of their neighbours, down and up in turn; keeps what crosses least."""
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _sort(row, rows, above if down else below)
        found = _crossings(rows, below)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
    rows[:] = best


def _sort(row: list[Place], rows: list[list[Place]], neighbours: Mapping[Place, list[Place]]) -> None:
    spots = {place: at for each in rows for at, place in enumerate(each)}
    own = {place: at for at, place in enumerate(row)}

    def middle(place: Place) -> float:
        near = [spots[each] for each in neighbours.get(place, ())]
        return sum(near) / len(near) if near else own[place]

    row.sort(key=middle)


def _crossings(rows: list[list[Place]], below: Mapping[Place, list[Place]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        spots = {place: at for at, place in enumerate(lower)}
        ends = [spot for place in upper for spot in sorted(spots[c] for c in below.get(place, ()) if c in spots)]
        total += _inversions(ends, len(lower))
    return total


def _inversions(values: list[int], size: int) -> int:
    """Pairs in the wrong order, in n log n steps: a Fenwick tree of what came before."""
    tree, found = [0] * (size + 1), 0
    for seen, value in enumerate(values):
        at, not_larger = value + 1, 0
        while at > 0:
            not_larger += tree[at]
            at -= at & -at
        found += seen - not_larger
        at = value + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return found


def _align(
    rows: list[list[Place]],
    above: Mapping[Place, list[Place]],
    below: Mapping[Place, list[Place]],
    widths: Mapping[Place, float],
) -> dict[Place, float]:
    x: dict[Place, float] = {}
    for row in rows:
        left = 0.0
        for place in row:
            x[place] = left + widths[place] / 2
            left += widths[place] + _GAP
    for sweep in range(_SWEEPS * 2):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([x[each] for each in neighbours.get(place, ())], x[place]) for place in row]
            x.update(zip(row, _apart(wanted, [widths[place] for place in row]), strict=True))
    least = min((x[place] - widths[place] / 2 for row in rows for place in row), default=0.0)
    return {place: middle - least for place, middle in x.items()}


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _apart(wanted: list[float], widths: list[float]) -> list[float]:
    """The places nearest to those wanted, in this order, that do not overlap (pool adjacent violators)."""
    offsets, at = list[float](), 0.0
    for n, width in enumerate(widths):
        at += (widths[n - 1] + width) / 2 + _GAP if n else 0.0
        offsets.append(at)
    pools: list[tuple[float, int]] = []  # (mean, members)
    for want, offset in zip(wanted, offsets, strict=True):
        mean, members = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean, members = (mean * members + other * count) / (members + count), members + count
        pools.append((mean, members))
    placed = [mean for mean, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(placed, offsets, strict=True)]
