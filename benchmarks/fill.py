"""Fills a database with many jobs by plain SQL, as if it had been in use: through `enqueue` it would take hours.

The rows are valid, and their ids are ordered by time as Dray's are.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from benchmarks.arena import SIX_JSON
from benchmarks.raw import TASK, WORKER
from dray.instants import DAY, HOUR

UNKNOWN_TASK = "benchmarks.tasks.unknown"
_CHUNK = 250_000  # rows in one transaction
_PARENT = "00000000-0000-7000-8000-000000000000"  # for which all waiting jobs wait


@dataclass(frozen=True)
class Kind:
    """One kind of jobs."""

    state: str
    task: str = TASK
    priority: int = 0
    age_us: int = HOUR  # of the first
    span_us: int = HOUR // 2  # from the first to the last
    delay_us: int = 0  # from the enqueue until it is due
    waiting_on: int = 0


KINDS = {
    "queued": Kind("queued"),
    "scheduled": Kind("scheduled", delay_us=2 * DAY),
    "waiting": Kind("waiting", waiting_on=1),
    "of an unknown task": Kind("queued", UNKNOWN_TASK, priority=9),
    "finished": Kind("completed", age_us=6 * DAY, span_us=5 * DAY),
    "to be pruned": Kind("completed", age_us=40 * DAY, span_us=5 * DAY),
}

_COLUMNS: LiteralString = """id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, waiting_on,
    attempt, claim, worker_id, created_at, updated_at, started_at, finished_at, result"""
# An id is the time in milliseconds, then the microseconds, then chance.
_SQLITE: LiteralString = f"""
WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :end),
made (at) AS (SELECT :base + n * :span / :count FROM numbers)
INSERT INTO dray_jobs ({_COLUMNS})
SELECT printf('%08x-%04x-7%03x-8%03x-%012x', at / 1000 >> 16, at / 1000 & 65535, at % 1000 * 4,
        abs(random()) % 4096, abs(random()) % 281474976710656),
    :task, 'default', :state, :priority, at + :delay, :args, 3, 3, :waiting_on,
    :ended, :ended, CASE WHEN :ended THEN :worker END, at, at, CASE WHEN :ended THEN at END,
    CASE WHEN :ended THEN at END, CASE WHEN :ended THEN 'null' END
FROM made"""
_POSTGRES: LiteralString = f"""
INSERT INTO dray_jobs ({_COLUMNS})
SELECT CAST(lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us %% 1000 * 4), 3, '0') || '8'
        || substr(md5(random()::text), 1, 15) AS uuid),
    %(task)s, 'default', %(state)s, %(priority)s, at + %(delay)s * interval '1 microsecond', %(args)s, 3, 3,
    %(waiting_on)s, %(ended)s, %(ended)s, CASE WHEN %(ended)s = 1 THEN CAST(%(worker)s AS uuid) END, at, at,
    CASE WHEN %(ended)s = 1 THEN at END, CASE WHEN %(ended)s = 1 THEN at END, CASE WHEN %(ended)s = 1 THEN 'null' END
FROM (
    SELECT us, timestamptz 'epoch' + us * interval '1 microsecond' AS at FROM (
        SELECT %(base)s + n * %(span)s / %(count)s AS us
        FROM generate_series(CAST(%(first)s AS bigint), %(end)s - 1) AS n
    ) AS numbers
) AS made"""
_PARENT_ROW = f"""
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, created_at, updated_at)
SELECT '{_PARENT}', task, queue, 'scheduled', 0, $in_a_week, 3, 3, created_at, updated_at FROM dray_jobs LIMIT 1"""
_EDGES = f"""
INSERT INTO dray_edges (parent_id, child_id) SELECT '{_PARENT}', id FROM dray_jobs WHERE state = 'waiting'"""


def fill(url: str, kind: str, count: int) -> None:
    """Adds jobs of a kind."""
    if not count:
        return
    given = KINDS[kind]
    values: dict[str, Any] = {
        "task": given.task,
        "state": given.state,
        "priority": given.priority,
        "base": time.time_ns() // 1_000 - given.age_us,
        "span": given.span_us,
        "count": count,
        "delay": given.delay_us,
        "waiting_on": given.waiting_on,
        "ended": int(given.state == "completed"),
        "worker": WORKER,
        "args": SIX_JSON,
    }
    chunks = [values | {"first": n, "end": min(n + _CHUNK, count)} for n in range(0, count, _CHUNK)]
    if url.startswith("sqlite"):
        _fill_sqlite(url, chunks, has_parent=bool(given.waiting_on))
    else:
        _fill_postgres(url, chunks, has_parent=bool(given.waiting_on))


def _fill_sqlite(url: str, chunks: list[dict[str, Any]], *, has_parent: bool) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        for chunk in chunks:
            connection.execute(_SQLITE, chunk)
        if has_parent:
            connection.execute(_PARENT_ROW.replace("$in_a_week", f"created_at + {7 * DAY}"))
            connection.execute(_EDGES)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _fill_postgres(url: str, chunks: list[dict[str, Any]], *, has_parent: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit TO off")
        for chunk in chunks:
            connection.execute(_POSTGRES, chunk)
        if has_parent:
            connection.execute(_PARENT_ROW.replace("$in_a_week", "created_at + interval '7 days'").encode())
            connection.execute(_EDGES.encode())
        connection.execute("VACUUM ANALYZE dray_jobs")
        connection.execute("CHECKPOINT")


def bytes_per_job(url: str) -> dict[str, float]:
    """Returns the size of the database for each job: the file, or the table with its TOAST and its indexes."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            sizes = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
            (size,) = connection.execute(sizes).fetchone()
            (jobs,) = connection.execute("SELECT count(*) FROM dray_jobs").fetchone()
        return {"file": size / jobs}
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT pg_table_size('dray_jobs')::float8 / count(*), pg_indexes_size('dray_jobs')::float8 / count(*)"
            " FROM dray_jobs"
        ).fetchone()
    assert row is not None
    return {"table": row[0], "indexes": row[1]}
