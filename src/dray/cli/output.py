"""Data on stdout: JSON if asked for, words and tables on a terminal, tab-separated values in a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from dray.cli.cells import Shape, cell, jsonable
from dray.cli.options import wants_json
from dray.sanitize import escape_control

if TYPE_CHECKING:
    from dray.cli.terminal import Region

STATES = ("waiting", "scheduled", "queued", "running", "completed", "failed", "cancelled")
COLOURS = {
    "completed": "green",
    "failed": "red",
    "dead": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "active": "green",
    "paused": "yellow",
}
BESIDE_STATES = 3  # the rank of columns beside those of the states
_RANKS = {"queued": 1, "running": 2, "failed": 4, "waiting": 5, "scheduled": 6, "cancelled": 7, "completed": 8}
_ALWAYS = {"queued", "running"}
TRIES = "{attempt}/{max_attempts}"  # the format of a column


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table on a terminal. Without ``show`` the value is written as in a pipe."""

    title: str
    key: str
    show: Callable[[Any, Shape], str] | str | None = None  # a str: a format of the row's values by name
    is_number: bool = False
    rank: int = 0  # on a narrow terminal the columns of the highest rank are left out first
    is_elastic: bool = False  # may be cut short

    def word(self, shape: Shape) -> str:
        if self.show is None:
            return cell(shape[self.key])
        if isinstance(self.show, str):
            return "" if shape[self.key] is None else escape_control(self.show.format_map(shape))
        return escape_control(self.show(shape[self.key], shape))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def is_ascii_only(characters: str = "\u2501", stream: TextIO | None = None) -> bool:
    """Whether these characters must be avoided, by the locale or by the encoding of the stream."""
    if (os.environ.get("LC_ALL") or os.environ.get("LANG")) in {"C", "POSIX"}:
        return True
    try:
        characters.encode((stream or sys.stdout).encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def showable(text: str, stream: TextIO | None = None) -> str:
    """Returns a text in characters that the terminal has."""
    if text.isascii() or not is_ascii_only(stream=stream):
        return text
    return text.encode("ascii", "backslashreplace").decode()


def is_dumb() -> bool:
    """Whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "") in {"", "dumb", "unknown"}


def has_colours() -> bool:
    return not os.environ.get("NO_COLOR") and not is_dumb()


put = click.echo


def _terminal() -> Any:
    """Returns the module with what rich draws."""
    from dray.cli import terminal  # noqa: PLC0415 - rich, for terminals only

    return terminal


def put_json(value: Any) -> None:
    put(json.dumps(value, default=jsonable, indent=2) if is_terminal() else json_line(value))


def put_line(shape: Callable[[], Any], text: str) -> None:
    """Writes what ``shape`` returns as JSON if asked for, else a line, on a terminal and in a pipe alike."""
    if wants_json():
        put_json(shape())
    else:
        put(text)


def put_either(
    shape: Any, words: Callable[[], Iterable[str]], values: Callable[[], Iterable[str]] | None = None
) -> None:
    """Writes ``shape`` as JSON if asked for, ``words`` on a terminal, and in a pipe ``values`` or the flat shape."""
    if wants_json():
        put_json(shape)
        return
    lines = words() if is_terminal() else flat(shape) if values is None else values()
    for each in lines:
        sys.stdout.write(f"{each}\n")  # put() would flush every line


def put_list(shapes: Sequence[Shape], columns: Sequence[Column], nothing: str = "", keys: str = "") -> None:
    """Writes a list: columns on a terminal (``nothing`` if it is empty), the values of ``keys`` or all in a pipe."""
    put_either(
        shapes,
        lambda: table(shapes, columns) if shapes else (),
        lambda: (line(*(shape[key] for key in keys.split() or shape)) for shape in shapes),
    )
    if not shapes and is_terminal() and not wants_json():
        click.echo(nothing, err=True)


def one_or_all(shapes: Sequence[Any]) -> Any:
    """Returns the JSON of a command that takes several ids: an object for one, an array for several."""
    return shapes[0] if len(shapes) == 1 else shapes


def overwritten(given: TextIO | None = None) -> Region | None:
    """Returns a region of the terminal to overwrite again and again; None for JSON, a pipe or a dumb terminal."""
    stream = given or sys.stdout
    if not stream.isatty() or is_dumb() or (stream is sys.stdout and wants_json()):
        return None
    return _terminal().Region(stream)


def json_line(value: Any) -> str:
    """Returns JSON on one line, on a terminal too."""
    return json.dumps(value, default=jsonable)


def fields(shape: Shape, columns: Sequence[Column]) -> list[str]:
    """Returns one thing for people, a line for each value that is not empty."""
    width = max(len(column.title) for column in columns)
    there = [column for column in columns if shape[column.key] not in (None, "", (), [], {})]
    return [f"{column.title:<{width}}  {word}" for column in there if (word := column.word(shape))]


def line(*values: Any) -> str:
    """Returns values for a pipe, separated by tabs."""
    return "\t".join(map(cell, values))


def flat(value: Any, path: str = "") -> list[str]:
    """Returns all values of a shape for a pipe, a line each: ``attempts.0.outcome<TAB>error``."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = cast("Mapping[str, Any]", value).items()
    elif isinstance(value, list):
        items = enumerate(cast("list[Any]", value))
    else:
        return [line(path, value)]
    return [found for name, each in items for found in flat(each, f"{path}.{name}" if path else str(name))]


def table(shapes: Sequence[Shape], columns: Sequence[Column]) -> list[str]:
    return _terminal().table_lines({column: [column.word(shape) for shape in shapes] for column in columns})


def state_columns(shapes: Sequence[Shape]) -> tuple[Column, ...]:
    """Returns a column for each state with jobs in it. A narrow terminal keeps the unfinished ones longest."""
    there = {state for state in STATES if state in _ALWAYS or any(shape[state] for shape in shapes)}
    return tuple(Column(state, state, is_number=True, rank=_RANKS[state]) for state in STATES if state in there)


def bar(share: float, width: int, stream: TextIO | None = None) -> str:
    """Returns a bar of this width, full up to ``share`` of it."""
    full, empty = ("#", "-") if is_ascii_only(stream=stream) else ("\u2501", "\u2500")
    done = round(max(0.0, min(1.0, share)) * width)
    return full * done + empty * (width - done)


@contextmanager
def progress(what: str, *, percent: bool = False) -> Generator[Callable[..., None]]:
    """Shows a bar on stderr until the block ends, if that is a terminal.

    The block reports how much is done, the total or None, and other words than ``what`` if it has any.
    """
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    with _terminal().progress_bar(
        "{task.description}", "{task.percentage:.0f} %" if percent else "", stderr=True
    ) as bars:
        bar = bars.add_task(what, total=None)

        def report(done: int, total: int | None, words: str | None = None) -> None:
            text = words or (f"{what} {done:,}" if total is None else what)
            bars.update(bar, description=text, completed=done, total=total)

        yield report
