"""Lines with styles, and how a terminal is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

_CODES = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
_COLOURS = {"red", "green", "yellow", "cyan"}


class Span(NamedTuple):
    """A piece of a line."""

    text: str
    style: str = ""  # words of `_CODES`


Line = Sequence[Span]


class Brush:
    """Makes what is sent to a terminal."""

    def __init__(self, *, colours: bool, ascii_only: bool) -> None:
        self._colours = colours
        self.ascii_only = ascii_only

    def render(self, line: Line, width: int) -> str:
        """A line, cut where the terminal ends. A reversed one goes on to there."""
        written: list[str] = []
        left = width
        for text, style in line:
            shown = self.plain(text)
            size = cell_len(shown)
            if size > left:
                shown, size = set_cell_size(shown, left), left
            written.append(self._styled(shown, style))
            left -= size
        if left and line and "reverse" in line[-1].style:
            written.append(self._styled(" " * left, line[-1].style))
        return "".join(written)

    def plain(self, text: str) -> str:
        """Text in the characters that the terminal has."""
        return text.encode("ascii", "backslashreplace").decode() if self.ascii_only else text

    def _styled(self, text: str, style: str) -> str:
        words = [word for word in style.split() if self._colours or word not in _COLOURS]
        return f"\x1b[{';'.join(_CODES[word] for word in words)}m{text}\x1b[0m" if words and text else text


def fold(words: Iterable[Span], width: int, most: int, gap: str = "  ") -> list[Line]:
    """Words on as few lines as they fit on, at most so many; what does not fit any more is left out."""
    lines: list[list[Span]] = [[]]
    used = 0
    for word in words:
        size = cell_len(word.text)
        if lines[-1] and used + len(gap) + size > width:
            if len(lines) == most:
                break
            lines.append([])
        if lines[-1]:
            lines[-1].append(Span(gap))
            used += len(gap) + size
        else:
            used = size
        lines[-1].append(word)
    return list(lines)


def wrap(text: str, width: int) -> list[str]:
    """One line of text as several that fit, parted between words where that wastes little; the rest is set in."""
    pieces: list[str] = []
    rest = text
    while cell_len(rest) > width > _INDENT:
        end = next(n for n in range(len(rest), 0, -1) if cell_len(rest[:n]) <= width)
        space = rest.rfind(" ", width // 2, end)
        pieces.append(rest[: end if space < 0 else space])
        rest = " " * _INDENT + rest[len(pieces[-1]) :].lstrip()
    return [*pieces, rest]


_INDENT = 4
