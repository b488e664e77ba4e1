"""Data on stdout: JSON where asked for, a table on a terminal, tab-separated values for the next program.

Whatever a name, an argument or an error holds, it comes out as one line that cannot steer a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple, cast

import click

from dray.cli.shared import wants_json
from dray.cli.times import ago, iso
from dray.sanitize import escape_control

Shape = Mapping[str, Any]

_GAP = 2  # between two columns
_SHORTEST = 8  # that an elastic column can be


class Column(NamedTuple):
    """One column of a table on a terminal. ``show`` words the value; without it people see what programs see."""

    title: str
    key: str
    show: Callable[[Any, Shape], str] | None = None
    is_number: bool = False
    rank: int = 0  # where the terminal is narrow, those of the highest rank go first
    is_elastic: bool = False  # it may be cut short

    def word(self, shape: Shape) -> str:
        value = shape[self.key]
        return cell(value) if self.show is None else escape_control(self.show(value, shape))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def put(text: str) -> None:
    """Writes lines to stdout."""
    click.echo(text)


def put_json(value: Any) -> None:
    put(json.dumps(value, default=_json, indent=2) if is_terminal() else json_line(value))


def json_line(value: Any) -> str:
    """JSON on one line, on a terminal too."""
    return json.dumps(value, default=_json)


def put_list(shapes: Sequence[Shape], columns: Sequence[Column], keys: Sequence[str], nothing: str) -> None:
    """A list: columns for people (``nothing`` tells them that it is empty), keys for the next program."""
    if wants_json():
        put_json(shapes)
    elif not is_terminal():
        for shape in shapes:
            put_line(*(shape[key] for key in keys))
    elif shapes:
        put_table(shapes, columns)
    else:
        click.echo(nothing, err=True)


def put_fields(shape: Shape, columns: Sequence[Column]) -> None:
    """One thing, a line each; people are not shown what is empty."""
    for line in fields(shape, columns):
        put(line)


def fields(shape: Shape, columns: Sequence[Column]) -> list[str]:
    """The lines of `put_fields`."""
    width = max(len(column.title) for column in columns)
    there = [column for column in columns if shape[column.key] not in (None, "", (), [], {})]
    return [f"{column.title:<{width}}  {word}" for column in there if (word := column.word(shape))]


def put_line(*values: Any) -> None:
    """Values for the next program."""
    sys.stdout.write(line(*values) + "\n")


def line(*values: Any) -> str:
    """Values for the next program, separated by tabs."""
    return "\t".join(map(cell, values))


def put_flat(value: Any, path: str = "") -> None:
    """Everything in a shape for the next program, a line each: ``attempts.0.outcome<TAB>error``."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = cast("Mapping[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        put_line(path, value)
        return
    for name, each in items:
        put_flat(each, f"{path}.{name}" if path else str(name))


def cell(value: Any) -> str:
    """A value in one field of a line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, bool | Mapping):
        return escape_control(json.dumps(value, default=_json, ensure_ascii=False))
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Iterable):
        return ",".join(cell(each) for each in cast("Iterable[Any]", value))
    return str(value)


def short(job_id: Any, _: Shape | None = None) -> str:
    """An id as people see it."""
    return str(job_id)[-8:]


def relative(when: Any, _: Shape) -> str:
    return ago(when, datetime.now(UTC))


def put_table(shapes: Sequence[Shape], columns: Sequence[Column]) -> None:
    """A table on a terminal."""
    sys.stdout.write(table(shapes, columns))


def table(shapes: Sequence[Shape], columns: Sequence[Column]) -> str:
    """A table as it is written to a terminal, its last line ended."""
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from dray.cli.live.ink import is_ascii_only  # noqa: PLC0415

    console = Console(highlight=False)
    overflow = "crop" if is_ascii_only("…") else "ellipsis"
    words = {column: [column.word(shape) for shape in shapes] for column in columns}
    widths = fitted(words, console.width)
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in widths.items():
        justify = "right" if column.is_number else "left"
        made.add_column(column.title, justify=justify, width=width, no_wrap=True, overflow=overflow)
    for number in range(len(shapes)):
        # Text, because a plain string may hold what rich takes for markup.
        made.add_row(*(Text(words[column][number], style=_style(words[column][number])) for column in widths))
    with console.capture() as captured:
        console.print(made)
    return captured.get()


def fitted(words: Mapping[Column, Sequence[str]], room: int) -> dict[Column, int]:
    """The columns that fit beside each other and their widths: the least important go, then elastic ones shrink."""
    from rich.cells import cell_len  # noqa: PLC0415

    widths = {column: max(map(cell_len, (column.title, *each))) for column, each in words.items()}
    least = {column: min(width, _SHORTEST) if column.is_elastic else width for column, width in widths.items()}
    while sum(least.values()) + _GAP * (len(least) - 1) > room and any(column.rank for column in least):
        del least[max(least, key=lambda column: column.rank)]
    spare = room - sum(least.values()) - _GAP * (len(least) - 1)
    for column, width in least.items():
        extra = max(0, min(spare, widths[column] - width))
        least[column] += extra
        spare -= extra
    return least


_STYLES = {
    "completed": "green",
    "failed": "red",
    "dead": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "active": "green",
    "paused": "yellow",
}


def _style(word: str) -> str:
    return _STYLES.get(word.partition(" ")[0].partition("(")[0], "")


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"{type(value).__name__} has no shape in JSON")
