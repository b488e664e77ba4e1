"""Draws a graph of jobs as lines of text: one row for each step, parents above children, lines between them.

Steps of one task with the same parents and children become one row with their number. A graph that is still too large
is not drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dray.cli.cells import state_word
from dray.model.workflow import order

MOST_ROWS = 200
_MOST_LANES = 30
_ALIKE = 4  # equal steps that become one row
_FAILED = 5  # failed ones that are named under it


class Spot(NamedTuple):
    """A step, or several equal ones."""

    label: str
    kind: str  # steps of one kind may become one row
    state: str
    error: str = ""  # of a failed step
    below: tuple[str, ...] = ()  # of several steps: those that failed


_NOTHING = Spot("", "", "")


class Ink(NamedTuple):
    """The characters of a drawing: a line for (up, down, left, right), a mark for a state."""

    lines: str
    marks: Mapping[str, str]
    other: str

    def line(self, *, up: bool, down: bool, left: bool, right: bool) -> str:
        return self.lines[up * 8 + down * 4 + left * 2 + right]


BOXES = Ink(" ╶╴─╷┌┐┬╵└┘┴│├┤┼", {"completed": "●", "running": "◉", "failed": "✗", "cancelled": "⊘"}, "○")
ASCII = Ink(" ---|+++|+++|+++", {"completed": "*", "running": ">", "failed": "x", "cancelled": "-"}, "o")


def draw(spots: Mapping[str, Spot], edges: Iterable[tuple[str, str]], ink: Ink) -> list[str] | None:
    """Returns the rows of a graph whose edges are (parent, child); None if it is too large."""
    graph = _Graph.of(spots, edges).gathered()
    if len(graph.spots) > MOST_ROWS:
        return None
    lanes = _Lanes(ink)
    rows: list[tuple[str, Spot]] = []
    for name in order(graph.parents):
        spot = graph.spots[name]
        column = lanes.enter(name)
        word = "failed" if spot.below else state_word(spot.state)
        rows.append((lanes.row(column, ink.marks.get(word, ink.other)), spot))
        rows += [(line, _NOTHING) for line in lanes.leave(column, graph.children[name])]
        rows += [(lanes.row(-1, ""), Spot("", "", "", each)) for each in spot.below]
        if len(lanes.lanes) > _MOST_LANES:
            return None
    width = max(len(line) for line, _ in rows)
    labels = max(len(spot.label) for _, spot in rows)
    return [_text(line.ljust(width), spot, labels) for line, spot in rows]


def _text(line: str, spot: Spot, labels: int) -> str:
    if not spot.label:
        return f"{line}    {spot.error}".rstrip()
    return f"{line}  {spot.label:<{labels}}  {spot.state}  {spot.error}".rstrip()


def failures(spots: Iterable[Spot]) -> list[str]:
    """Returns the steps that failed, the first of many."""
    failed = [spot for spot in spots if state_word(spot.state) == "failed"]
    shown = [f"{spot.label}  {spot.state}  {spot.error}".rstrip() for spot in failed[:_FAILED]]
    return [*shown, f"and {len(failed) - _FAILED:,} more"] if len(failed) > _FAILED else shown


def tally(states: Iterable[str]) -> str:
    """Returns how often each state occurs: ``3 completed, 1 failed``."""
    return ", ".join(f"{count:,} {state}" for state, count in sorted(Counter(states).items()))


@dataclass(slots=True)
class _Graph:
    spots: dict[str, Spot]
    parents: dict[str, list[str]]
    children: dict[str, list[str]]

    @classmethod
    def of(cls, spots: Mapping[str, Spot], edges: Iterable[tuple[str, str]]) -> _Graph:
        graph = cls(dict(spots), {name: [] for name in spots}, {name: [] for name in spots})
        for parent, child in edges:
            graph.parents[child].append(parent)
            graph.children[parent].append(child)
        return graph

    def gathered(self) -> _Graph:
        """Returns the same graph with equal steps as one."""
        groups: dict[tuple[str, frozenset[str], frozenset[str]], list[str]] = {}
        for name, spot in self.spots.items():
            key = (spot.kind, frozenset(self.parents[name]), frozenset(self.children[name]))
            groups.setdefault(key, []).append(name)
        lead = {name: name for name in self.spots}  # step -> the one whose row it shares
        spots = dict(self.spots)
        for members in groups.values():
            if len(members) >= _ALIKE:
                lead |= dict.fromkeys(members, members[0])
                first, states = self.spots[members[0]], [self.spots[name].state for name in members]
                only = states[0] if len(set(states)) == 1 else tally(states)
                below = failures(self.spots[name] for name in members)
                spots[members[0]] = Spot(f"{first.kind} x {len(members):,}", first.kind, only, "", tuple(below))
        in_order = {name: spot for name, spot in spots.items() if lead[name] == name}
        edges = {(lead[parent], lead[child]): None for child, all_of in self.parents.items() for parent in all_of}
        return _Graph.of(in_order, edges)


@dataclass(slots=True)
class _Lanes:
    """The lines that run down, by column: the step that each leads to, or None if the column is free."""

    ink: Ink
    lanes: list[str | None] = field(default_factory=list[str | None])

    def enter(self, name: str, first: int = 0) -> int:
        """Returns the column of a step: that of its line, or a free one from ``first`` on."""
        if name in self.lanes:
            return self.lanes.index(name)
        free = next((at for at in range(first, len(self.lanes)) if self.lanes[at] is None), len(self.lanes))
        self.lanes[free:] = [name, *self.lanes[free + 1 :]]
        return free

    def row(self, column: int, mark: str) -> str:
        down = self.ink.line(up=True, down=True, left=False, right=False)
        return " ".join(mark if at == column else down if lane else " " for at, lane in enumerate(self.lanes))

    def leave(self, column: int, children: Sequence[str]) -> list[str]:
        """Starts lines from a step to its children; returns the row that draws them, unless all go straight down."""
        above = {at for at, lane in enumerate(self.lanes) if lane is not None}
        self.lanes[column] = None
        ends = {self.enter(name, column) for name in children}
        line = self._across(column, ends, above) if ends - {column} else None
        while self.lanes and self.lanes[-1] is None:
            self.lanes.pop()
        return [] if line is None else [line]

    def _across(self, column: int, ends: set[int], above: set[int]) -> str:
        joined = ends | {column}
        low, high = min(joined), max(joined)
        drawn: list[str] = []
        for at in range(len(self.lanes)):
            up, down = at in above, self.lanes[at] is not None
            is_joined, is_between = at in joined, low < at < high
            passes = up and down and not is_joined  # it crosses the row without joining it
            left = at > low if is_joined else is_between and not passes
            right = at < high if is_joined else is_between and not passes
            drawn.append(self.ink.line(up=up, down=down, left=left, right=right))
            drawn.append(self.ink.line(up=False, down=False, left=True, right=True) if low <= at < high else " ")
        return "".join(drawn).rstrip()
