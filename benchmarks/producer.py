"""A process that enqueues `stamp` jobs one at a time and measures how long it takes until each body starts.

``python -m benchmarks.producer WAY PAUSE...``: one job after each pause, in seconds. DRAY_URL and DRAY_BENCH_SOCKET
name the database and the socket to listen on. Prints `Measured` as JSON. It is a separate process so that a library
can be preloaded into it, and so that no other thread runs next to the one that measures.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psycopg

from benchmarks import bare
from benchmarks.tasks import SOCKET, app, stamp
from dray.app_interface import core_of

_PATIENCE = 10.0  # seconds after which a job counts as missed
_MOST_MISSED = 3  # then something is wrong, and going on would only take time
_SQLITE_INSERT = """
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, args, created_at,
    updated_at) VALUES (?, 'benchmarks.tasks.stamp', 'default', 'queued', 0, ?, 3, 3, ?, ?, ?)"""
_POSTGRES_INSERT = """
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, args, created_at,
    updated_at) VALUES (%s, 'benchmarks.tasks.stamp', 'default', 'queued', 0, now(), 3, 3, %s, now(), now())"""


@dataclass
class Measured:
    """One value per job, in nanoseconds."""

    calls: list[int] = field(default_factory=list[int])  # from the call to the commit
    pickups: list[int] = field(default_factory=list[int])  # from the commit to the body's start
    missed: int = 0


Send = Callable[[int], int]  # sends the work of this number; returns when its commit returned, by time.monotonic_ns


@contextmanager
def by_enqueue() -> Generator[Send]:
    """Uses `enqueue`; the time of the commit is taken before Dray notifies other processes."""
    committed_at = 0

    def note(_: object) -> None:
        nonlocal committed_at
        committed_at = time.monotonic_ns()

    def send(number: int) -> int:
        stamp.enqueue(number)
        return committed_at

    core_of(app).on_enqueue.append(note)
    yield send


@contextmanager
def by_connection() -> Generator[Send]:
    """Uses `enqueue` in our own transaction, with our own commit."""
    connection = _sqlite() if _path() else psycopg.connect(app.url, autocommit=True)

    def send(number: int) -> int:
        connection.execute("BEGIN")
        stamp.using(connection=connection).enqueue(number)
        connection.execute("COMMIT")
        return time.monotonic_ns()

    yield send
    connection.close()


@contextmanager
def by_sql() -> Generator[Send]:
    """Inserts the whole row with the bare driver."""
    if _path() is None:
        with psycopg.connect(app.url, autocommit=True) as postgres:

            def send_postgres(number: int) -> int:
                postgres.execute(_POSTGRES_INSERT, (core_of(app).new_id(), json.dumps({"number": number})))
                return time.monotonic_ns()

            yield send_postgres
        return
    sqlite = _sqlite()

    def send_sqlite(number: int) -> int:
        now = time.time_ns() // 1_000
        sqlite.execute(_SQLITE_INSERT, (core_of(app).new_id(), now, json.dumps({"number": number}), now, now))
        return time.monotonic_ns()

    yield send_sqlite
    sqlite.close()


def by_datagram() -> AbstractContextManager[Send]:
    return bare.datagrams(os.environ[SOCKET])


def by_loop() -> AbstractContextManager[Send]:
    path = _path()
    if path is None:
        return bare.postgres_loop(app.url, os.environ[SOCKET])
    return bare.sqlite_loop(path, os.environ[SOCKET])


WAYS: dict[str, Callable[[], AbstractContextManager[Send]]] = {
    "enqueue": by_enqueue,
    "connection": by_connection,
    "sql": by_sql,
    "datagram": by_datagram,
    "loop": by_loop,
}


def _path() -> str | None:
    scheme, _, path = app.url.partition(":///")
    return path if scheme == "sqlite" else None


def _sqlite() -> sqlite3.Connection:
    return sqlite3.connect(_path() or "", isolation_level=None, timeout=30)


def heard(ear: socket.socket, number: int) -> int | None:
    """Returns when the work of this number started; None if it did not."""
    while True:
        try:
            said, _, at = ear.recv(100).decode().partition(" ")
        except TimeoutError:
            return None
        if int(said) == number:
            return int(at)


def measure(send: Send, pauses: Sequence[float], ear: socket.socket) -> Measured:
    measured = Measured()
    for number, pause in enumerate(pauses):
        time.sleep(pause)
        called_at = time.monotonic_ns()
        committed_at = send(number)
        started_at = heard(ear, number)
        if started_at is None:
            measured.missed += 1
            if measured.missed == _MOST_MISSED:
                return measured
            continue
        measured.calls.append(committed_at - called_at)
        measured.pickups.append(started_at - committed_at)
    return measured


def main() -> None:
    way, *pauses = sys.argv[1:]
    path = Path(os.environ[SOCKET])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(path))
        ear.settimeout(_PATIENCE)
        try:
            with WAYS[way]() as send:
                measured = measure(send, [float(pause) for pause in pauses], ear)
        finally:
            path.unlink()
    print(json.dumps(asdict(measured)))


if __name__ == "__main__":
    main()
