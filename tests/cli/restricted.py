"""Runs command lines one after the other in a process that may do less than the test itself; started by `Jail`.

Each runs in a fork of a process that has everything loaded, in a directory that the test names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

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
    """What it has to be put behind to be held to the modes of files, whoever runs the tests."""
    return _POWERLESS


def is_possible(under: Sequence[str]) -> bool:
    """Whether this machine lets us restrict a process so."""
    if under and shutil.which(under[0]) is None:
        return False
    return subprocess.run([*under, "true"], capture_output=True, check=False).returncode == 0


def run_all(shell: Shell, under: Sequence[str], lines: Sequence[Sequence[str]], **environment: str) -> list[Done]:
    """What each of the command lines did, run behind `under`."""
    done = subprocess.run(
        [*under, sys.executable, "-m", __name__, str(shell.folder)],
        input=json.dumps([list(line) for line in lines]),
        cwd=ROOT,
        env={**shell.environment, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*each) for each in json.loads(done.stdout)]


def _main() -> None:
    folder = sys.argv[1]
    for module in ("dray.app", "dray.backends", "dray.cli.run"):
        import_module(module)  # once, for all forks
    answers = [_run(folder, line) for line in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


def _run(folder: str, line: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            _become(folder, line, out.fileno(), err.fileno())
        deadline = time.monotonic() + PATIENCE / 3
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                os.kill(child, 9)
            time.sleep(0.005)
        texts: list[str] = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        return os.waitstatus_to_exitcode(ended[1]), texts[0], texts[1]


def _become(folder: str, line: list[str], out: int, err: int) -> NoReturn:
    from dray.cli.run import run

    os.chdir(folder)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    code = 99
    try:
        code = run(line)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()
