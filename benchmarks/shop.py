"""A shop's jobs for the dashboard's measurements: written by plain SQL, as if they had been run.

Most have completed; some failed with a few kinds of errors, some wait in every way there is. The rows are valid, and
the same on both databases.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg

from dray.instants import HOUR, MINUTE, SECOND, to_datetime

RUNNING, WAITING, SCHEDULED, QUEUED = 32, 1_012, 5_040, 54_211  # of a million
FAILED, CANCELLED = 24_000, 4_600
TASKS = [f"{area}.{verb}" for area in ("mail", "webhook", "image", "report") for verb in ("send", "check", "deliver")]
RARE_TASK = "audit.yearly"
QUEUES = ("default", "mail", "webhooks", "images", "reports", "slow")
SCHEDULE = "nightly"
WORKFLOW = str(UUID(int=7 << 64))
ERRORS = (
    ("9c0f1a2b3c4d5e6f", "HTTPStatusError: 503 Service Unavailable for url https://hooks.example.com/v1/hooks/{n}"),
    ("0011223344556677", "TimeoutError: no answer within 30 seconds"),
    ("8899aabbccddeeff", "KeyError: 'customer_{n}'"),
)
COLUMNS = (
    *(
        "id",
        "task",
        "queue",
        "state",
        "reason",
        "priority",
        "run_at",
        "attempt",
        "max_attempts",
        "max_crashes",
        "claim",
    ),
    *("worker_id", "workflow_id", "step", "waiting_on", "schedule", "tags", "created_at", "updated_at"),
    *("started_at", "finished_at", "error", "error_key", "args", "result"),
)
_INSTANTS = {"run_at", "created_at", "updated_at", "started_at", "finished_at"}
_WORKERS = [str(UUID(int=(9 << 64) + n)) for n in range(3)]
_PAST = 24 * HOUR  # from the first job to the last


def rows(count: int, now: int) -> Generator[tuple[Any, ...]]:
    """Yields the jobs, oldest first, in the order of `COLUMNS`."""
    chance = random.Random(14)
    live = {"queued": QUEUED, "scheduled": SCHEDULED, "waiting": WAITING, "running": RUNNING}
    fresh = [state for state, share in live.items() for _ in range(max(1, share * count // 1_000_000))]
    chance.shuffle(fresh)
    ended = count - len(fresh)
    for n in range(count):
        at = now - _PAST + n * _PAST // count
        yield _job(chance, n, at, None if n < ended else fresh[n - ended])


def _job(chance: random.Random, n: int, at: int, live: str | None) -> tuple[Any, ...]:
    lot = chance.random()
    state = live or ("failed" if lot < 0.025 else "cancelled" if lot < 0.03 else "completed")
    kind = int(chance.random() ** 2 * len(TASKS))
    has_ended, has_started = live is None, live in {None, "running"}
    started = at + chance.randrange(SECOND) if has_started and state != "cancelled" else None
    key, error = ERRORS[n % len(ERRORS)] if state == "failed" else (None, None)
    args = {"order": n, "to": f"user{n % 90_000}@example.com", "item": {"sku": f"sku-{n % 500}", "count": n % 7}}
    job = {
        "id": f"{at // 1000 >> 16:08x}-{at // 1000 & 65535:04x}-7{at % 1000 * 4:03x}-8{chance.getrandbits(12):03x}"
        f"-{chance.getrandbits(48):012x}",
        "task": RARE_TASK if n % 100_000 == 50_000 else TASKS[kind],
        "queue": QUEUES[kind % len(QUEUES)],
        "state": state,
        "reason": {"failed": "error", "cancelled": "user"}.get(state),
        "priority": 0,
        "run_at": at + HOUR if state == "scheduled" else at,
        "attempt": int(started is not None) * (3 if state == "failed" else 1),
        "max_attempts": 3,
        "max_crashes": 3,
        "claim": int(started is not None),
        "worker_id": _WORKERS[n % 3] if started is not None else None,
        "workflow_id": WORKFLOW if n % 10_000 == 1 else None,
        "step": f"step-{n}" if n % 10_000 == 1 else None,
        "waiting_on": int(state == "waiting"),
        "schedule": SCHEDULE if n % 1_000 == 2 else None,
        "tags": json.dumps(["vip", f"team-{n % 5}"]) if n % 20 == 3 else None,
        "created_at": at,
        "updated_at": at,
        "started_at": started,
        # Jobs that end in one transaction have one time: here every ten.
        "finished_at": (started or at) // 10 * 10 + n % 13 * MINUTE if has_ended else None,
        "error": error and error.format(n=n),
        "error_key": key,
        "args": json.dumps(args, separators=(",", ":")),
        "result": '{"ok":true}' if state == "completed" else None,
    }
    return tuple(job[column] for column in COLUMNS)


def fill(url: str, count: int) -> None:
    """Fills empty tables with this number of jobs."""
    now = time.time_ns() // 1_000
    if url.startswith("sqlite"):
        _fill_sqlite(url, count, now)
    else:
        _fill_postgres(url, count, now)


def _fill_sqlite(url: str, count: int, now: int) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO dray_workflows VALUES (?, 'etl', ?)", (WORKFLOW, now))
        marks = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT INTO dray_jobs ({', '.join(COLUMNS)}) VALUES ({marks})", rows(count, now))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _fill_postgres(url: str, count: int, now: int) -> None:
    is_instant = [column in _INSTANTS for column in COLUMNS]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit TO off")
        connection.execute("INSERT INTO dray_workflows VALUES (%s, 'etl', %s)", (WORKFLOW, to_datetime(now)))
        with connection.cursor().copy(f"COPY dray_jobs ({', '.join(COLUMNS)}) FROM STDIN".encode()) as copy:
            for row in rows(count, now):
                copy.write_row(
                    [to_datetime(v) if at and v is not None else v for at, v in zip(is_instant, row, strict=True)]
                )
        connection.execute("VACUUM ANALYZE dray_jobs")
        connection.execute("CHECKPOINT")
