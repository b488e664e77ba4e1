"""A terminal as a screen: the whole of it while the program has it, and as it was before once it has not.

Left in order whatever ends the program short of kill -9: a key, an exception, SIGTERM, SIGHUP. SIGTSTP (Ctrl-Z)
leaves it for as long as the program stands still.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import termios
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from dray.backends.watch import Bell, rest
from dray.cli.live import keys

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # the other screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_PAUSE = 0.05  # seconds in which the rest of a key's bytes come
_SMALLEST = (20, 5)


class Screen:
    """The terminal on stdin and stdout. Within the block it is this program's."""

    def __init__(self) -> None:
        self.bell = Bell()  # ends a wait
        self.is_over = False  # somebody wants the program to end
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._modes: list[Any] | None = None
        self._shown: list[str] = []
        self._before: dict[signal.Signals, Any] = {}
        self._quiet = 0

    def __enter__(self) -> Self:
        handlers = {
            signal.SIGINT: self._end,
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGWINCH: self._resize,
            signal.SIGTSTP: self._suspend,
        }
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._quiet = logging.root.manager.disable
        logging.disable()  # a warning on stderr would be a line anywhere on the screen
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        logging.disable(self._quiet)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self) -> None:
        self._modes = termios.tcgetattr(self._in)
        raw = termios.tcgetattr(self._in)
        raw[0] &= ~termios.IXON  # Ctrl-S would have it stuck in a write
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
            return  # the terminal is gone: there is nothing to leave in order

    # Signals

    def _end(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as the interpreter calls it
        self.is_over = True
        self.bell.ring()

    def _resize(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._shown = []  # what is where nobody knows
        self.bell.ring()

    def _suspend(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on, after SIGCONT.
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()
        self.bell.ring()

    # Drawing

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(self._out)
        return found.columns or _SMALLEST[0], found.lines or _SMALLEST[1]

    def draw(self, lines: Sequence[str]) -> None:
        """Shows these lines, from the top; sends only those that are not there already."""
        if self._shown and len(self._shown) == len(lines):
            changed = [n for n, line in enumerate(lines) if line != self._shown[n]]
            start = ""
        else:
            changed, start = list(range(len(lines))), "\x1b[2J"
        self._shown = list(lines)
        if changed:
            self._write(start + "".join(f"\x1b[{n + 1};1H{lines[n]}\x1b[K" for n in changed))

    def redraw(self) -> None:
        """Sends everything the next time."""
        self._shown = []

    def _write(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(self._out, data) :]

    # Waiting

    def wait(self, seconds: float) -> list[str]:
        """Sleeps until a key is pressed, the bell rings or the time is over; the keys."""
        rest([self._in, self.bell.fileno()], seconds)
        self.bell.silence()
        return self._keys() if rest([self._in], 0) else []

    def _keys(self) -> list[str]:
        text = self._read()
        if not text:
            self.is_over = True  # the terminal is gone
        deadline = time.monotonic() + _ESCAPE_PAUSE
        while keys.is_begun(text) and (left := deadline - time.monotonic()) > 0:
            if rest([self._in], left):
                text += self._read()
        return keys.keys(text)

    def _read(self) -> str:
        try:
            return os.read(self._in, 1024).decode(errors="replace")
        except OSError:
            return ""
