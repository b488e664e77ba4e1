"""The Python environment of the comparison: peers are installed on demand, and Dray runs in it too.

So every queue runs on the same Python and the same drivers.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.compare.entrants import Entrant

ROOT = Path(__file__).parents[2]
_NEWEST = ("python3.14", "python3.13", "python3.12")
_WANTED = (3, 12)  # lilota, litequeue and oban need it
_VERSIONS = """
import importlib.metadata, json
print(json.dumps({found.name.lower(): found.version for found in importlib.metadata.distributions()}))
"""


class NotInstalled(Exception):
    """A peer cannot be installed here; the text says why."""


class Environment:
    """Has an interpreter of its own; `base` is the Python that it is made from."""

    def __init__(self, base: str) -> None:
        version = _run([base, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        folder = ROOT / f".venv-compare-{version}"
        self.python = str(folder / "bin" / "python")
        if not Path(self.python).exists():
            print(f"making {folder.name}", flush=True)
            _run([base, "-m", "venv", str(folder)])

    def install(self, entrant: Entrant) -> str:
        """Installs what a queue needs and returns the queue's version."""
        name = "dray" if entrant.name == "Dray" else _name_of(entrant.requirements[0])
        installed = self._installed()
        lacking = [each for each in entrant.requirements if not _is_met(each, installed)]
        if lacking:
            print(f"installing {', '.join(lacking)}", flush=True)
            self._pip("install", *(part for each in lacking for part in shlex.split(each)))
        return self._installed()[name]

    def versions(self) -> tuple[str, str]:
        """Returns the versions of Python and of its SQLite."""
        code = "import sqlite3, sys; print(sys.version.split()[0], sqlite3.sqlite_version)"
        python, sqlite = _run([self.python, "-c", code]).split()
        return python, sqlite

    def _installed(self) -> dict[str, str]:
        return json.loads(_run([self.python, "-c", _VERSIONS]))

    def _pip(self, *arguments: str) -> None:
        command = [self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise NotInstalled(errors[-1].removeprefix("ERROR: "))


def base_python() -> str:
    """Returns this Python, or a newer one on the PATH if some peers need that."""
    if sys.version_info >= _WANTED:
        return sys.executable
    found = [path for name in _NEWEST if (path := shutil.which(name)) and _runs(path)]
    return found[0] if found else sys.executable


def _runs(python: str) -> bool:
    return subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0


def _name_of(requirement: str) -> str:
    return requirement.partition("==")[0].partition("[")[0]


def _is_met(requirement: str, installed: Mapping[str, str]) -> bool:
    if requirement.startswith("-e"):
        return "dray" in installed
    return installed.get(_name_of(requirement)) == requirement.partition("==")[2]


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
