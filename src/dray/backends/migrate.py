"""Migrations: numbered files, the same numbers for every database, each applied once under a lock.

They only add, so that workers of the release before keep running on the newer tables. `version` in dray_meta is
the last one applied; `oldest_code` the lowest number that code must know to be allowed to write.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from urllib.parse import quote

from dray.backends.database import Session
from dray.backends.statements import Dialect, sql_files
from dray.errors import DatabaseClosed, SchemaMissing, SchemaTooNew, StorageLocked
from dray.log import log
from dray.sanitize import HIDDEN

LIMITS_CODE = 7  # the lowest number that code must know to mind limits
OLDEST_CODE = 1  # of the newest migration: raise it when older code must no longer write


def command(verb: str, place: str) -> str:
    """The command line that makes or upgrades the tables at a place: a path, or an address without its password."""
    if HIDDEN in place:
        return f"`dray db {verb}` with DRAY_URL set to this address and its password"
    address = place if "://" in place else f"sqlite:///{quote(os.fsencode(place))}"
    return f"`dray db {verb} --url {shlex.quote(address)}`"


def missing(place: str) -> SchemaMissing:
    """There are no tables, and none may be made here."""
    return SchemaMissing(
        f"{place}: Dray's tables are not there yet; call app.init() once, or run {command('init', place)}"
    )


def cannot_make(place: str, *, in_transaction: bool, seconds: float) -> SchemaMissing | StorageLocked:
    """The write lock of a SQLite file was not to be had, so that the tables could not be made."""
    before = f"Call app.init() before you open a transaction, or run {command('init', place)}"
    if in_transaction:
        return SchemaMissing(
            f"{place}: Dray's tables are not there yet, and cannot be made while this connection's transaction, or "
            f"another program's, has a lock on the file. {before}"
        )
    return StorageLocked(
        f"{place}: Dray's tables are not there yet, and cannot be made: another connection kept the write lock for "
        f"{seconds:g} s. {before}"
    )


def cannot_upgrade(place: str) -> SchemaMissing:
    """An open transaction kept PostgreSQL from making or upgrading the tables for a user's transaction."""
    return SchemaMissing(
        f"{place}: Dray's tables are missing or old, and cannot be made or upgraded now: this connection's "
        "transaction, or another one, has a lock on them. Call app.init() before you open a transaction, or run "
        f"{command('init', place)}"
    )


def unseen(place: str) -> SchemaMissing:
    """The tables are newer than what a user's open transaction sees."""
    return SchemaMissing(
        f"{place}: Dray's tables were made just now, and this transaction began before; roll it back and begin "
        "again. To avoid that, call app.init() when the program starts"
    )


@cache
def migrations(dialect: Dialect) -> dict[int, str]:
    """Every migration's text by number."""
    found = sql_files(dialect, "migrations")
    return {int(file.name.partition("_")[0]): file.read_text(encoding="utf-8") for file in found}


def latest(dialect: Dialect) -> int:
    """The newest schema this code knows."""
    return max(migrations(dialect))


def newest() -> int:
    """As `latest`, of both databases: they have the same numbers."""
    return latest("sqlite")


def is_behind(dialect: Dialect, known: Mapping[str, str]) -> bool:
    """Whether there is something to create or upgrade."""
    return not known or int(known["version"]) < latest(dialect)


def upgrade(dialect: Dialect, tx: Session, place: str, script: Callable[[str], object]) -> int:
    """Applies what is missing, inside the caller's transaction and under its lock; returns the new version."""
    known = tx.known()  # here, inside the lock: another process may have been first
    if not is_behind(dialect, known):
        admit(dialect, known, place)
        return int(known["version"])
    if "closed" in known:
        raise DatabaseClosed(f"{place}: {known['closed']}")
    version = int(known.get("version", 0))
    for number, text in sorted(migrations(dialect).items()):
        if number > version:
            script(text)
    tx.run("meta_set", name="version", value=str(latest(dialect)))
    tx.run("meta_set", name="oldest_code", value=str(max(OLDEST_CODE, int(known.get("oldest_code", 0)))))
    return latest(dialect)


def admit(dialect: Dialect, known: Mapping[str, str], place: str) -> None:
    """Refuses tables that this code must not write to; merely newer ones are used, with a warning."""
    version, oldest_code, ours = int(known["version"]), int(known["oldest_code"]), latest(dialect)
    if ours < oldest_code:
        raise SchemaTooNew(
            f"{place}: its tables (version {version}) need a Dray that knows version {oldest_code}; "
            f"this one knows {ours}. Nothing was written: upgrade Dray here"
        )
    if version < ours:
        raise SchemaMissing(
            f"{place}: its tables are at version {version}, this Dray needs {ours}; call app.init() once, or run "
            f"{command('migrate', place)}"
        )
    if version > ours:
        log.warning("%s: its tables (version %d) are newer than this Dray knows (%d)", place, version, ours)


_MADE = re.compile(r"^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW) (\w+)", re.MULTILINE)

_FILE = """\
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
"""
SCHEMA = """\
CREATE SCHEMA IF NOT EXISTS "{schema}";
SET LOCAL search_path TO "{schema}";
"""
_VERSION = """\
INSERT INTO dray_meta (name, value) VALUES ('version', '{version}'), ('oldest_code', '{oldest_code}')
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
"""
_BEGIN: dict[Dialect, str] = {"sqlite": "BEGIN IMMEDIATE;\n", "postgres": "BEGIN;\n"}


def names(dialect: Dialect, *, indexes: bool = True) -> set[str]:
    """The tables and views of the newest version, and its indexes."""
    made = [found for text in migrations(dialect).values() for found in _MADE.findall(text)]
    return {name for kind, name in made if indexes or kind != "INDEX"}


def scripts(dialect: Dialect, *, schema: str | None, after: int, one_by_one: bool) -> dict[int, str]:
    """What brings tables of a version to the newest one, by version: in one script, or one for each version."""
    texts = {number: text for number, text in sorted(migrations(dialect).items()) if number > after}
    if texts and not one_by_one:
        texts = {latest(dialect): "\n".join(texts.values())}
    return {number: _script(dialect, schema, number, text) for number, text in texts.items()}


def _script(dialect: Dialect, schema: str | None, version: int, text: str) -> str:
    makes_all = "CREATE TABLE dray_meta" in text
    return "".join(
        (
            _FILE if dialect == "sqlite" and makes_all else "",
            _BEGIN[dialect],
            SCHEMA.format(schema=schema) if schema is not None else "",
            text,
            _VERSION.format(version=version, oldest_code=OLDEST_CODE),
            "COMMIT;\n",
        )
    )
