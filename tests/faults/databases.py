"""A database with two ways to it: a direct one, and one whose driver fails when it is told to."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg

from dray.backends import Backend, open_backend
from dray.backends.database import Session
from dray.clock import Ids
from tests.backends.world import World
from tests.faults import postgres_proxy, sqlite_driver
from tests.faults.count import Count, Fault
from tests.manual_clock import ManualClock
from tests.schemas import TABLES

BUSY_TIMEOUT = 0.1  # seconds; calls that wait for a lock give up after that
CONNECTIONS = 20  # of one process, on PostgreSQL
_PATIENCE = 5.0

# Queues stay: who has enqueued to one does not add it again.
_EMPTIED = [table for table in TABLES if table != "dray_queues"]


class FaultyDatabase:
    """What the two databases have in common."""

    name: str
    faults: Sequence[Fault]
    lasting: Sequence[Fault]  # those that are tried again and again too
    worst: Sequence[Fault]  # for the last call of an operation
    direct_url: str
    faulty_url: str

    def __init__(self) -> None:
        self.count = Count()
        self.clock = ManualClock()
        self._opened: list[Backend] = []

    def open(self) -> None:
        """Both ways, with the time in the test's hands."""
        direct = open_backend(self.direct_url, clock=self.clock)
        direct.migrate()
        self.world = World(direct, self.clock, Ids(self.clock))
        self._opened.append(direct)
        self.reopen()

    def reopen(self) -> None:
        """The faulty way again, as a process that has just started."""
        for backend in self._opened[1:]:
            backend.close()
        self.faulty = open_backend(self.faulty_url, clock=self.clock, busy_timeout=BUSY_TIMEOUT)
        self._opened[1:] = [self.faulty]

    def close(self) -> None:
        for backend in self._opened:
            backend.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement at a SQL prompt."""
        raise NotImplementedError

    def cut_all(self) -> None:
        """Ends every connection to a server."""

    def run(self, sql: str) -> None:
        """One statement at that prompt."""
        raise NotImplementedError

    def empty(self) -> None:
        """Removes all rows but those of queues, none of which is paused afterwards."""
        raise NotImplementedError

    def check_connections(self) -> None:
        """No transaction is open and no lock is held."""
        raise NotImplementedError

    def check_connections_beside_a_worker(self) -> None:
        """The same beside a running worker, which may be inside a transaction for a moment."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self.check_connections()
            except (AssertionError, sqlite3.OperationalError, psycopg.errors.LockNotAvailable):
                if time.monotonic() > until:
                    raise
            time.sleep(0.005)

    def check_all_places(self) -> None:
        """As many connections as ever can be used at once."""
        raise NotImplementedError


class FaultySqlite(FaultyDatabase):
    """A file. The direct way is the same, while nothing is to fail or by a thread that is spared."""

    name = "SQLite"
    faults = sqlite_driver.FAULTS
    lasting = (sqlite_driver.BUSY, sqlite_driver.IO, sqlite_driver.FULL_UNDONE, sqlite_driver.READ_ONLY)
    worst = (sqlite_driver.IO, sqlite_driver.IO_AFTER)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        path = folder / "jobs.db"
        self.faulty_url = self.direct_url = f"sqlite:///{path}"
        self._prompt = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        self.driver = sqlite_driver.Driver(self.count)
        self.driver.watch(folder)
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.driver.at_work())
        with contextlib.closing(open_backend(self.direct_url)) as backend:
            backend.migrate()

    def close(self) -> None:
        super().close()
        self._prompt.close()
        self._stack.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._prompt.execute(sql).fetchall()

    def run(self, sql: str) -> None:
        self._prompt.execute("PRAGMA busy_timeout = 5000")
        self._prompt.execute(sql)
        self._prompt.execute("PRAGMA busy_timeout = 0")

    def empty(self) -> None:
        self.run("BEGIN IMMEDIATE")
        for table in (*_EMPTIED, "dray_payloads"):
            self._prompt.execute(f"DELETE FROM {table}")
        self._prompt.execute("UPDATE dray_queues SET paused_at = NULL")
        self._prompt.execute("COMMIT")

    def check_connections(self) -> None:
        left_open = len(self.driver.open_transactions())
        assert left_open == 0, "connections were left in a transaction"
        self._prompt.execute("BEGIN IMMEDIATE")
        self._prompt.execute("ROLLBACK")
        # Busy while any connection reads from the log; a statement that was not read to its end does.
        ((is_busy, *_),) = self.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        assert not is_busy, "a connection still reads"

    def check_all_places(self) -> None:
        """One writes, and any number read."""
        use_at_once(self.faulty, 4)


