"""Connections of one process: opened on demand, kept, bounded, never shared across a fork.

By hand and not psycopg_pool: that starts threads, which neither an idle worker's budget nor a fork can afford, and
hides why it cannot connect behind its own timeout.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dray.backends.postgres import faults
from dray.backends.postgres.adapt import Connection, adapt
from dray.errors import ConfigError, StorageLocked

log = logging.getLogger("dray")

_KEEPALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 2, 10  # seconds
_PREPARE_AFTER = 3  # executions


class Pool:
    """Idle connections, newest first out."""

    def __init__(self, conninfo: str, place: str, size: int, patience: float) -> None:
        self._conninfo = conninfo
        self._place = place
        self._size = size
        self._patience = patience
        self._prepares = True
        self._start_anew()
        _pools.add(self)

    def _start_anew(self) -> None:
        self._idle: list[Connection] = []
        self._free = threading.BoundedSemaphore(self._size)
        self._lock = threading.Lock()
        self._used: dict[int, Connection] = {}

    def take(self) -> Connection:
        """A connection; waits while all are in use."""
        if not self._free.acquire(timeout=self._patience):
            raise StorageLocked(
                f"{self._place}: all {self._size} connections of this process were in use for {self._patience:g} s; "
                "nothing was written"
            )
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._connect()
        except BaseException:
            self._free.release()
            raise
        self._used[id(connection)] = connection
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection that is idle, closes one that is not."""
        if not self.owns(connection):
            return
        del self._used[id(connection)]
        idle = psycopg.pq.TransactionStatus.IDLE
        if not connection.closed and connection.info.transaction_status == idle:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        self._free.release()

    def _connect(self) -> Connection:
        try:
            connection: Connection = psycopg.connect(
                self._conninfo, autocommit=True, prepare_threshold=None, **self.settings()
            )
        except psycopg.ProgrammingError:
            # The address itself; the driver's text would repeat the part it stumbled over, maybe the password.
            raise ConfigError(f"{self._place}: the address has a part that PostgreSQL does not know") from None
        except psycopg.Error as error:
            raise faults.translate(error, self._place) from None
        try:
            self._set_up(connection)
        except psycopg.Error as error:
            connection.close()
            raise faults.translate(error, self._place) from error
        return connection

    def _set_up(self, connection: Connection) -> None:
        adapt(connection)
        if self._prepares and self._is_direct(connection):
            connection.prepare_threshold = _PREPARE_AFTER
            # Planning settle and claim anew each time takes longer than running them for one job.
            connection.execute("SET plan_cache_mode TO force_generic_plan")

    def settings(self) -> dict[str, Any]:
        """What connections are opened with beside the address."""
        given: dict[str, Any] = conninfo_to_dict(self._conninfo)
        # Who waits two seconds for the database must not wait ten for a network that swallows everything.
        seconds = max(_SHORTEST_TIMEOUT, min(_LONGEST_TIMEOUT, int(self._patience)))
        ours = _KEEPALIVE | {"tcp_user_timeout": seconds * 1_000, "connect_timeout": seconds}
        settings = {key: value for key, value in ours.items() if key not in given}
        return settings if "application_name" in given else settings | {"application_name": "dray"}

    @staticmethod
    def _is_direct(connection: Connection) -> bool:
        """A pooler makes up the process number it greets with; the server knows its own."""
        found = connection.execute("SELECT pg_backend_pid()").fetchone()
        return found is not None and found[0] == connection.info.backend_pid

    def stop_preparing(self) -> None:
        """Something between us and the server mixes sessions: prepared statements cannot be used."""
        if self._prepares:
            log.warning("%s: prepared statements do not work here (a pooler?); going on without", self._place)
        self._prepares = False

    def forget_idle(self) -> None:
        """Closes idle connections: the server they led to is gone."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def owns(self, connection: Connection) -> bool:
        """Whether a connection is out on loan from this pool, and not from the parent's before a fork."""
        return id(connection) in self._used

    def after_fork_in_child(self) -> None:
        # The sockets are the parent's: anything we said on them, even good-bye, would be said in its name.
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for connection in [*self._idle, *self._used.values()]:
            if not connection.closed:
                os.dup2(nowhere, connection.fileno(), inheritable=False)
        os.close(nowhere)
        self._start_anew()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _tell_child() -> None:
    for pool in list(_pools):
        pool.after_fork_in_child()


os.register_at_fork(after_in_child=_tell_child)
