"""Runs many command lines: in pipes, on a terminal, or in a process that may do less than we."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from tests.cli import reused
from tests.cli.shell import PATIENCE, Done, Shell
from tests.forks import become

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
    if not under:
        return [shell.run(*words, **environment) for words in lines]
    request = {
        "folder": str(shell.folder),
        "environment": {**shell.environment, **environment},
        "lines": [list(words) for words in lines],
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "PYTEST"))}
    done = subprocess.run(
        [*under, sys.executable, "-m", __name__],
        cwd=ROOT,
        env={**inherited, "PYTHONWARNINGS": "error"},
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return [Done(*each) for each in json.loads(done.stdout)]


def show_all(shell: Shell, lines: Sequence[Sequence[str]], columns: int, **environment: str) -> list[Done]:
    """What each of them did on a terminal of this width."""
    return [shell.on_terminal(*words, columns=columns, **environment) for words in lines]


# In the restricted process


def _main() -> None:
    request, output = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
    state = reused.State()
    done: list[tuple[int, str, str]] = []
    for words in request["lines"]:
        done.append(_run(words, request["environment"], Path(request["folder"])))
        state.restore()
    with output:
        json.dump(done, output)


def _run(words: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    with Path(os.devnull).open() as nothing, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        streams = [each.fileno() for each in (nothing, out, err)]
        if reused.is_possible(words, environment):
            become(environment, folder, streams)
            code = reused.run_here(words)
        else:
            code = _run_in_fork(words, environment, folder, streams)
        out.seek(0)
        err.seek(0)
        return code, out.read(), err.read()


def _run_in_fork(words: list[str], environment: dict[str, str], folder: Path, streams: list[int]) -> int:
    child = os.fork()
    if child == 0:
        code = 99
        try:
            become(environment, folder, streams)
            code = reused.run_here(words)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    _main()
