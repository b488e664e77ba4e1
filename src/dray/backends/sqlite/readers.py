"""Who uses a SQLite file beside its writer, so that a fork can wait for them; and the readers that are kept open.

An exception may be raised into the calling thread at any moment (see `dray.interrupts`), so users are not counted:
the visits that have not ended are the users of the file, and a visit is ended however far it had come.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from dray.backends.sqlite import fork
from dray.backends.sqlite.session import SqliteSession
from dray.interrupts import OwnedLock


class Readers:
    """Connections that do not write, each for one thread at a time. Those that are given back are kept."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self.connect = connect
        self.lock = threading.Lock()  # around the idle ones
        self.idle: list[sqlite3.Connection] = []
        self.openings = 0  # counts how often all were closed: what was lent before that is not kept
        self.gate = OwnedLock()  # a fork has it; were others let in meanwhile, it would wait for ever
        self.visits: dict[Visit, None] = {}
        self.departures: SimpleQueue[None] | None = None  # told of while a fork waits for them

    def close(self) -> None:
        with self.lock:
            self.openings += 1
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    # Forks

    def is_mine(self) -> bool:
        """Whether this thread is among those who use the file."""
        return threading.get_ident() in [visit.thread for visit in list(self.visits)]

    def hold(self, seconds: float) -> bool:
        """Lets no new visit in, and waits for those there are; returns whether all have ended."""
        self.departures = departures = SimpleQueue[None]()
        self.gate.lock.acquire()
        deadline = time.monotonic() + seconds
        while self.visits:
            try:
                departures.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return False
        return True

    def go_on(self) -> None:
        self.departures = None
        self.gate.release_if_mine()

    @property
    def any_open(self) -> bool:
        return bool(self.idle) or any(visit.connection is not None for visit in list(self.visits))

    def disown(self) -> None:
        """In a child: these are the parent's, also those that the thread which forked has in hand."""
        for visit in self.visits:
            if visit.session is not None:
                visit.session.forked = True
        for connection in (*self.idle, *(visit.connection for visit in self.visits)):
            if connection is not None:
                fork.leak(connection)


class Visit:
    """One use of the file by one thread, with a reader or without: nothing is taken before `begin`, and `end` gives
    back what has been taken by then. `end` may be called at any point, more than once."""

    def __init__(self, readers: Readers) -> None:
        self.thread = threading.get_ident()
        self.connection: sqlite3.Connection | None = None
        self.session: SqliteSession | None = None
        self._readers = readers
        self._openings = readers.openings
        self._pid = os.getpid()

    def begin(self) -> None:
        """Counts this thread among those who use the file."""
        with self._readers.gate.lock:
            self._readers.visits[self] = None

    def read(self) -> sqlite3.Connection:
        """As `begin`, with a connection that does not write."""
        self.begin()
        readers = self._readers
        with readers.lock:
            if readers.idle:
                # No call between these two: nothing can be raised there, and no connection is lost.
                self.connection = readers.idle[-1]
                del readers.idle[-1]
        if self.connection is None:
            self.connection = readers.connect()
        return self.connection

    def view(self, connect: Callable[[], sqlite3.Connection]) -> sqlite3.Connection:
        """As `begin`, with a connection for this one look: it is not kept."""
        self.begin()
        self._openings = -1
        self.connection = connect()
        return self.connection

    def end(self) -> None:
        if self._pid != os.getpid():
            return  # it is the parent's
        readers, connection = self._readers, self.connection
        if connection is not None:
            if self._openings == readers.openings and _is_clean(connection):
                with readers.lock:
                    if self.connection is not None:
                        readers.idle += [connection]  # again no call until it is let go: it is kept once
                        self.connection = None
            else:
                connection.close()  # cut short; or of a file that was closed meanwhile, and maybe replaced
                self.connection = None
        readers.visits.pop(self, None)
        departures = readers.departures
        if departures is not None:
            departures.put(None)


def _is_clean(connection: sqlite3.Connection) -> bool:
    """Whether its last transaction is over."""
    try:
        return not connection.in_transaction
    except sqlite3.ProgrammingError:  # it is closed
        return False
