"""The raw loops: what a careful engineer would write by hand for the same row, batch and durability.

Same tables, same indexes, same columns read and written, fenced by the claim, bare driver, no model objects, no
attempts, no edges, no expiry, no promotion, no pause, no look-ahead.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from typing import Any, LiteralString

import psycopg

WORKER = str(uuid.UUID(int=1))

SQLITE_CLAIM = """
UPDATE dray_jobs SET state = 'running', worker_id = ?, claim = claim + 1, attempt = attempt + 1, started_at = ?,
    updated_at = ?
WHERE id IN (SELECT id FROM dray_jobs WHERE state = 'queued' AND queue = 'default' AND task = 'bench'
    ORDER BY priority DESC, run_at, id LIMIT ?)
RETURNING id, claim, task, queue, args, attempt, max_attempts, crashes, max_crashes, timeout, priority, run_at"""
SQLITE_SETTLE = """
UPDATE dray_jobs SET state = 'completed', started_at = ?, finished_at = ?, updated_at = ?, result = ?,
    unique_lock = NULL
WHERE id = ? AND worker_id = ? AND claim = ? AND state = 'running'"""
SQLITE_INSERT = """
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, created_at,
    updated_at) VALUES (?, 'bench', 'default', 'queued', 0, ?, ?, 3, 3, ?, ?)"""

POSTGRES_CLAIM: LiteralString = """
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE state = 'queued' AND queue = 'default' AND task = 'bench'
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
POSTGRES_COPY: LiteralString = """
COPY dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, created_at, updated_at)
FROM STDIN"""


def sqlite_insert(connection: sqlite3.Connection, ids: list[str], args: str) -> None:
    """Inserts all rows in one durable transaction with executemany."""
    now = time.time_ns() // 1_000
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(SQLITE_INSERT, [(i, now, args, now, now) for i in ids])
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


def postgres_insert(connection: psycopg.Connection, ids: list[str], args: str) -> None:
    """Inserts all rows in one durable transaction with COPY."""
    now = "now()"
    with connection.transaction(), connection.cursor().copy(POSTGRES_COPY) as copy:
        for i in ids:
            copy.write_row((i, "bench", "default", "queued", 0, now, args, 3, 3, now, now))


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
