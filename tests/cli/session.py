"""A command on a terminal of its own, whose keys reach it as a person's do: Ctrl-C is a signal."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cli.shell import PATIENCE, Shell, plain, read_terminal, until
from tests.forks import Forked

CTRL_C = "\x03"


class Session:
    """A command that runs; used in a ``with``, at whose end it is gone."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes] | Forked]) -> None:
        self._main, terminal = pty.openpty()
        self.process = start(terminal)
        os.close(terminal)
        self._seen = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._main)

    @property
    def raw(self) -> str:
        """All that was written so far, colours included."""
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        return plain(self.raw)

    def sees(self, words: str, times: int = 1) -> None:
        """Waits until it has been written so often."""
        until(lambda: self.text.count(words) >= times or self._ended_without(words, times))

    def _ended_without(self, words: str, times: int) -> bool:
        assert self.process.poll() is None or self.text.count(words) >= times, f"no {words!r} in\n{self.text}"
        return False

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def ended(self) -> int:
        """The exit code, as a shell has it: Python itself may end a process that was interrupted by that signal."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code if code >= 0 else 128 - code

    def _read(self) -> None:
        while chunk := read_terminal(self._main):
            self._seen += chunk


def session(shell: Shell, *words: str, **environment: str | None) -> Session:
    """``dray``, forked."""
    its = {**environment, "TERM": "xterm"}
    return Session(lambda terminal: shell.start(words, [terminal] * 3, its, on_terminal=True))


def fresh_session(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Session:
    """A program, started from scratch."""

    def start(terminal: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, "TERM": "xterm"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - one ioctl
        )

    return Session(start)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
