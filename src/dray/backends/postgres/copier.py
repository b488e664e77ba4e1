"""Copies of Dray's tables on a PostgreSQL server, by PostgreSQL's own pg_dump where it is installed.

Whatever the address says goes to it by the environment, never by the command line, which every user can see.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from dray.backends import migrate
from dray.backends.database import Copier, Progress
from dray.errors import DrayError, StorageFull
from dray.sanitize import redact

_PRIVATE = 0o600
_SECRETS = {"PGPASSWORD", "PGSSLPASSWORD"}


class PostgresCopier(Copier):
    """One database; `namespace` returns the schema that the tables are in."""

    ending = ".dump"

    def __init__(self, conninfo: str, place: str, namespace: Callable[[], str]) -> None:
        self._conninfo = conninfo
        self._place = place
        self._namespace = namespace

    @property
    def name(self) -> str:
        return str(conninfo_to_dict(self._conninfo).get("dbname") or "dray")

    def mode(self) -> int:
        return _PRIVATE

    def copy(self, draft: Path, progress: Progress) -> None:
        told = _environment(self._conninfo)
        schema = self._namespace()
        tables = [f'"{schema}"."{name}"' for name in sorted(migrate.names("postgres", indexes=False))]
        progress(0, None)
        program = shutil.which("pg_dump")
        if program is None:
            raise DrayError(
                "pg_dump, which comes with PostgreSQL's client programs, is not installed here; install it, or run "
                f"where it is: {_shown(told, tables, f'{self.name}{self.ending}')}"
            )
        command = [program, *_arguments(tables, str(draft))]
        done = subprocess.run(  # noqa: S603 - no shell, and no part of it comes from a user
            command,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()][:3]
            words = redact("; ".join(line.removeprefix("pg_dump: ").removeprefix("error: ") for line in said))
            kind = StorageFull if "No space left" in done.stderr else DrayError
            raise kind(f"{self._place}: pg_dump could not copy it: {words or 'it did not say why'}")


def _arguments(tables: Sequence[str], file: str) -> list[str]:
    return ["--format=custom", "--no-password", *(f"--table={table}" for table in tables), f"--file={file}"]


def _environment(conninfo: str) -> dict[str, str]:
    """The parts of an address as the variables that PostgreSQL's programs know them by."""
    given = conninfo_to_dict(conninfo)
    variables = {option.keyword.decode(): option.envvar for option in Conninfo.get_defaults()}
    return {
        name.decode(): str(value)
        for keyword, value in given.items()
        if value is not None and (name := variables.get(keyword)) is not None
    }


def _shown(told: Mapping[str, str], tables: Sequence[str], file: str) -> str:
    """The command as one would type it, without a password."""
    words = [f"{name}={shlex.quote(value)}" for name, value in told.items() if name not in _SECRETS]
    return " ".join([*words, "pg_dump", *map(shlex.quote, _arguments(tables, file))])
