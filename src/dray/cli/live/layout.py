"""The layout of `dray top` on a screen of any size.

A header with the numbers, the lists below each other, a line about the keys. If not all lists fit, only the focused
one; on a tiny screen the most important numbers and that list.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.cells import cell_len, set_cell_size

from dray.app_interface import core_of
from dray.cli.cells import Shape
from dray.cli.live.view import PANELS, STEP, Document, View, count_of
from dray.cli.output import Column
from dray.cli.terminal import GAP, Line, Span, fitted, fold, wrap
from dray.ops.top import Snapshot
from dray.sanitize import escape_control
from dray.wording import rate

_ROOM_FOR_NUMBERS = 20  # lines of a screen that shows all numbers
_ROOM_FOR_ALL = 12  # and all lists
_ROOM_FOR_HINTS = 8
_HINTS = ("q quit", "? help", "tab list", "enter show", "l logs", "/ filter", "p pause", "r retry", "c cancel")
_HARMLESS = 6  # of these change nothing
_FIRST = ("queued", "running", "failed")
_STATES = (*_FIRST, "scheduled", "waiting", "completed", "cancelled")
_TONES = {"failed": "red", "running": "cyan", "queued": "bold"}
_CELL_TONES = {"paused_at": "yellow", "progress": "cyan", "error": "red", "state": "green"}  # by the column's key


def screen(view: View, width: int, height: int, problem: str | None = None, ahead: float = 0.0) -> list[Line]:
    """Returns all lines. ``problem``: why the numbers are old; ``ahead``: seconds since the last look."""
    header = _header(view, width, height, problem, ahead)
    footer = _footer(view, width, height)
    room = max(0, height - len(header) - len(footer))
    if view.reading is not None:
        body = _text(view, view.reading, width, room)
    else:
        rows = {panel: view.rows(panel) for panel in PANELS}
        for row in (row for shapes in rows.values() for row in shapes):
            row["now"] += timedelta(seconds=ahead)
        heights = _heights({panel: len(shapes) for panel, shapes in rows.items()}, room, view.panel)
        body = [line for panel, height in heights.items() for line in _list(view, panel, rows[panel], width, height)]
    empty: list[Line] = [[Span("")]] * (room - len(body))
    return [*header, *body[:room], *empty, *footer][:height]


def _header(view: View, width: int, height: int, problem: str | None, ahead: float) -> list[Line]:
    snapshot = view.contents.snapshot
    clock = f"{(snapshot.at + timedelta(seconds=ahead)).astimezone():%H:%M:%S} "
    what = [Span("dray top ", "bold"), Span(escape_control(core_of(view.app).settings.place), "dim")]
    first = [Span(clock), *(what if problem is None else [Span(f"! {escape_control(problem)}", "bold red")])]
    if height < _ROOM_FOR_HINTS:
        return [first] if problem is not None else fold(_numbers(snapshot)[: len(_FIRST)], width, 1)
    most = 4 if height >= _ROOM_FOR_NUMBERS else 2 if height >= _ROOM_FOR_ALL else 1
    return [first, *fold(_numbers(snapshot), width, most)]


def _numbers(snapshot: Snapshot) -> list[Span]:
    """Returns counts and rates, the most important first."""
    counts = snapshot.counts
    states = [
        Span(f"{state} {count_of(counts.get(state, 0))}", _TONES.get(state, "") if counts.get(state) else "dim")
        for state in _STATES
    ]
    always = {"enqueued", "completed"}
    rates = ", ".join(f"{name} {rate(often)}" for name, often in snapshot.rates.items() if often or name in always)
    return [*states[: len(_FIRST)], Span(f"now: {rates}"), *states[len(_FIRST) :]]


def _footer(view: View, width: int, height: int) -> list[Line]:
    if view.question is not None:
        return [[Span(view.question[0], "bold yellow")]]
    if view.is_typing:
        return [[Span(f"/{escape_control(view.filter)}_", "bold")]]
    if view.said:
        return [[Span(escape_control(view.said), "bold")]]
    if height < _ROOM_FOR_HINTS:
        return []
    hints = _HINTS[: _HARMLESS if view.read_only else None] if view.reading is None else ("q back", "up, down scroll")
    return fold((Span(hint, "dim") for hint in hints), width, 1)


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


def _list(view: View, panel: str, shapes: list[dict[str, Any]], width: int, height: int) -> list[Line]:
    """Returns the names of the columns with the title, and the visible rows."""
    selected = view.number if panel == view.panel else None
    visible = max(1, height - 1)
    top = view.tops.get(panel, 0)
    if selected is not None:
        top = min(max(top, selected - visible + 1), selected)
        view.page = visible
    view.tops[panel] = top = max(0, min(top, len(shapes) - visible))
    words = {column: [column.word(shape) for shape in shapes] for column in PANELS[panel]}
    if STEP in words and not any(words[STEP]):
        del words[STEP]  # no job here belongs to a workflow
    widths = fitted(words, width - 1)
    note = f" with {escape_control(view.filter)}" if view.filter else ""
    title = f"{panel} {len(shapes)}{note}"
    head = " " + GAP.join(_cell(column, column.title, size) for column, size in widths.items())
    # Without room for the title the names of the columns say what the list is.
    gap = width - cell_len(head) - cell_len(title) - 1
    head += f"{' ' * gap}{title} " if gap > 0 else ""
    drawn: list[Line] = [[Span(head, "bold" if selected is None else "bold reverse")]]
    for number in range(top, min(len(shapes), top + height - 1)):
        cells = {column: _cell(column, words[column][number], size) for column, size in widths.items()}
        drawn.append(_row(shapes[number], cells, is_selected=number == selected))
    return [*drawn, *[[Span("")]] * (height - len(drawn))]


def _row(shape: Shape, cells: Mapping[Column, str], *, is_selected: bool) -> Line:
    if is_selected:
        return [Span(">" + GAP.join(cells.values()), "reverse")]
    tones = _CELL_TONES | ({"state": "yellow"} if shape.get("state") == "draining" else {})
    return [Span(" "), *(Span(cell + GAP, tones.get(column.key, "")) for column, cell in cells.items())]


def _text(view: View, reading: Document, width: int, room: int) -> list[Line]:
    found = view.contents.text if view.contents.reading is reading else None
    title: Line = [Span(f" {reading.title} ", "bold reverse")]
    view.page = max(1, room - 1)
    if found is None:
        return [title, [Span("...", "dim")]]
    wrapped = [piece for line in found for piece in wrap(line, width)]
    view.scroll = max(0, min(view.scroll, len(wrapped) - view.page))
    shown = wrapped[view.scroll : view.scroll + view.page]
    return [title, *([Span(line)] for line in shown)]


def _cell(column: Column, word: str, width: int) -> str:
    size = cell_len(word)
    if size > width:
        return f"{set_cell_size(word, max(0, width - 1))}~" if width else ""
    return " " * (width - size) + word if column.is_number else word + " " * (width - size)
