"""The database behind the contract: stored rows, and what no verb does (damage, held locks)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import psycopg

from dray.backends.postgres.database import PostgresDatabase
from dray.backends.postgres.session import PAUSE_SPACE, WORKER_SPACE, lock_key
from dray.backends.sqlite.database import SqliteDatabase
from tests.prompt import prompt

if TYPE_CHECKING:
    from dray.backends import Backend

Execute = Callable[..., list[tuple[Any, ...]]]

_TABLES_OF_A_JOB = {
    "jobs": "SELECT * FROM dray_jobs WHERE id = ?",
    "attempts": "SELECT * FROM dray_attempts WHERE job_id = ? ORDER BY claim",
    "logs": "SELECT * FROM dray_logs WHERE job_id = ? ORDER BY seq",
}
_PAYLOADS = "SELECT * FROM dray_payloads WHERE job_id = ?"


@contextmanager
def transaction(backend: Backend) -> Generator[Execute]:
    """Opens a separate transaction: yields `execute(sql, *values)` with `?` placeholders; commits at the end."""
    if isinstance(backend.db, SqliteDatabase):
        with closing(sqlite3.connect(backend.db.path, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield partial(_on_sqlite, connection)
            connection.execute("COMMIT")
        return
    db = cast("PostgresDatabase", backend.db)
    with prompt(db._conninfo, db.schema) as connection:
        yield partial(_on_postgres, connection)


def _on_sqlite(connection: sqlite3.Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def _on_postgres(connection: psycopg.Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    cursor = connection.execute(sql.replace("?", "%s").encode(), values)
    return cursor.fetchall() if cursor.description else []


def run(backend: Backend, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Runs and commits one statement."""
    with transaction(backend) as execute:
        return execute(sql, *values)


def stored(backend: Backend, job_id: str) -> dict[str, list[tuple[Any, ...]]]:
    """Returns all rows that belong to a job."""
    tables = _TABLES_OF_A_JOB | ({"payloads": _PAYLOADS} if isinstance(backend.db, SqliteDatabase) else {})
    with transaction(backend) as execute:
        return {table: execute(sql, job_id) for table, sql in tables.items()}


def forget_claim(backend: Backend, job_id: str) -> None:
    """Undoes a claim, as a server crash does to a claim that had not reached the disk."""
    run(
        backend,
        "UPDATE dray_jobs SET state = 'queued', worker_id = NULL, started_at = NULL, claim = claim - 1, "
        "attempt = attempt - 1 WHERE id = ? AND state = 'running'",
        job_id,
    )


def forget_worker(backend: Backend, worker_id: str) -> None:
    """Removes a worker's row."""
    run(backend, "DELETE FROM dray_workers WHERE id = ?", worker_id)


@contextmanager
def claim_under_way(backend: Backend, queue: str) -> Generator[None]:
    """Another worker's claim on a queue, begun and not committed."""
    with transaction(backend) as execute:
        if isinstance(backend.db, PostgresDatabase):
            execute("SELECT pg_advisory_xact_lock_shared(?, ?)", PAUSE_SPACE, lock_key(queue))
        yield


@contextmanager
def pause_under_way(backend: Backend, queue: str) -> Generator[None]:
    """A pause of a queue, begun and not committed."""
    with transaction(backend) as execute:
        if isinstance(backend.db, PostgresDatabase):
            execute("SELECT pg_advisory_xact_lock(?, ?)", PAUSE_SPACE, lock_key(queue))
        execute("UPDATE dray_queues SET paused_at = created_at WHERE name = ?", queue)
        yield


@contextmanager
def job_held(backend: Backend, job_id: str) -> Generator[None]:
    """An open transaction that has changed a job's row."""
    with transaction(backend) as execute:
        execute("UPDATE dray_jobs SET description = 'held' WHERE id = ?", job_id)
        yield


@contextmanager
def postgres_proof_of_life(backend: Backend, worker_id: str) -> Generator[None]:
    """Holds the advisory lock that a worker's own connection takes on PostgreSQL."""
    with transaction(backend) as execute:
        execute("SELECT pg_advisory_xact_lock(?, ?)", WORKER_SPACE, lock_key(worker_id))
        yield