class FaultyPostgres(FaultyDatabase):
    """A schema on a server, and a proxy in front of it."""

    name = "PostgreSQL"
    faults = postgres_proxy.FAULTS
    lasting = (
        postgres_proxy.CUT_BEFORE,
        postgres_proxy.SERIALIZATION,
        postgres_proxy.READ_ONLY,
        postgres_proxy.CANCELLED,
    )
    worst = (postgres_proxy.CUT_BEFORE, postgres_proxy.CUT_AFTER)

    def __init__(self, server: str, schema: str) -> None:
        super().__init__()
        self.schema = schema
        self._proxy = postgres_proxy.Proxy(server, self.count)
        self.faulty_url, self.direct_url = (f"{url}&schema={schema}" for url in (self._proxy.url, server))
        self._prompt = psycopg.connect(server, autocommit=True, application_name="prompt")
        self._prompt.execute(f'SET search_path TO "{schema}"'.encode())

    def close(self) -> None:
        super().close()
        self._prompt.close()
        self._proxy.close()

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._prompt.execute(sql.encode()).fetchall()

    def cut_all(self) -> None:
        self._proxy.cut_all()

    def run(self, sql: str) -> None:
        self._prompt.execute(sql.encode())

    def empty(self) -> None:
        with self._prompt.transaction():
            self._prompt.execute("SET LOCAL lock_timeout = '5s'")
            for table in _EMPTIED:
                self._prompt.execute(f"DELETE FROM {table}".encode())
            self._prompt.execute("UPDATE dray_queues SET paused_at = NULL")

    def check_connections(self) -> None:
        # A session that was cut ends when the server has noticed. Workers of other cases go on beside this one: a
        # transaction must end, not all of them at the same moment.
        until = time.monotonic() + _PATIENCE
        found = self.rows(_BUSY_SESSIONS)
        while found := [each for each in self.rows(_BUSY_SESSIONS) if each[:2] in {one[:2] for one in found}]:
            assert time.monotonic() < until, f"sessions that are not idle: {found}"
            time.sleep(0.001)
        self._prompt.execute("SELECT id FROM dray_jobs FOR UPDATE NOWAIT")
        held = self.rows(_HELD_LOCKS)
        assert not held, f"idle sessions hold locks: {held}"

    def check_all_places(self) -> None:
        use_at_once(self.faulty, CONNECTIONS)


_BUSY_SESSIONS = """
SELECT pid, xact_start, state, query FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'dray%' AND state <> 'idle'
"""
_HELD_LOCKS = """
SELECT pid, locktype, mode FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE datname = current_database() AND application_name LIKE 'dray%' AND state = 'idle'
    AND locktype NOT IN ('advisory', 'virtualxid')
"""


def use_at_once(backend: Backend, count: int) -> None:
    """`count` connections of a process read at the same time."""
    together = threading.Barrier(count)

    def look(tx: Session) -> None:
        tx.rows("queue_list")
        together.wait(10)

    with ThreadPoolExecutor(count) as threads:
        for reader in [threads.submit(backend.db.read, look) for _ in range(count)]:
            reader.result()


@contextmanager
def deadline(seconds: float) -> Generator[None]:
    """Ends what goes on for ever in the main thread, with an error."""

    def over(_: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it was not over within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_memory() -> Generator[Path]:
    """A folder that no disk is behind, where there is one: thousands of runs would wait for it most of the time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="dray-faults-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
