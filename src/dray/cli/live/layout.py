"""The layout of `dray top` on a screen of any size.

A header with the numbers, the lists below each other, a line about the keys. If not all lists fit, only the focused
one; on a tiny screen the most important numbers and that list.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dray.cli.live.paint import Line, Span, fold, wrap
from dray.cli.live.panels import Panel, Viewport, count, lines
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.cli.live.view import Document, View
    from dray.ops.top import Snapshot

_ROOM_FOR_NUMBERS = 20  # lines of a screen that shows all numbers
_ROOM_FOR_ALL = 12  # and all lists
_ROOM_FOR_HINTS = 8
_HINTS = ("q quit", "? help", "tab list", "enter show", "l logs", "/ filter", "p pause", "r retry", "c cancel")
_HARMLESS = 6  # of these change nothing
_READING = ("q back", "up, down scroll")
_FIRST = ("queued", "running", "failed")
_STATES = (*_FIRST, "scheduled", "waiting", "completed", "cancelled")
_TONES = {"failed": "red", "running": "cyan", "queued": "bold"}


def screen(view: View, width: int, height: int, problem: str | None = None, ahead: float = 0.0) -> list[Line]:
    """Returns all lines. ``problem``: why the numbers are old; ``ahead``: seconds since the last look."""
    header = _header(view, width, height, problem, ahead)
    footer = _footer(view, width, height)
    room = max(0, height - len(header) - len(footer))
    body = _lists(view, width, room, ahead) if view.reading is None else _text(view, view.reading, width, room)
    empty: list[Line] = [[Span("")]] * (room - len(body))
    return [*header, *body[:room], *empty, *footer][:height]


def _header(view: View, width: int, height: int, problem: str | None, ahead: float) -> list[Line]:
    snapshot = None if view.contents is None else view.contents.snapshot
    clock = "" if snapshot is None else f"{(snapshot.at + timedelta(seconds=ahead)).astimezone():%H:%M:%S} "
    what = [Span("dray top ", "bold"), Span(escape_control(view.place), "dim")]
    first = [Span(clock), *(what if problem is None else [Span(f"! {escape_control(problem)}", "bold red")])]
    if snapshot is None:
        return [first]
    if height < _ROOM_FOR_HINTS:
        return [first] if problem is not None else fold(_numbers(snapshot)[: len(_FIRST)], width, 1)
    most = 4 if height >= _ROOM_FOR_NUMBERS else 2 if height >= _ROOM_FOR_ALL else 1
    return [first, *fold(_numbers(snapshot), width, most)]


def _numbers(snapshot: Snapshot) -> list[Span]:
    """Returns counts and rates, the most important first."""
    counts = snapshot.counts
    states = [
        Span(f"{state} {count(counts.get(state, 0))}", _TONES.get(state, "") if counts.get(state) else "dim")
        for state in _STATES
    ]
    always = {"enqueued", "completed"}
    rates = ", ".join(f"{rate:,.1f} {name}" for name, rate in snapshot.rates.items() if rate or name in always)
    return [*states[: len(_FIRST)], Span(f"a second: {rates}"), *states[len(_FIRST) :]]


def _footer(view: View, width: int, height: int) -> list[Line]:
    if view.question is not None:
        return [[Span(view.question[0], "bold yellow")]]
    if view.is_typing:
        return [[Span(f"/{escape_control(view.filter)}_", "bold")]]
    if view.said:
        return [[Span(escape_control(view.said), "bold")]]
    if height < _ROOM_FOR_HINTS:
        return []
    hints = _HINTS[: _HARMLESS if view.read_only else None] if view.reading is None else _READING
    return fold((Span(hint, "dim") for hint in hints), width, 1)


def _lists(view: View, width: int, room: int, ahead: float) -> list[Line]:
    found = {panel.name: view.rows(panel) for panel in view.panels}
    for shapes in found.values():
        for shape in shapes:
            shape["now"] += timedelta(seconds=ahead)
    heights = _heights({name: len(shapes) for name, shapes in found.items()}, room, view.panel.name)
    drawn: list[Line] = []
    for panel in view.panels:
        if panel.name in heights:
            drawn += _list(view, panel, found[panel.name], width, heights[panel.name])
    return drawn


def _heights(counts: dict[str, int], room: int, focused: str) -> dict[str, int]:
    """Returns the lines of each list, with its title: an equal share, and what the others leave."""
    if room < 2 * len(counts):
        return {focused: room}
    heights = dict.fromkeys(counts, 2)
    left = room - sum(heights.values())
    while left and (short_of_room := [name for name, height in heights.items() if height <= counts[name]]):
        for name in short_of_room[:left]:
            heights[name] += 1
        left = room - sum(heights.values())
    return heights


def _list(view: View, panel: Panel, shapes: list[dict[str, Any]], width: int, height: int) -> list[Line]:
    selected = view.number if panel is view.panel else None
    visible = max(1, height - 1)
    top = view.tops.get(panel.name, 0)
    if selected is not None:
        top = min(max(top, selected - visible + 1), selected)
        view.page = visible
    view.tops[panel.name] = top = max(0, min(top, len(shapes) - visible))
    note = f" with {escape_control(view.filter)}" if view.filter else ""
    drawn = lines(panel, shapes, Viewport(width, height, selected, top), note)
    return [*drawn, *[[Span("")]] * (height - len(drawn))]


def _text(view: View, reading: Document, width: int, room: int) -> list[Line]:
    found = view.contents.text if view.contents is not None and view.contents.reading is reading else None
    title: Line = [Span(f" {reading.title} ", "bold reverse")]
    view.page = max(1, room - 1)
    if found is None:
        return [title, [Span("...", "dim")]]
    wrapped = [piece for line in found for piece in wrap(line, width)]
    view.scroll = max(0, min(view.scroll, len(wrapped) - view.page))
    shown = wrapped[view.scroll : view.scroll + view.page]
    return [title, *([Span(line)] for line in shown)]
