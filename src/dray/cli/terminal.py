"""Tables and progress bars, made by rich. Loaded only for a terminal, because rich takes 20 to 40 ms to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dray.cli.live.paint import GAP, fitted
from dray.cli.output import COLOURS, Column, is_ascii_only, is_terminal

_ANY_WIDTH = 1_000  # columns, where there is no terminal


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
        made.add_row(*(Text(word, style=_style(word)) for word in row))  # Text: a plain string may hold markup
    with console.capture() as captured:
        console.print(made)
    return captured.get().removesuffix("\n").split("\n")


def _style(word: str) -> str:
    return COLOURS.get(word.partition(" ")[0].partition("(")[0], "")


def progress_bar(before: str, after: str, *, stderr: bool) -> Progress:
    """Returns a bar between two texts, with the time it takes; it is removed at the end of its ``with``."""
    texts = [TextColumn(text, markup=False) for text in (before, after)]
    columns = (texts[0], BarColumn(), *(texts[1:] if after else ()), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=stderr), transient=True)
