"""Runs ``dray`` as people and programs do: in a process of its own, in a pipe or on a terminal.

Most commands run in a fork of a process that has everything loaded (`tests.forks`). Commands about starting up,
terminals and workers run as ``python -m dray``.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dray.cli import main
from tests.cli import reused
from tests.forks import Forked, Passed, become

PATIENCE = 60.0
_STARTING = {"worker", "run", "dev", "demo", "bench"}  # commands that may start processes

_NOT_INHERITED = ("DRAY_", "PYTEST", "COLUMNS", "NO_COLOR")
_numbers = itertools.count()

TASKS = """
import asyncio, logging, os, pathlib, time
import dray

app = dray.App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def call(number: str) -> str:
    return number

@app.task(max_attempts=1)
def fail(word: str) -> None:
    raise ValueError(word)

@app.task
def talk(ctx: dray.Context) -> None:
    ctx.log.info("first \\x1b[31mline")
    logging.getLogger("shop").warning("second line")
    ctx.progress(50, "half")

@app.task
async def sleep(seconds: float) -> None:
    pathlib.Path("sleeping").touch()
    await asyncio.sleep(seconds)

@app.task(queue="mail", redact=["token"])
def mail(to: str, token: str) -> None: ...
"""


@dataclass(frozen=True)
class Done:
    """What a command left: its code, and what it said where."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Tab-separated values."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def value(self) -> str:
        """The one line that it answered."""
        (line,) = self.out.splitlines()
        return line


