"""Migrations: numbered files, the same numbers for every database, each applied once under a lock.

They only add, so that workers of the release before keep running on the newer tables. `version` in dray_meta is
the last one applied; `oldest_code` the lowest number that code must know to be allowed to write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from dray.backends.statements import Dialect, sql_files
from dray.errors import SchemaTooNew

log = logging.getLogger("dray")

OLDEST_CODE = 1  # of the newest migration: raise it when older code must no longer write
CREATE_HINT = "run `dray db migrate`, or open it with App(..., migrate=True)"


@cache
def migrations(dialect: Dialect) -> dict[int, str]:
    """Every migration's text by number."""
    found = sql_files(dialect, "migrations")
    return {int(file.name.partition("_")[0]): file.read_text(encoding="utf-8") for file in found}


def latest(dialect: Dialect) -> int:
    """The newest schema this code knows."""
    return max(migrations(dialect))


def upgrade(
    dialect: Dialect, version: int | None, script: Callable[[str], None], note: Callable[[str, int], None]
) -> int:
    """Applies what is missing, inside the caller's transaction and under its lock; returns the new version."""
    target = latest(dialect)
    if version is not None and version >= target:
        return version
    for number, text in sorted(migrations(dialect).items()):
        if version is None or number > version:
            script(text)
    note("version", target)
    note("oldest_code", OLDEST_CODE)
    return target


def admit(dialect: Dialect, version: int, oldest_code: int, place: str) -> None:
    """Refuses tables that need newer code; merely newer ones are used, with a warning."""
    known = latest(dialect)
    if known < oldest_code:
        raise SchemaTooNew(
            f"{place}: its tables (version {version}) need a Dray that knows version {oldest_code}; "
            f"this one knows {known}. Nothing was written: upgrade Dray here"
        )
    if known < version:
        log.warning("%s: its tables (version %d) are newer than this Dray knows (%d)", place, version, known)
