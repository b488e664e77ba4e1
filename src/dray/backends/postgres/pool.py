"""Connections of one process: opened on demand, kept, bounded, never shared across a fork.

By hand and not psycopg_pool: that starts threads, which neither an idle worker's budget nor a fork can afford, and
hides why it cannot connect behind its own timeout.

An exception may be raised into the calling thread at any moment (see `dray.interrupts`). So no place is counted: the
loans that have not ended are the places in use, and a loan is ended however far it had come. A connection is kept
only if its transaction is known to be over; one that was lost, can only be read or is in an unknown state is closed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from dray import forks
from dray.backends.postgres import faults
from dray.backends.postgres.connect import Connector, OwnConnection, leave_to_parent
from dray.errors import DrayError, StorageLocked

T = TypeVar("T")


class Pool:
    """Idle connections, newest first out."""

    def __init__(self, connector: Connector, place: str, size: int, patience: float) -> None:
        self.connector = connector
        self.place = place
        self.size = size
        self.patience = patience
        self._start_over()
        forks.watch_child(self)

    def _start_over(self) -> None:
        self.lock = threading.Lock()  # around the four below
        self.idle: list[OwnConnection] = []  # always this list: it outlives a pool that was never closed
        weakref.finalize(self, _close_all, self.idle, os.getpid()).atexit = False
        self.loans: dict[Loan, None] = {}
        self.waiting: deque[Loan] = deque()
        self.closings = 0

    def close(self) -> None:
        """Closes idle connections now, and those in use when their loans end. Loans from here on open others."""
        with self.lock:
            self.closings += 1
        self.forget_idle()

    def forget_idle(self) -> None:
        """Closes idle connections: the server they led to is gone."""
        with self.lock:
            idle = [*self.idle]
            self.idle.clear()
        for connection in idle:
            connection.close()

    def stop_preparing(self, connection: OwnConnection | None) -> None:
        """Has no connection prepare statements any more, the one at hand included."""
        self.connector.stop_preparing()
        if connection is not None:
            connection.prepare_threshold = None
        self.forget_idle()

    def after_fork_in_child(self) -> None:
        leave_to_parent([*self.idle, *(loan.connection for loan in self.loans)])
        self._start_over()


def _close_all(idle: list[OwnConnection], pid: int) -> None:
    """Of a pool that is forgotten: it was used after its end, or never closed. Not a parent's, in a fork."""
    if pid == os.getpid():
        for connection in idle:
            connection.close()


class Loan:
    """One connection for one thread: nothing is taken before `run`, and `end` gives back what has been taken by then.

    `end` may be called at any point, more than once.
    """

    def __init__(self, pool: Pool) -> None:
        self.connection: OwnConnection | None = None
        self._pool = pool
        self._pid = os.getpid()
        self._closings = pool.closings
        self._woken = threading.Lock()
        self._is_sound = False  # its transaction is over, and the server has said so

    @property
    def is_inherited(self) -> bool:
        """Whether it was taken by this process's parent, before a fork."""
        return self._pid != os.getpid()

    def run(self, transaction: Callable[[OwnConnection], T]) -> T:
        """Takes a connection, waiting while all are in use, and runs a transaction on it."""
        connection = self._take()
        try:
            answer = transaction(connection)
        except psycopg.Error as error:
            if faults.is_unprepared(error):
                self._pool.stop_preparing(connection)
            if not faults.is_lost(error):
                self._roll_back(connection)
            raise
        except (DrayError, UnicodeEncodeError):
            self._roll_back(connection)
            raise
        self._is_sound = True
        return answer

    def _take(self) -> OwnConnection:
        """A connection, which is closed at the end unless `run` finds it sound."""
        pool = self._pool
        deadline = time.monotonic() + pool.patience
        while not self._has_place():
            if not self._woken.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise StorageLocked(
                    f"{pool.place}: all {pool.size} connections of this process were in use for {pool.patience:g} s; "
                    "nothing was written; keep transactions short, or use fewer threads"
                )
        if self.connection is None:
            self.connection = pool.connector.connect()
        return self.connection

    def _has_place(self) -> bool:
        pool = self._pool
        with pool.lock:
            if len(pool.loans) >= pool.size:
                self._woken.acquire(blocking=False)
                pool.waiting.append(self)
                return False
            pool.loans[self] = None
            if pool.idle:
                # No call between these two: nothing can be raised there, and no connection is lost.
                self.connection = pool.idle[-1]
                del pool.idle[-1]
            return True

    def _roll_back(self, connection: OwnConnection) -> None:
        try:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.rollback()
            self._is_sound = True
        except psycopg.Error:
            self._is_sound = False  # and is closed

    def end(self) -> None:
        pool = self._pool
        connection = self.connection
        if connection is not None and not self.is_inherited and not self._may_be_kept(connection):
            connection.close()
        with pool.lock:
            if self in pool.loans:
                if connection is not None and self._closings != pool.closings and not self.is_inherited:
                    connection.close()  # the pool was closed meanwhile: it would stay open
                is_open = connection is not None and not connection.closed
                # Not in a child that a signal's handler has just forked in one of the calls above: its loans are
                # new ones. From here again no call until the loan is over: the connection is kept once.
                if self in pool.loans:
                    if connection is not None and is_open:
                        pool.idle += [connection]
                    self.connection = None
                    del pool.loans[self]
            while self in pool.waiting:
                pool.waiting.remove(self)
            if pool.waiting and len(pool.loans) < pool.size:
                # Also when no place was given back: this loan may have been woken for one, and then interrupted.
                pool.waiting.popleft().wake()

    def wake(self) -> None:
        if self._woken.locked():
            self._woken.release()

    def _may_be_kept(self, connection: OwnConnection) -> bool:
        return (
            self._is_sound
            and not connection.closed
            and connection.info.transaction_status == TransactionStatus.IDLE
            and connection.pgconn.pipeline_status == PipelineStatus.OFF
        )
