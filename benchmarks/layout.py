"""Which physical layout the jobs table should have on SQLite: the measurement behind migration 1.

Four layouts from Dray's own DDL: an ordinary table or one without rowid; arguments in the row or, over 1 KiB, in
another table. Raw loops, so that only the layout differs. Prints a Markdown table.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import raw
from benchmarks.places import sqlite_place
from benchmarks.storage import IDS, SIZES, args_of
from dray.backends.statements import sql_files

ROUNDS = 5
LARGE = 1_024
LAYOUTS = ("rowid", "without rowid", "rowid + payloads", "without rowid + payloads")
LOAD = "SELECT job_id, args FROM dray_payloads WHERE job_id IN (SELECT value FROM json_each(?))"


def make(path: Path, layout: str) -> sqlite3.Connection:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    migration, *_ = sql_files("sqlite", "migrations")
    text = migration.read_text(encoding="utf-8")
    if layout.startswith("without"):
        head, jobs, rest = text.partition("CREATE TABLE dray_jobs (")
        text = head + jobs + rest.replace(") STRICT;", ") STRICT, WITHOUT ROWID;", 1)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    connection.executescript(text)
    return connection


def fill(connection: sqlite3.Connection, jobs: int, args: str, *, beside: bool) -> None:
    ids = [IDS.new() for _ in range(jobs)]
    raw.sqlite_insert(connection, raw.sqlite_rows(ids, "{}" if beside else args))
    if beside:
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO dray_payloads (job_id, args) VALUES (?, ?)", [(i, args) for i in ids])
        connection.execute("COMMIT")


def drain(connection: sqlite3.Connection, jobs: int, batch: int, *, beside: bool) -> float:
    connection.execute("PRAGMA synchronous = NORMAL")
    started, done, held = time.perf_counter(), 0, list[Any]()
    while done < jobs:
        now = time.time_ns() // 1_000
        connection.execute("BEGIN IMMEDIATE")
        rows = [(now, now, now, "null", row[0], raw.WORKER, row[1]) for row in held]
        done += connection.executemany(raw.SQLITE_SETTLE, rows).rowcount if rows else 0
        held = connection.execute(raw.SQLITE_CLAIM, (raw.WORKER, now, now, batch)).fetchall()
        if beside and held:
            connection.execute(LOAD, ('["' + '","'.join(row[0] for row in held) + '"]',)).fetchall()
        connection.execute("COMMIT")
    return done / (time.perf_counter() - started)


def measure(path: Path, layout: str, size: int, jobs: int) -> float:
    beside = "payloads" in layout and size > LARGE
    connection = make(path, layout)
    fill(connection, jobs + 100, args_of(size), beside=beside)
    rate = drain(connection, jobs, 100, beside=beside)
    connection.close()
    return rate


def main() -> None:
    print(f"| arguments | {' | '.join(LAYOUTS)} |")
    print("|---|" + "---|" * len(LAYOUTS))
    with sqlite_place() as url:
        path = Path(url.removeprefix("sqlite:///"))
        for label, size in SIZES.items():
            jobs = 20_000 if size < 10_000 else 5_000
            rounds = [[measure(path, layout, size, jobs) for layout in LAYOUTS] for _ in range(ROUNDS)]
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            print(f"| {label} | {' | '.join(f'{rate:,.0f}' for rate in medians)} |", flush=True)


if __name__ == "__main__":
    main()