class Shell:
    """A directory with a tasks.py in it, and an environment."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DRAY_", "PYTEST", "COLUMNS", "PYTHONUNBUFFERED"))
        }
        self.environment = {**kept, "DRAY_URL": url, "PYTHONWARNINGS": "error"}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        written = path.stat().st_mtime if path.exists() else None
        path.write_text(text)
        if written is not None:  # Python tells source that has changed by its length and the second, or runs the old
            os.utime(path, (written + 2, written + 2))
        return path

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "dray", *words]

    def start(
        self,
        words: Sequence[str],
        streams: Sequence[int],
        environment: Mapping[str, str | None] | None = None,
        *,
        on_terminal: bool = False,
        starts_python: bool = False,
    ) -> Forked:
        """Runs a command, its streams these descriptors; on a terminal, the keys of its input are for it.

        The processes that it starts are forked too, unless it `starts_python`.
        """
        passed = [Passed(each) for each in streams]
        forks = not starts_python and not _STARTING.isdisjoint(words)
        return Forked(_run, (words, self.folder, self._with(environment or {}), passed, on_terminal, forks))

    def try_(self, *words: str, stdin: str = "", **environment: str | None) -> Done:
        """Runs a command, however it ends; but no error is left to Python, which does not indent its traceback."""
        done = self.run(*words, stdin=stdin, **environment)
        assert not [line for line in done.err.splitlines() if line.startswith("Traceback")], done.err
        return done

    def run(self, *words: str, stdin: str = "", **environment: str | None) -> Done:
        """Runs a command, whatever it does."""
        paths = [self.folder.parent / f"{name}-{next(_numbers)}" for name in ("in", "out", "err")]
        paths[0].write_text(stdin)
        with paths[0].open() as given, paths[1].open("w") as out, paths[2].open("w") as err:
            running = self._one_of_many(words, (given.fileno(), out.fileno(), err.fileno()), environment)
        try:
            code = running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {paths[1].read_text()} {paths[2].read_text()}") from None
        return Done(code, paths[1].read_text(), paths[2].read_text())

    def fresh(self, *words: str, **environment: str | None) -> Done:
        """The same, started from scratch."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env=self._with(environment),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, *words: str, stdin: str = "", **environment: str | None) -> Done:
        """Runs a command that has to succeed."""
        done = self.try_(*words, stdin=stdin, **environment)
        assert done.code == 0, done.err
        return done

    def on_terminal(self, *words: str, columns: int = 100, keys: str = "", **environment: str | None) -> Done:
        """Runs a command on a terminal of its own and presses keys; returns what it wrote, on stderr too."""
        return self._on_terminal(words, None, columns, keys, environment)

    def on_terminal_but_errors(self, *words: str, **environment: str | None) -> Done:
        """The same, with stderr in a file."""
        with (self.folder.parent / f"err-{next(_numbers)}").open("w+") as err:
            done = self._on_terminal(words, err.fileno(), 100, "", environment)
            err.seek(0)
            return replace(done, err=err.read())

    def _on_terminal(
        self,
        words: Sequence[str],
        err: int | None,
        columns: int,
        keys: str,
        environment: Mapping[str, str | None],
    ) -> Done:
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        streams = [terminal, terminal, terminal if err is None else err]
        running = self._one_of_many(words, streams, {"TERM": "xterm", **environment})
        os.close(terminal)
        os.write(main, keys.encode())
        shown = b""
        while chunk := read_terminal(main):
            shown += chunk
        os.close(main)
        return Done(running.wait(PATIENCE), shown.decode(errors="replace").replace("\r\n", "\n"), "")

    @contextmanager
    def background(self, *words: str, starts_python: bool = False, **environment: str | None) -> Generator[Forked]:
        """A command that runs beside, its output in pipes; killed at the end, if it still does."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        with Path(os.devnull).open() as nothing:
            streams = (nothing.fileno(), its_out, its_err)
            process = self.start(words, streams, environment, starts_python=starts_python)
        os.close(its_out)
        os.close(its_err)
        process.stdout, process.stderr = os.fdopen(out), os.fdopen(err)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)
            process.stdout.close()
            process.stderr.close()

    def _one_of_many(
        self, words: Sequence[str], streams: Sequence[int], environment: Mapping[str, str | None]
    ) -> Forked | reused.Command:
        """Runs a command in a process that has run others, if that makes no difference to it."""
        merged = self._with(environment)
        if reused.is_possible(words, merged):
            return reused.Command(words, self.folder, merged, streams)
        return self.start(words, streams, environment)

    def _with(self, environment: Mapping[str, str | None]) -> dict[str, str]:
        merged = {**self.environment, **environment}
        return {name: value for name, value in merged.items() if value is not None}


def project(parent: Path, url: str | None = None) -> Shell:
    """A new folder with a tasks.py, on this database or on a SQLite file in it that is not there yet."""
    folder = parent / "project"
    folder.mkdir()
    made = Shell(folder, url or f"sqlite:///{folder / 'dray.db'}")
    made.write("tasks.py", TASKS)
    return made


def copied(shell: Shell, parent: Path) -> Shell:
    """A copy of a project and its SQLite file, which no process has open."""
    folder = parent / "project"
    shutil.copytree(shell.folder, folder)
    return Shell(folder, f"sqlite:///{folder / 'dray.db'}")


def plain(text: str) -> str:
    """Text of a terminal without colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def until(holds: Callable[[], Any]) -> Any:
    """Waits for something that another process does; what it answered.

    A look that starts a command is made less often: it takes the processor from what is waited for.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        looked_at = time.monotonic()
        if answer := holds():
            return answer
        now = time.monotonic()
        assert now < deadline, "it has not happened"
        time.sleep(min(max(0.02, 4 * (now - looked_at)), 0.2))


def _run(
    words: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    streams: list[Passed],
    on_terminal: bool,
    forks: bool,
) -> None:
    """In the fork: becomes the command."""
    os.setsid()
    become(environment, folder, [each.descriptor for each in streams])
    if on_terminal:  # Ctrl-C and Ctrl-Z are for this process
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore", ResourceWarning)  # as Python does by itself
    command: Sequence[str] | None = ["-m", "dray", *words]
    if forks:
        from tests.forkers import fork_starter  # it loads parts of a worker, which other commands do not need

        command = fork_starter(command, lambda _: None)
    if command is not None:  # not in a child of a forker, which has ended
        sys.orig_argv[:] = [sys.executable, *command]  # by which it starts itself again
        main(command[2:])


def read_terminal(descriptor: int) -> bytes:
    """What was written to a terminal since the last read; nothing, once no process has it open any more.

    Asked twice: the kernel may find nothing to read, and a moment later that no process has it open any
    more. What was written in between is there at the next read.
    """
    for _ in range(2):
        with suppress(OSError):  # EIO
            return os.read(descriptor, 65536)
    return b""
