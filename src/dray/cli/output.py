"""Data on stdout: JSON where asked for, a table on a terminal, tab-separated values for the next program.

Whatever a name, an argument or an error holds, it comes out as one line that cannot steer a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

import click

from dray.cli.shared import wants_json
from dray.cli.times import ago, iso
from dray.text import escape_control

Shape = Mapping[str, Any]


class Column(NamedTuple):
    """One field of a list. ``show`` words it for people; without it they see what programs see."""

    title: str
    key: str
    show: Callable[[Any, Shape], str] | None = None
    is_number: bool = False


def is_terminal() -> bool:
    return sys.stdout.isatty()


def put(text: str) -> None:
    """Writes lines to stdout."""
    click.echo(text)


def put_json(value: Any) -> None:
    put(json.dumps(value, default=_json, indent=2 if is_terminal() else None))


def put_list(columns: Sequence[Column], shapes: Sequence[Shape], nothing: str) -> None:
    """A list of things, one a row. On a terminal ``nothing`` says that it is empty."""
    if wants_json():
        put_json(shapes)
    elif is_terminal():
        if shapes:
            _put_table(columns, shapes)
        else:
            click.echo(nothing, err=True)
    elif shapes:
        put("\n".join("\t".join(cell(shape[column.key]) for column in columns) for shape in shapes))


def put_fields(shape: Shape, shown: Sequence[Column]) -> None:
    """One thing, one field a row; what is not there is left out on a terminal."""
    if wants_json():
        put_json(shape)
    elif is_terminal():
        fields = [(column, shape[column.key]) for column in shown]
        width = max(len(column.title) for column in shown)
        lines = [
            f"{column.title:<{width}}  {column.show(value, shape) if column.show else cell(value)}"
            for column, value in fields
            if value not in (None, "", (), [], {})
        ]
        put("\n".join(lines))
    else:
        put("\n".join(f"{name}\t{cell(value)}" for name, value in shape.items()))


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
        return ",".join(cell(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def short(job_id: Any, _: Shape | None = None) -> str:
    """An id as people see it."""
    return str(job_id)[-8:]


def relative(when: Any, _: Shape) -> str:
    return ago(when, datetime.now(UTC))


def _put_table(columns: Sequence[Column], shapes: Sequence[Shape]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - for terminals alone
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title, justify="right" if column.is_number else "left", no_wrap=True, overflow="ellipsis"
        )
    for shape in shapes:
        words = [
            column.show(shape[column.key], shape) if column.show else cell(shape[column.key]) for column in columns
        ]
        # Text, because a plain string may hold what rich takes for markup.
        table.add_row(*(Text(escape_control(word), style=_style(word)) for word in words))
    Console(highlight=False).print(table)


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
