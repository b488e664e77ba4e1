"""The lists of `dray top`: their columns, and as many of their rows as fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from dray.cli.live.paint import GAP, Line, Span, fitted
from dray.cli.output import Column, Shape, ago, bar, queues, seconds, short, tries
from dray.ops.top import COUNTED, Snapshot
from dray.wording import span

_BAR = 10


@dataclass(frozen=True, slots=True)
class Panel:
    """One list."""

    name: str
    key: str  # the unique value of a row
    columns: tuple[Column, ...]
    styles: Mapping[str, Callable[[Shape], str]]  # of a column's cells, by its key


def count(number: int) -> str:
    """Returns a number of jobs; counting stops at a limit."""
    return f"{number:,}+" if number >= COUNTED else f"{number:,}"


def _count(value: Any, _: Shape) -> str:
    return count(value)


def _paused(value: Any, shape: Shape) -> str:
    return "" if value is None else f"paused {ago(value, shape['now'])}"


def _for(value: Any, shape: Shape) -> str:
    return "" if value is None else span(max(0.0, (shape["now"] - value).total_seconds()))


def _ago(value: Any, shape: Shape) -> str:
    return ago(value, shape["now"])


def _first_line(value: Any, shape: Shape) -> str:
    lines = str(value or shape["reason"] or "").splitlines()
    return lines[0] if lines else ""


def _slots(value: Any, shape: Shape) -> str:
    return f"{value}/{shape['concurrency']}"


def panels(*, ascii_only: bool) -> tuple[Panel, ...]:
    """Returns all lists, from top to bottom."""

    def progress(value: Any, _: Shape) -> str:
        return "" if value is None else f"{bar(value / 100, _BAR, ascii_only=ascii_only)} {value:3.0f}%"

    return (
        Panel(
            "queues",
            "name",
            (
                Column("queue", "name", is_elastic=True),
                Column("queued", "queued", _count, is_number=True),
                Column("running", "running", _count, is_number=True, rank=1),
                Column("oldest", "oldest", seconds, is_number=True, rank=2),
                Column("", "paused_at", _paused, is_elastic=True, rank=1),
            ),
            {"paused_at": lambda _: "yellow"},
        ),
        Panel(
            "running",
            "id",
            (
                Column("id", "id", short),
                Column("task", "task", is_elastic=True),
                Column("for", "started_at", _for, is_number=True, rank=1),
                Column("progress", "progress", progress, rank=2),
                Column("queue", "queue", is_elastic=True, rank=4),
                Column("attempt", "attempt", tries, rank=6),
                Column("worker", "worker", short, rank=5),
                Column("", "progress_message", is_elastic=True, rank=3),
            ),
            {"progress": lambda _: "cyan"},
        ),
        Panel(
            "failures",
            "id",
            (
                Column("id", "id", short),
                Column("task", "task", is_elastic=True),
                Column("when", "finished_at", _ago, rank=1),
                Column("queue", "queue", is_elastic=True, rank=4),
                Column("attempt", "attempt", tries, rank=5),
                Column("error", "error", _first_line, is_elastic=True, rank=2),
            ),
            {"error": lambda _: "red"},
        ),
        Panel(
            "workers",
            "id",
            (
                Column("id", "id", short),
                Column("name", "name", is_elastic=True),
                Column("running", "running", _slots, is_number=True, rank=1),
                Column("state", "state", rank=2),
                Column("queues", "queues", queues, is_elastic=True, rank=4),
                Column("started", "started_at", _ago, rank=5),
                Column("seen", "last_seen_at", _ago, rank=3),
            ),
            {"state": lambda shape: "yellow" if shape["state"] == "draining" else "green"},
        ),
    )


def rows(snapshot: Snapshot, panel: Panel, wanted: str) -> list[dict[str, Any]]:
    """Returns the rows of a panel that contain a text."""
    found = [{**_shape(each), "now": snapshot.at} for each in getattr(snapshot, panel.name)]
    return [shape for shape in found if not wanted or _holds(shape, wanted)]


def _shape(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__slots__}


def _holds(shape: Shape, wanted: str) -> bool:
    texts = (value for value in shape.values() if isinstance(value, str))
    return any(wanted.lower() in text.lower() for text in texts)


@dataclass(frozen=True, slots=True)
class Viewport:
    """The part of a panel that is visible."""

    width: int
    height: int  # with the title
    selected: int | None  # the number of the selected row; None: the panel has no focus
    top: int = 0  # the first visible row


def lines(panel: Panel, shapes: Sequence[Shape], port: Viewport, note: str = "") -> list[Line]:
    """Returns the title with the names of the columns, and the visible rows."""
    words = {column: [column.word(shape) for shape in shapes] for column in panel.columns}
    widths = fitted(words, port.width - 1)
    style = "bold reverse" if port.selected is not None else "bold"
    title = f"{panel.name} {len(shapes)}{note}"
    head = f" {_cells(widths, {column: column.title for column in widths})}"
    # Without room for the title the names of the columns say what the list is.
    gap = port.width - cell_len(head) - cell_len(title) - 1
    first = [Span(f"{head}{' ' * gap}{title} " if gap > 0 else head, style)]
    shown: list[Line] = [first]
    for number in range(port.top, min(len(shapes), port.top + port.height - 1)):
        is_selected = number == port.selected
        spans = [Span(">" if is_selected else " ", "reverse" if is_selected else "")]
        for at, (column, width) in enumerate(widths.items()):
            cell = _cell(column, words[column][number], width)
            paint = panel.styles.get(column.key)
            tone = "reverse" if is_selected else paint(shapes[number]) if paint else ""
            spans.append(Span((GAP if at else "") + cell, tone))
        shown.append(spans)
    return shown


def _cells(widths: Mapping[Column, int], words: Mapping[Column, str]) -> str:
    return GAP.join(_cell(column, words[column], width) for column, width in widths.items())


def _cell(column: Column, word: str, width: int) -> str:
    size = cell_len(word)
    if size > width:
        return f"{set_cell_size(word, max(0, width - 1))}~" if width else ""
    return " " * (width - size) + word if column.is_number else word + " " * (width - size)
