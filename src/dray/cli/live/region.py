"""Lines on a terminal that are written over by the next ones, below what was there before."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, set_cell_size

_DOWN_CLEAR = "\r\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Region:
    """The last lines of a terminal. No line takes more than one of its rows, and all of them fit on it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: list[str] = []
        self._size: os.terminal_size | None = None

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines instead of those before; what is there already is not sent again."""
        size = os.get_terminal_size(self._stream.fileno())
        most = max(1, size.lines - 1)
        fitting = [_cut(line, size.columns) for line in lines]
        if len(fitting) > most:
            fitting[most - 1 :] = [f"... {len(lines) - most + 1} lines more"]
        if fitting == self._shown and size == self._size:
            return
        # Lines that were cut to another width may be anywhere by now.
        start = self._over() if self._size in {None, size} else "\x1b[2J\x1b[H"
        # Noted first: Ctrl-C may end this right after the lines are written, and they have to be wiped out.
        self._shown, self._size = fitting, size
        self._write("".join([start, _NO_WRAP, *(f"{line}\n" for line in fitting), _WRAP]))

    def clear(self) -> None:
        """Takes away what is shown."""
        self._write(self._over())
        self._shown = []

    def _over(self) -> str:
        """Leads to the beginning of what is shown, and wipes it out."""
        return f"\x1b[{len(self._shown)}A{_DOWN_CLEAR}" if self._shown else ""

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()


def _cut(line: str, width: int) -> str:
    """A line that is not wider; a line of a table, which has colours, has been made to fit."""
    return line if "\x1b" in line or cell_len(line) <= width else set_cell_size(line, width)
