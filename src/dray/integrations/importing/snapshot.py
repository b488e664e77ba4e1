"""The source as it is at one moment, in a private SQLite database that vanishes with its connection.

The source is opened for reading only, and for no longer than it takes to copy it: an import of 100,000 jobs must
keep none of its workers waiting, and a SQLite file without a write-ahead log has its writers wait for every reader.
The copy is on disk where it is large, and it has the indexes that the import needs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from dray.address import PostgresAddress, SqliteAddress, parse_address
from dray.errors import ConfigError, StorageDamaged, StorageFull, StorageLocked, StorageUnavailable

try:
    import psycopg
    from psycopg import sql
except ModuleNotFoundError:  # an extra: SQLite does without
    psycopg: Any = None
    sql: Any = None

_PATIENCE_S = 30.0
_ROWS = 1_000  # of a server's that are in memory at once

Tables = Mapping[str, Sequence[str]]  # table -> its columns, as a server is asked for them


def open_file(path: Path) -> sqlite3.Connection:
    """A copy of a SQLite file."""
    path = path.resolve()
    if not path.is_file():
        raise StorageUnavailable(f"{path}: there is no such file; name the database file to import from")
    try:
        if _is_at_rest(path):
            before = _signs(path)
            copy = _copied(path, "mode=ro&immutable=1")
            if _signs(path) == before:
                return copy
            copy.close()  # a program has begun to write
        return _copied(path, "mode=ro")
    except sqlite3.Error as error:
        raise _failure(str(path), error) from error


def _is_at_rest(path: Path) -> bool:
    """Whether a file has a write-ahead log, and no program has it open. SQLite would make two files beside it, and
    leave them there."""
    with path.open("rb") as file:
        is_logged = file.read(20)[18:] == b"\x02\x02"
    return is_logged and not _log(path).exists()


def _signs(path: Path) -> tuple[bool, int, int]:
    stat = path.stat()
    return _log(path).exists(), stat.st_mtime_ns, stat.st_size


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _copied(path: Path, how: str) -> sqlite3.Connection:
    copy = _empty()
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, timeout=_PATIENCE_S)) as source:
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master")  # waits for a writer; `backup` would for ever
            source.backup(copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _failure(place: str, error: sqlite3.Error) -> Exception:
    code: int = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"{place}: there is no room for a copy of it; set SQLITE_TMPDIR to a folder with more")
    if code & 0xFF == sqlite3.SQLITE_BUSY:
        return StorageLocked(f"{place}: another program has kept it locked for {_PATIENCE_S:.0f} s; stop it first")
    if code == sqlite3.SQLITE_READONLY_ROLLBACK:
        what = "a program was stopped while it wrote to it; open it once with the program that it is of, to undo that"
        return StorageUnavailable(f"{place}: {what}")
    if code & 0xFF == sqlite3.SQLITE_CORRUPT:
        return _damaged(place, str(error))
    return StorageUnavailable(f"{place}: cannot be read as a SQLite database: {error}")


def _damaged(place: str, what: str) -> Exception:
    return StorageDamaged(f"{place}: the file is damaged: {what}; import a backup, or what sqlite3's .recover saves")


@contextmanager
def read_with_care(place: str) -> Generator[None]:
    """Around what reads a copy first: the file may have been damaged."""
    try:
        yield
    except sqlite3.Error as error:
        raise _failure(place, error) from error


def check_sound(copy: sqlite3.Connection, place: str, table: str) -> None:
    """Refuses a damaged table, before a part of it is carried."""
    (found,) = copy.execute(f"PRAGMA quick_check('{table}')").fetchone()
    if found != "ok":
        raise _damaged(place, f"table {table}: {found.splitlines()[-1]}")


def open_url(url: str, tables: Tables) -> sqlite3.Connection:
    """A copy of the database that SQLAlchemy's address names; of a server's, only of these tables."""
    address = parse_address(_without_driver(url))
    if isinstance(address, SqliteAddress):
        return open_file(address.path)
    return _open_server(address, tables)


def place(url: str) -> str:
    """The address, as it may be shown."""
    address = parse_address(_without_driver(url))
    return str(address.path) if isinstance(address, SqliteAddress) else address.place


def _without_driver(url: str) -> str:
    """SQLAlchemy names the driver too: `postgresql+psycopg2://`."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme.partition('+')[0]}{mark}{rest}"


def _open_server(address: PostgresAddress, tables: Tables) -> sqlite3.Connection:
    if psycopg is None:
        raise ConfigError("PostgreSQL needs psycopg 3: pip install 'dray[postgres]'")
    copy = _empty()
    try:
        with psycopg.connect(address.conninfo, connect_timeout=30) as source:
            source.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            source.read_only = True
            if address.schema is not None:
                source.execute("SELECT set_config('search_path', %s, false)", [address.schema])
            for table, columns in tables.items():
                _copy_table(source, copy, table, columns)
            source.rollback()
    except psycopg.Error as error:
        copy.close()
        raise StorageUnavailable(f"{address.place}: cannot be read: {str(error).strip()}") from error
    except BaseException:
        copy.close()
        raise
    return copy


def _copy_table(source: Any, copy: sqlite3.Connection, table: str, columns: Sequence[str]) -> None:
    """Copies a table if it is there, with those of the columns that it has."""
    there = source.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        [table],
    ).fetchall()
    found = [name for (name,) in there]
    if not found:
        return
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in found)
    table_sql = f'CREATE TABLE "{table}" ({names})'
    copy.execute(table_sql)
    wanted = [_selected(name) if name in columns else sql.SQL("NULL") for name in found]
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(wanted), sql.Identifier(table))
    with source.cursor(name="dray_import") as cursor:
        cursor.itersize = _ROWS
        cursor.execute(query)
        insert = f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(found))})'  # noqa: S608 - the name is ours
        copy.executemany(insert, _plain_rows(cursor))
    copy.commit()


def _selected(name: str) -> Any:
    """A column as it is read. JSON stays text, to be read as carefully as that of a file.

    A moment was written by SQLAlchemy into a column without a time zone: the server has stored it in the zone of its
    session, and in the same zone it is the same moment again.
    """
    if name in {"input", "output", "error"}:
        return sql.SQL("CAST({} AS text)").format(sql.Identifier(name))
    if name.endswith(("_at", "_date_time")):
        return sql.SQL("CAST({} AS timestamptz)").format(sql.Identifier(name))
    return sql.Identifier(name)


def _plain_rows(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    return (tuple(_plain(value) for value in row) for row in rows)


def _plain(value: Any) -> Any:
    """A value as SQLAlchemy stores it in SQLite."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return value.hex if isinstance(value, UUID) else value


def _empty() -> sqlite3.Connection:
    """A database without a name: SQLite keeps it in a file that it has unlinked."""
    copy = sqlite3.connect("")
    copy.row_factory = sqlite3.Row
    copy.text_factory = lambda raw: raw.decode(errors="replace")
    return copy


def columns_of(copy: sqlite3.Connection, table: str) -> list[str]:
    """The columns of a table; none: it is not there."""
    return [row[0] for row in copy.execute("SELECT name FROM pragma_table_info(?)", (table,))]
