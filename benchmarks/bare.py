"""Pickup by hand: how long the machine needs to wake a process, and how long a simple hand-written loop needs.

Each forks a process that waits and reports when it has received the work, as a `stamp` job does.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import LiteralString

import psycopg

from benchmarks import raw
from dray.clock import Ids, SystemClock

_ids = Ids(SystemClock())
_POLL = 0.001
_PR_SET_PDEATHSIG = 1  # the child dies with this process

Got = Callable[[int], None]  # work of this number has arrived


@contextmanager
def _forked(wait: Callable[[Got], None], ear: str) -> Generator[None]:
    """Runs `wait` in another process until the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
                wait(lambda number: _say(mouth, ear, number))
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _say(mouth: socket.socket, ear: str, number: int) -> None:
    mouth.sendto(f"{number} {time.monotonic_ns()}".encode(), ear)


@contextmanager
def datagrams(ear: str) -> Generator[Callable[[int], int]]:
    """Sends a datagram to a waiting process: no database at all."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def wait(got: Got) -> None:
        while True:
            got(int(theirs.recv(100)))

    def send(number: int) -> int:
        sent_at = time.monotonic_ns()
        ours.send(str(number).encode())
        return sent_at

    with ours, theirs, _forked(wait, ear):
        yield send


@contextmanager
def sqlite_loop(path: str, ear: str) -> Generator[Callable[[int], int]]:
    """Polls for a change every millisecond, then claims."""

    def wait(got: Got) -> None:
        connection = sqlite3.connect(path, isolation_level=None, timeout=30)
        connection.execute("PRAGMA synchronous = NORMAL")
        seen = None
        while True:
            version = connection.execute("PRAGMA data_version").fetchone()
            now = time.time_ns() // 1_000
            if version != seen:
                seen = version
                for row in connection.execute(raw.SQLITE_CLAIM, (raw.WORKER, now, now, 100)).fetchall():
                    got(json.loads(row[4])["number"])
            time.sleep(_POLL)

    with _forked(wait, ear):
        connection = sqlite3.connect(path, isolation_level=None, timeout=30)

        def send(number: int) -> int:
            now = time.time_ns() // 1_000
            connection.execute(raw.SQLITE_INSERT, (_ids.new(), now, json.dumps({"number": number}), now, now))
            return time.monotonic_ns()

        yield send
        connection.close()


@contextmanager
def postgres_loop(url: str, ear: str) -> Generator[Callable[[int], int]]:
    """Waits for a NOTIFY that is sent after the commit, then claims."""

    def wait(got: Got) -> None:
        ear, connection = psycopg.connect(url, autocommit=True), psycopg.connect(url, autocommit=True)
        ear.execute("LISTEN bench")
        connection.execute("SET synchronous_commit TO off")
        for _ in ear.notifies():
            for row in connection.execute(raw.POSTGRES_CLAIM, (100, raw.WORKER)).fetchall():
                got(json.loads(row[4])["number"])

    with _forked(wait, ear), psycopg.connect(url, autocommit=True) as connection:

        def send(number: int) -> int:
            job = (_ids.new(), json.dumps({"number": number}))
            connection.execute(_INSERT, job)
            committed_at = time.monotonic_ns()
            connection.execute("NOTIFY bench")
            return committed_at

        yield send


_INSERT: LiteralString = f"""
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, max_attempts, max_crashes, args, created_at,
    updated_at) VALUES (%s, '{raw.TASK}', 'default', 'queued', 0, now(), 3, 3, %s, now(), now())"""
