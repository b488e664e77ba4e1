"""Who uses a SQLite file beside its writer, so that a fork can wait for them; and the readers that are kept open."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

from dray.backends.sqlite import fork


class Readers:
    """Connections that do not write, each for one thread at a time. Those that are given back are kept."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._changed = threading.Condition()
        self._idle: list[sqlite3.Connection] = []
        self._lent: set[sqlite3.Connection] = set()
        self._openings = 0  # counts how often all were closed: what was lent before that is not kept
        self._busy: Counter[int] = Counter()  # by thread
        self._is_forking = False
        self._is_inherited = False

    @contextmanager
    def busy(self) -> Generator[None]:
        """Counts this thread among those who use the file."""
        me = threading.get_ident()
        with self._changed:
            # A fork waits for those there are; were others let in, it would wait for ever.
            self._changed.wait_for(lambda: not self._is_forking)
            self._busy[me] += 1
        try:
            yield
        finally:
            if not self._is_inherited:
                with self._changed:
                    self._busy -= Counter([me])
                    self._changed.notify_all()

    @contextmanager
    def lent(self) -> Generator[sqlite3.Connection]:
        with self.busy():
            connection, openings = self._take()
            try:
                yield connection
            finally:
                if not self._is_inherited:
                    self._give_back(connection, openings)

    def _take(self) -> tuple[sqlite3.Connection, int]:
        openings = self._openings
        with self._changed:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect()
            connection.execute("PRAGMA query_only = ON")
        self._lent.add(connection)
        return connection, openings

    def _give_back(self, connection: sqlite3.Connection, openings: int) -> None:
        self._lent.discard(connection)
        with self._changed:
            if openings == self._openings:
                self._idle.append(connection)
                return
        connection.close()  # of a file that was closed meanwhile, and maybe replaced

    def close(self) -> None:
        with self._changed:
            self._openings += 1
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    # Forks

    def is_mine(self) -> bool:
        """Whether this thread is among those who use the file."""
        return self._busy[threading.get_ident()] > 0

    def hold(self, seconds: float) -> bool:
        """Lets nobody in any more, and waits for those there are; whether all have gone."""
        with self._changed:
            self._is_forking = True
            return not self.is_mine() and self._changed.wait_for(lambda: not +self._busy, timeout=seconds)

    @property
    def any_open(self) -> bool:
        return bool(self._idle or self._lent)

    def disown(self) -> None:
        """In a child: these are the parent's, also those that the thread which forked has in hand."""
        self._is_inherited = True
        for connection in (*self._idle, *self._lent):
            fork.leak(connection)

    def go_on(self) -> None:
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()
