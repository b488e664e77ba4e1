"""The lists of `dray top`: their columns, and as much of their rows as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from dray.cli.live.ink import bar
from dray.cli.live.paint import Line, Span
from dray.cli.output import Column, Shape, fitted, short
from dray.cli.times import ago, span
from dray.ops.top import COUNTED

if TYPE_CHECKING:
    from dray.ops.top import Snapshot

_BAR = 10
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Panel:
    """One list."""

    name: str
    key: str  # what tells its rows apart
    columns: tuple[Column, ...]
    styles: Mapping[str, Callable[[Shape], str]]  # of the cells of a column, by its key


def count(number: int) -> str:
    """A number of jobs, which are not counted for ever."""
    return f"{number:,}+" if number >= COUNTED else f"{number:,}"


def _count(value: Any, _: Shape) -> str:
    return count(value)


def _span(value: Any, _: Shape) -> str:
    return "" if value is None else span(value)


def _paused(value: Any, shape: Shape) -> str:
    return "" if value is None else f"paused {ago(value, shape['now'])}"


def _for(value: Any, shape: Shape) -> str:
    return "" if value is None else span(max(0.0, (shape["now"] - value).total_seconds()))


def _ago(value: Any, shape: Shape) -> str:
    return ago(value, shape["now"])


def _first_line(value: Any, shape: Shape) -> str:
    lines = str(value or shape["reason"] or "").splitlines()
    return lines[0] if lines else ""


def _of(value: Any, shape: Shape) -> str:
    return f"{value}/{shape['max_attempts']}"


def _hands(value: Any, shape: Shape) -> str:
    return f"{value}/{shape['concurrency']}"


def _queues(value: Any, _: Shape) -> str:
    return ",".join(value) or "all"


def _short(value: Any, _: Shape) -> str:
    return "" if value is None else short(value)


def panels(*, ascii_only: bool) -> tuple[Panel, ...]:
    """All lists, in the order they are shown."""

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
                Column("oldest", "oldest", _span, is_number=True, rank=2),
                Column("", "paused_at", _paused, is_elastic=True, rank=1),
            ),
            {"paused_at": lambda _: "yellow"},
        ),
        Panel(
            "running",
            "id",
            (
                Column("id", "id", _short),
                Column("task", "task", is_elastic=True),
                Column("for", "started_at", _for, is_number=True, rank=1),
                Column("progress", "progress", progress, rank=2),
                Column("queue", "queue", is_elastic=True, rank=4),
                Column("attempt", "attempt", _of, rank=6),
                Column("worker", "worker", _short, rank=5),
                Column("", "progress_message", is_elastic=True, rank=3),
            ),
            {"progress": lambda _: "cyan"},
        ),
        Panel(
            "failures",
            "id",
            (
                Column("id", "id", _short),
                Column("task", "task", is_elastic=True),
                Column("when", "finished_at", _ago, rank=1),
                Column("queue", "queue", is_elastic=True, rank=4),
                Column("attempt", "attempt", _of, rank=5),
                Column("error", "error", _first_line, is_elastic=True, rank=2),
            ),
            {"error": lambda _: "red"},
        ),
        Panel(
            "workers",
            "id",
            (
                Column("id", "id", _short),
                Column("name", "name", is_elastic=True),
                Column("running", "running", _hands, is_number=True, rank=1),
                Column("state", "state", rank=2),
                Column("queues", "queues", _queues, is_elastic=True, rank=4),
                Column("started", "started_at", _ago, rank=5),
                Column("seen", "last_seen_at", _ago, rank=3),
            ),
            {"state": lambda shape: "yellow" if shape["state"] == "draining" else "green"},
        ),
    )


def rows(snapshot: Snapshot, panel: Panel, wanted: str) -> list[dict[str, Any]]:
    """The rows of a panel that hold a text anywhere."""
    found = [{**_shape(each), "now": snapshot.at} for each in getattr(snapshot, panel.name)]
    return [shape for shape in found if not wanted or _holds(shape, wanted)]


def _shape(each: Any) -> dict[str, Any]:
    return {name: getattr(each, name) for name in each.__slots__}


def _holds(shape: Shape, wanted: str) -> bool:
    texts = (value for value in shape.values() if isinstance(value, str))
    return any(wanted.lower() in text.lower() for text in texts)


@dataclass(frozen=True, slots=True)
class Look:
    """How a panel is to be shown."""

    width: int
    height: int  # its title included
    selected: int | None  # a row's number; None: the panel is not the one in hand
    top: int = 0  # the first row that is shown


def lines(panel: Panel, shapes: Sequence[Shape], look: Look, note: str = "") -> list[Line]:
    """The title with the names of the columns, and the rows."""
    words = {column: [column.word(shape) for shape in shapes] for column in panel.columns}
    widths = fitted(words, look.width - 1)
    style = "bold reverse" if look.selected is not None else "bold"
    title = f"{panel.name} {len(shapes)}{note}"
    head = f" {_cells(widths, {column: column.title for column in widths})}"
    # The names of the columns say what it is a list of, where there is no room for more.
    gap = look.width - cell_len(head) - cell_len(title) - 1
    first = [Span(f"{head}{' ' * gap}{title} " if gap > 0 else head, style)]
    shown: list[Line] = [first]
    for number in range(look.top, min(len(shapes), look.top + look.height - 1)):
        is_selected = number == look.selected
        spans = [Span(">" if is_selected else " ", "reverse" if is_selected else "")]
        for at, (column, width) in enumerate(widths.items()):
            cell = _cell(column, words[column][number], width)
            paint = panel.styles.get(column.key)
            tone = "reverse" if is_selected else paint(shapes[number]) if paint else ""
            spans.append(Span((_GAP if at else "") + cell, tone))
        shown.append(spans)
    return shown


def _cells(widths: Mapping[Column, int], words: Mapping[Column, str]) -> str:
    return _GAP.join(_cell(column, words[column], width) for column, width in widths.items())


def _cell(column: Column, word: str, width: int) -> str:
    size = cell_len(word)
    if size > width:
        return f"{set_cell_size(word, max(0, width - 1))}~" if width else ""
    return " " * (width - size) + word if column.is_number else word + " " * (width - size)
