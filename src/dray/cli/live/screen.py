"""A terminal as a screen and a keyboard: taken over by the program, and afterwards as it was.

It is restored whatever ends the program, except kill -9: a key, an exception, SIGTERM, SIGHUP. SIGTSTP (Ctrl-Z) gives
it back until SIGCONT.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import termios
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from dray.backends.watch import Bell, rest
from dray.cli.processes import handling

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # the alternate screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_PAUSE = 0.05  # seconds in which the rest of a key's bytes must come
_SMALLEST = (20, 5)
_REDRAW = "redraw"
_LETTERS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
_SEQUENCES = {
    **{f"{start}{letter}": key for start in "[O" for letter, key in _LETTERS.items()},
    "[1~": "home",
    "[4~": "end",
    "[5~": "page up",
    "[6~": "page down",
    "[Z": "back tab",
}
_CONTROLS = {
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x0c": _REDRAW,
    "\x1b": "escape",
}
_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[@-~]|O[A-Za-z])")
_BEGUN = re.compile(r"\x1b(\[[0-9;?]*|O)?$")


class Screen:
    """The terminal on stdin and stdout."""

    def __init__(self) -> None:
        self.bell = Bell()  # ends a wait
        self.is_over = False  # a signal, or the terminal is gone
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._modes: list[Any] | None = None
        self._shown: list[str] = []

    @contextmanager
    def taken(self) -> Generator[Self]:
        """Takes the terminal over for the block, and leaves it as it was, whatever ends the block."""
        handlers = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGWINCH: self._resize,
            signal.SIGTSTP: self._suspend,
        }
        with handling(handlers):
            log_level = logging.root.manager.disable
            logging.disable()  # a warning on stderr would appear anywhere on the screen
            try:
                self._take()
                yield self
            finally:
                self._give_back()
                logging.disable(log_level)

    def _take(self) -> None:
        self._modes = termios.tcgetattr(self._in)
        raw = termios.tcgetattr(self._in)
        raw[0] &= ~termios.IXON  # Ctrl-S would block a write
        raw[3] &= ~(termios.ICANON | termios.ECHO)
        raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._in, termios.TCSADRAIN, raw)
        self._write(_ENTER)
        self._shown = []

    def _give_back(self) -> None:
        modes, self._modes = self._modes, None
        if modes is None:
            return
        try:
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSAFLUSH, modes)
        except (OSError, termios.error):
            return  # the terminal is gone

    def _end(self, _: int, __: FrameType | None) -> None:
        self.is_over = True
        self.bell.ring()

    def _resize(self, _: int, __: FrameType | None) -> None:
        self._shown = []  # the terminal may have moved any line
        self.bell.ring()

    def _suspend(self, _: int, __: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # SIGCONT continues here.
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
        self.bell.ring()

    @property
    def size(self) -> tuple[int, int]:
        found = os.get_terminal_size(self._out)
        return found.columns or _SMALLEST[0], found.lines or _SMALLEST[1]

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines from the top, and sends only those that have changed."""
        if self._shown and len(self._shown) == len(lines):
            changed = [n for n, line in enumerate(lines) if line != self._shown[n]]
            start = ""
        else:
            changed, start = list(range(len(lines))), "\x1b[2J"
        self._shown = list(lines)
        if changed:
            self._write(start + "".join(f"\x1b[{n + 1};1H{lines[n]}\x1b[K" for n in changed))

    def _write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(self._out, data) :]

    def wait(self, seconds: float) -> list[str]:
        """Sleeps until a key is pressed, the bell rings or the time is over; returns the keys."""
        rest([self._in, self.bell.fileno()], seconds)
        self.bell.silence()
        pressed = self._keys() if rest([self._in], 0) else []
        if _REDRAW in pressed:
            self._shown = []
        return [key for key in pressed if key != _REDRAW]

    def _keys(self) -> list[str]:
        text = self._read()
        if not text:
            self.is_over = True  # the terminal is gone
        deadline = time.monotonic() + _ESCAPE_PAUSE
        while is_begun(text) and (left := deadline - time.monotonic()) > 0:
            if rest([self._in], left):
                text += self._read()
        return keys(text)

    def _read(self) -> str:
        try:
            return os.read(self._in, 1024).decode(errors="replace")
        except OSError:
            return ""


def keys(text: str) -> list[str]:
    """Returns the keys in what a terminal sent: ``up``, ``enter``, or a character. Unknown sequences are left out."""
    found: list[str] = []
    at = 0
    while at < len(text):
        sequence = _SEQUENCE.match(text, at)
        if sequence:
            name = _SEQUENCES.get(sequence[1])
            at = sequence.end()
        else:
            name = _CONTROLS.get(text[at], text[at] if text[at].isprintable() else None)
            at += 1
        if name is not None:
            found.append(name)
    return found


def is_begun(text: str) -> bool:
    """Whether the text ends within the sequence of a key, or with the escape key."""
    return bool(_BEGUN.search(text))
