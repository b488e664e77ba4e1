"""A real terminal for a real ``dray``: a pty, keys that are pressed, and what the screen shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyte

from tests.cli.shell import PATIENCE, Shell
from tests.forks import Forked

UP, DOWN, SHIFT_TAB, ESCAPE, CTRL_C, CTRL_Z = "\x1b[A", "\x1b[B", "\x1b[Z", "\x1b", "\x03", "\x1a"


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, columns: int, lines: int) -> None:
        self.main, self.other = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""  # all that the program has written
        self._is_closed = False
        self.resize(columns, lines)
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.main, keys.encode())

    @property
    def lines(self) -> list[str]:
        """What is on the screen now."""
        self._take_in(0)
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.main)

    @property
    def is_other_screen(self) -> bool:
        """Whether the program has taken the whole screen, and the lines above are out of sight."""
        self._take_in(0)
        return self.sent.rfind(b"\x1b[?1049h") > self.sent.rfind(b"\x1b[?1049l")

    def until(self, holds: Callable[[str], Any]) -> str:
        """Waits until something is to be seen; the screen then."""
        deadline = time.monotonic() + PATIENCE
        while not holds(shown := self.text):
            assert time.monotonic() < deadline, f"not to be seen:\n{shown}"
            self._take_in(0.05)
        return shown

    def ends(self) -> int:
        """Waits for the program to end; its code."""
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline, f"it does not end:\n{self.text}"
            self._take_in(0.05)
        self._take_in(0)
        return code

    def close(self) -> None:
        """What was on the screen can still be read."""
        self._take_in(0)
        self._is_closed = True
        os.close(self.main)
        os.close(self.other)

    def _take_in(self, seconds: float) -> None:
        while not self._is_closed and select.select([self.main], [], [], seconds)[0]:
            data = os.read(self.main, 65536)
            self.sent += data
            self._stream.feed(data)
            seconds = 0


@contextmanager
def terminal(
    shell: Shell,
    *words: str,
    columns: int = 100,
    lines: int = 30,
    program: list[str] | None = None,
    **environment: str | None,
) -> Generator[Terminal]:
    """A command, or another program, on a terminal of its own; killed at the end, if it still runs."""
    made = Terminal(columns, lines)
    try:
        its = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **environment}
        if program is None:
            made.process = shell.start(words, [made.other] * 3, its, on_terminal=True)
        else:
            made.process = subprocess.Popen(
                program,
                cwd=shell.folder,
                env=shell._with(its),
                stdin=made.other,
                stdout=made.other,
                stderr=made.other,
                start_new_session=True,
                preexec_fn=_take_terminal,  # noqa: PLW1509 - one system call
            )
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.send_signal(signal.SIGKILL)
            made.process.wait(PATIENCE)
        made.close()


def _take_terminal() -> None:
    """In the child: Ctrl-C and Ctrl-Z on this terminal are for it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
