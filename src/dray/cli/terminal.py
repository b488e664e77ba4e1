"""What is drawn on a terminal, by rich: tables, bars, lines with styles, and a region that is written over and over.

Loaded only for a terminal, because rich takes 20 to 40 ms to import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from dray.cli.cells import state_word
from dray.cli.output import COLOURS, Column, has_colours, is_ascii_only, is_terminal, showable

GAP = "  "  # between two columns
_ANY_WIDTH = 1_000  # columns, where there is no terminal
_SHORTEST = 8  # columns of the terminal that an elastic column keeps
_INDENT = 4
_DOWN_CLEAR = "\r\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


def table_lines(words: Mapping[Column, Sequence[str]]) -> list[str]:
    """Returns a table of these words, a line for its head and for each row, no wider than a terminal."""
    console = Console(highlight=False, width=None if is_terminal() else _ANY_WIDTH)
    overflow = "crop" if is_ascii_only("…") else "ellipsis"
    widths = fitted(words, console.width)
    made = Table(box=None, pad_edge=False, padding=(0, len(GAP), 0, 0), header_style="bold")
    for column, width in widths.items():
        justify = "right" if column.is_number else "left"
        made.add_column(column.title, justify=justify, width=width, no_wrap=True, overflow=overflow)
    for row in zip(*(words[column] for column in widths), strict=True):
        # Text: a plain string may hold markup.
        made.add_row(*(Text(word, style=COLOURS.get(state_word(word), "")) for word in row))
    with console.capture() as captured:
        console.print(made)
    return captured.get().removesuffix("\n").split("\n")


def fitted(words: Mapping[Column, Sequence[str]], room: int) -> dict[Column, int]:
    """Returns the columns that fit beside each other, with their widths: the least important are left out, then the
    elastic ones shrink."""
    widths = {column: max(map(cell_len, (column.title, *each))) for column, each in words.items()}
    least = {column: min(width, _SHORTEST) if column.is_elastic else width for column, width in widths.items()}
    while sum(least.values()) + len(GAP) * (len(least) - 1) > room and any(column.rank for column in least):
        del least[max(least, key=lambda column: column.rank)]
    spare = room - sum(least.values()) - len(GAP) * (len(least) - 1)
    for column, width in least.items():
        extra = max(0, min(spare, widths[column] - width))
        least[column] += extra
        spare -= extra
    return least


def progress_bar(before: str, after: str, *, stderr: bool) -> Progress:
    """Returns a bar between two texts, with the time it takes; it is removed at the end of its ``with``."""
    texts = [TextColumn(text, markup=False) for text in (before, after)]
    columns = (texts[0], BarColumn(), *(texts[1:] if after else ()), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=stderr), transient=True)


class Span(NamedTuple):
    text: str
    style: str = ""  # in words of rich


Line = Sequence[Span]


def rendered(line: Line, width: int) -> str:
    """Returns what a terminal is sent for a line, cut to its width. A reversed line is padded to it."""
    styles = [Style.parse(span.style) for span in line]
    if not has_colours():
        styles = [style.without_color for style in styles]
    segments = [Segment(showable(span.text), style) for span, style in zip(line, styles, strict=True)]
    cut = Segment.adjust_line_length(segments, width, styles[-1], pad=bool(styles[-1].reverse))
    return "".join(style.render(text) if style else text for text, style, _ in cut)


def fold(words: Iterable[Span], width: int, most: int) -> list[Line]:
    """Returns words on as few lines as possible; those that do not fit on ``most`` lines are left out."""
    lines: list[list[Span]] = [[]]
    used = 0
    for word in words:
        size = cell_len(word.text)
        if lines[-1] and used + len(GAP) + size > width:
            if len(lines) == most:
                break
            lines.append([])
        if lines[-1]:
            lines[-1].append(Span(GAP))
            used += len(GAP) + size
        else:
            used = size
        lines[-1].append(word)
    return list(lines)


def wrap(text: str, width: int) -> list[str]:
    """Returns a text as lines that fit, broken between words if that wastes little; all but the first indented."""
    pieces: list[str] = []
    rest = text
    while cell_len(rest) > width > _INDENT:
        end = next(n for n in range(len(rest), 0, -1) if cell_len(rest[:n]) <= width)
        space = rest.rfind(" ", width // 2, end)
        pieces.append(rest[: end if space < 0 else space])
        rest = " " * _INDENT + rest[len(pieces[-1]) :].lstrip()
    return [*pieces, rest]


class Region:
    """The last lines of a terminal. Each is cut to one row, and only as many as fit are shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: list[str] = []
        self._size: os.terminal_size | None = None

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines instead of the previous ones; sends nothing if they are the same."""
        size = os.get_terminal_size(self._stream.fileno())
        most = max(1, size.lines - 1)
        # Lines with colours come from tables, which fit already.
        width = size.columns
        fitting = [row if "\x1b" in row or cell_len(row) <= width else set_cell_size(row, width) for row in lines]
        if len(fitting) > most:
            fitting[most - 1 :] = [f"... {len(lines) - most + 1} lines more"]
        if fitting == self._shown and size == self._size:
            return
        # After a resize the old lines may be anywhere.
        start = self._over() if self._size in {None, size} else "\x1b[2J\x1b[H"
        # Noted first: after a Ctrl-C during the write `clear` must remove the lines.
        self._shown, self._size = fitting, size
        self._write("".join([start, _NO_WRAP, *(f"{line}\n" for line in fitting), _WRAP]))

    def clear(self) -> None:
        self._write(self._over())
        self._shown = []

    def _over(self) -> str:
        """Returns the sequence that erases the lines and moves to the first of them."""
        return f"\x1b[{len(self._shown)}A{_DOWN_CLEAR}" if self._shown else ""

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
