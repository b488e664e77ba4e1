"""Runs many command lines, each in a fork of a process that has everything loaded; that process may do less than we.

It is much cheaper to walk all commands so than to start each: `run_all` in pipes, `show_all` on a terminal.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.cli.shell import PATIENCE, Done, Shell

ROOT = Path(__file__).parents[2]
# A mount namespace of the process's own: its mounts end with it, whatever happens.
_PRIVATE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
# What the owner of all files may do beyond what their modes say.
_POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


def read_only_mount(folder: Path) -> list[str]:
    """What a command has to be put behind to find the folder on a read-only file system."""
    return [*_PRIVATE, "sh", "-c", _READ_ONLY, str(folder)]


def powerless() -> list[str]:
    """The command that makes file modes count even if root runs the tests."""
    return _POWERLESS


def is_possible(under: Sequence[str]) -> bool:
    """Whether this machine lets us restrict a process so."""
    if under and shutil.which(under[0]) is None:
        return False
    return subprocess.run([*under, "true"], capture_output=True, check=False).returncode == 0


def run_all(shell: Shell, under: Sequence[str], lines: Sequence[Sequence[str]], **environment: str) -> list[Done]:
    """What each of the command lines did, run behind `under`."""
    return _ask(under, shell, lines, environment, 0)


def show_all(shell: Shell, lines: Sequence[Sequence[str]], columns: int, **environment: str) -> list[Done]:
    """The same on a terminal of this width."""
    return _ask([], shell, lines, {"TERM": "xterm", **environment}, columns)


# In the test

_servers: dict[tuple[str, ...], _Server] = {}


class _Server:
    """A process that has everything loaded."""

    def __init__(self, under: Sequence[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "PYTEST"))}
        self._popen = subprocess.Popen(
            [*under, sys.executable, "-m", __name__],
            cwd=ROOT,
            env={**environment, "PYTHONWARNINGS": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        assert answer, "the process is gone"
        return json.loads(answer)

    def close(self) -> None:
        self._popen.communicate(timeout=PATIENCE)


def _ask(
    under: Sequence[str],
    shell: Shell,
    lines: Sequence[Sequence[str]],
    environment: dict[str, str],
    columns: int,
) -> list[Done]:
    request = {
        "folder": str(shell.folder),
        "environment": {**shell.environment, **environment},
        "columns": columns,
        "lines": [list(line) for line in lines],
    }
    if under:
        server = _Server(under)
        answers = server.ask(request)
        server.close()
    else:
        answers = _plain_server().ask(request)
    return [Done(*each) for each in answers]


def _plain_server() -> _Server:
    if () not in _servers:
        _servers[()] = _Server([])
        atexit.register(_servers[()].close)
    return _servers[()]


# In the process


def _main() -> None:
    import_module("tests.preload")
    for line in sys.stdin:
        request = json.loads(line)
        os.environ.clear()
        os.environ.update(request["environment"])
        run = _on_terminal if request["columns"] else _in_pipes
        answers = [run(request, words) for words in request["lines"]]
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


def _in_pipes(request: dict[str, Any], words: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            _become(request["folder"], words, os.open(os.devnull, os.O_RDONLY), out.fileno(), err.fileno())
        deadline = time.monotonic() + PATIENCE / 2
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, 9)
            time.sleep(0.001)
        texts: list[str] = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        return os.waitstatus_to_exitcode(ended[1]), texts[0], texts[1]


def _on_terminal(request: dict[str, Any], words: list[str]) -> tuple[int, str, str]:
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, request["columns"], 0, 0))
    child = os.fork()
    if child == 0:
        os.close(main)
        os.setsid()
        _become(request["folder"], words, terminal, terminal, terminal)
    os.close(terminal)
    shown = b""
    while chunk := _read(main):
        shown += chunk
    os.close(main)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace").replace("\r\n", "\n"), ""


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: no process has the terminal open any more
        return b""


def _become(folder: str, words: list[str], *streams: int) -> NoReturn:
    from dray.cli.run import run

    os.chdir(folder)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    code = 99
    try:
        code = run(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()
