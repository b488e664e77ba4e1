"""The raw loops: what a careful engineer would write by hand for the same row, batch and durability.

Same tables, same indexes, same task name, same columns read and written, ids in order, fenced by the claim, bare
driver, no model objects, no attempts, no edges, no expiry, no promotion, no pause, no look-ahead. Rows are ready
before the clock starts.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, LiteralString

import psycopg

WORKER = str(uuid.UUID(int=1))
TASK: LiteralString = "benchmarks.tasks.noop"  # of every job, here and in the worker

Row = tuple[Any, ...]

SQLITE_CLAIM = f"""
UPDATE dray_jobs SET state = 'running', worker_id = ?, claim = claim + 1, attempt = attempt + 1, started_at = ?,
    updated_at = ?
WHERE id IN (SELECT id FROM dray_jobs WHERE state = 'queued' AND queue = 'default' AND task = '{TASK}'
    ORDER BY priority DESC, run_at, id LIMIT ?)
RETURNING id, claim, task, queue, args, attempt, max_attempts, crashes, max_crashes, timeout, priority, run_at"""
SQLITE_SETTLE = """
UPDATE dray_jobs SET state = 'completed', started_at = ?, finished_at = ?, updated_at = ?, result = ?,
    unique_lock = NULL
WHERE id = ? AND worker_id = ? AND claim = ? AND state = 'running'"""
SQLITE_INSERT = f"""
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, created_at,
    updated_at) VALUES (?, '{TASK}', 'default', 'queued', 0, ?, ?, 3, 3, ?, ?)"""

POSTGRES_CLAIM: LiteralString = f"""
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE state = 'queued' AND queue = 'default' AND task = '{TASK}'
    ORDER BY priority DESC, run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dray_jobs AS j SET state = 'running', worker_id = %s, claim = claim + 1, attempt = attempt + 1,
    started_at = clock_timestamp(), updated_at = clock_timestamp()
FROM picked WHERE j.id = picked.id
RETURNING j.id::text, claim, task, queue, args, attempt, max_attempts, crashes, max_crashes, timeout, priority,
    run_at"""
POSTGRES_SETTLE: LiteralString = """
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS r(id uuid, claim integer, result text)
), locked AS MATERIALIZED (
    SELECT j.id FROM dray_jobs AS j JOIN given AS g ON j.id = g.id AND j.claim = g.claim AND j.worker_id = %s
        AND j.state = 'running' ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE dray_jobs AS j SET state = 'completed', started_at = clock_timestamp(), finished_at = clock_timestamp(),
    updated_at = clock_timestamp(), result = g.result, unique_lock = NULL
FROM given AS g JOIN locked AS l ON l.id = g.id WHERE j.id = g.id RETURNING j.id::text"""
_COLUMNS: LiteralString = """
id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, created_at, updated_at"""
POSTGRES_COPY: LiteralString = f"COPY dray_jobs ({_COLUMNS}) FROM STDIN"
POSTGRES_INSERT: LiteralString = f"""
INSERT INTO dray_jobs ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"""


def sqlite_rows(ids: Iterable[str], args: str) -> list[Row]:
    now = time.time_ns() // 1_000
    return [(i, now, args, now, now) for i in ids]


def sqlite_insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Inserts all rows in one transaction with executemany."""
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(SQLITE_INSERT, rows)
    connection.execute("COMMIT")


def sqlite_insert_each(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Inserts each row in a transaction of its own."""
    for row in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(SQLITE_INSERT, row)
        connection.execute("COMMIT")


def sqlite_drain(connection: sqlite3.Connection, batch: int, jobs: int) -> int:
    """Settles the last batch and claims the next in one NORMAL transaction, until `jobs` are done."""
    connection.execute("PRAGMA synchronous = NORMAL")
    done, held = 0, list[Any]()
    while done < jobs:
        now = time.time_ns() // 1_000
        connection.execute("BEGIN IMMEDIATE")
        if held:
            rows = [(now, now, now, "null", row[0], WORKER, row[1]) for row in held]
            done += connection.executemany(SQLITE_SETTLE, rows).rowcount
        held = connection.execute(SQLITE_CLAIM, (WORKER, now, now, batch)).fetchall()
        connection.execute("COMMIT")
    return done


def postgres_rows(ids: Iterable[str], args: str) -> list[Row]:
    now = datetime.now(UTC).isoformat()
    return [(i, TASK, "default", "queued", 0, now, args, 3, 3, now, now) for i in ids]


def postgres_insert(connection: psycopg.Connection, rows: list[Row]) -> None:
    """Inserts all rows in one transaction with COPY."""
    with connection.transaction(), connection.cursor().copy(POSTGRES_COPY) as copy:
        for row in rows:
            copy.write_row(row)


def postgres_insert_each(connection: psycopg.Connection, rows: list[Row]) -> None:
    """Inserts each row in a transaction of its own: BEGIN, INSERT, COMMIT."""
    for row in rows:
        with connection.transaction():
            connection.execute(POSTGRES_INSERT, row)


def postgres_insert_autocommit(connection: psycopg.Connection, rows: list[Row]) -> None:
    """Inserts each row by a statement that commits itself: one round trip instead of three."""
    for row in rows:
        connection.execute(POSTGRES_INSERT, row)


def postgres_drain(connection: psycopg.Connection, batch: int, jobs: int) -> int:
    """Settles and claims in one asynchronous transaction and one round trip, until `jobs` are done."""
    done, held = 0, list[Any]()
    while done < jobs:
        settled = None
        with connection.pipeline():
            connection.execute("BEGIN")
            connection.execute("SET LOCAL synchronous_commit TO off")
            if held:
                rows = json.dumps([{"id": row[0], "claim": row[1], "result": "null"} for row in held])
                settled = connection.execute(POSTGRES_SETTLE, (rows, WORKER))
            claimed = connection.execute(POSTGRES_CLAIM, (batch, WORKER))
            connection.execute("COMMIT")
        done += len(settled.fetchall()) if settled is not None else 0
        held = claimed.fetchall()
    return done
