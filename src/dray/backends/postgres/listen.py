"""Wake-ups through PostgreSQL: LISTEN on one connection of the process's own, for what `notify.py` sends.

That connection also carries the worker's proof of life, a session advisory lock, which the server frees when the
process or its host is gone.

LISTEN is accepted by poolers that will never deliver (PgBouncer in transaction mode), so it counts only once
proven: a NOTIFY, sent on another connection to a channel of this watch's own, has to arrive. On this very
connection it would arrive even through a pooler and prove nothing. The ping is repeated each 30 s. Proven, the
safety poll is 5 s; otherwise 1 s.

What a pooler is told of a session stays with one of its connections to the server, which others use too. So behind
one there is no lock, which would outlive the worker, and no LISTEN for more than the ping until it is proven: the
next user of that connection would be sent every notification. Not proven, the connection is given up.

A lost connection is made again on a thread of its own: a server, or a network, that takes ten seconds to greet would
otherwise hold up the worker that waits here, and its heartbeat, though both have connections that work.

All queues share a channel. A watch that hears much of queues it does not serve listens less often, up to every 50 ms:
then many workers beside one busy queue cost next to nothing.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from dray import forks
from dray.address import PostgresAddress, parse_address
from dray.backends.postgres.adapt import Connection
from dray.backends.postgres.connect import (
    KEEPALIVE,
    SERVER_KEEPALIVE,
    leads_to_server,
    leave_to_parent,
    set_for_session,
)
from dray.backends.postgres.notify import Note, Notifier, Send, channels
from dray.backends.postgres.session import WORKER_SPACE, lock_key
from dray.backends.watch import Bell, Watch, rest
from dray.errors import ConfigError
from dray.log import log
from dray.model.job import ALL_QUEUES
from dray.sanitize import redact

SAFETY_POLL = 1.0
PROVEN_POLL = 5.0
PROOF = 1.0  # seconds in which a ping has to arrive

_PING = 30.0
_UNPROVEN_PING = 5.0
_POOLER_PAUSE = 600.0  # before a pooler that did not deliver is asked again
_MISSES = 3  # pings in a row after which a connection that used to deliver is given up
_SHORTEST_BACKOFF = 0.1
_LONGEST_BACKOFF = 5.0
_LOCK_PAUSE = 1.0
_FIRST_LULL, _LONGEST_LULL = 0.001, 0.05

_OURS: dict[str, Any] = {
    **KEEPALIVE,
    "tcp_user_timeout": 10_000,
    "connect_timeout": 3,  # the first `wait` or `hold` takes that much longer while a server does not answer at all
    "application_name": "dray listen",
}
# The server's side of the same: it frees the lock of a worker whose host vanished within the lease. A limit for idle
# sessions (from version 14 on) is not meant for one that listens.
_SERVERS = {**SERVER_KEEPALIVE, "idle_session_timeout": "0"}
_LOCK = "SELECT pg_try_advisory_lock(%s::int, %s::int)"
_UNLOCK = "SELECT pg_advisory_unlock(%s::int, %s::int)"
_LISTEN = SQL("LISTEN {}")


# A connection that is handed over, whether the server itself is at the other end, and the worker whose lock it holds.
_Opened = tuple[Connection, bool, str | None]


class PostgresWatch(Watch):
    """A `Watch` on the tables of one schema; connects when it first waits or holds, never raises for a server."""

    hears_own = False

    def __init__(
        self,
        conninfo: str,
        schema: str | None,
        send: Send,
        *,
        listen_url: str | None = None,
        hears_work: bool = True,
        hears_done: bool = True,
        queues: Collection[str] | None = None,
    ) -> None:
        self._conninfo = conninfo if listen_url is None else _parse(listen_url)
        super().__init__(redact(self._conninfo))
        work, done = channels(schema)
        self._hears = [*([work] if hears_work else []), *([done] if hears_done else [])]
        self._work, self._queues = work, queues  # None: all of them matter
        self._ping = Note(f"dray:ping:{os.urandom(8).hex()}", "", 0.0)
        self._notifier = Notifier(send)
        self._nudge = Bell()  # ends a rest, and is no reason to look
        self._has_tried = False  # to connect; the first caller waits for it
        self._is_aside = False  # a thread connects, or does what may take long
        self._connection: Connection | None = None
        self._heard = False
        self._lull = Lull()
        self._has_warned = False
        self._failures = 0
        self._retry_at = 0.0
        self._worker_id: str | None = None
        self._start_anew(0.0)
        forks.watch_child(self)

    def _start_anew(self, now: float) -> None:
        """What is known of a connection that is new or not there."""
        self.is_direct = False  # the server itself is at the other end, and no pooler
        self._is_listening = False
        self._is_proven = False
        self._was_proven = False
        self._misses = 0
        self._ping_at = now
        self._proof_until: float | None = None
        self._held: str | None = None
        self._lock_at = now

    @property
    def is_pushed(self) -> bool:
        return self._is_proven and self._is_listening

    @property
    def holds(self) -> bool:
        """Whether the worker's lock was held on this connection when it was last looked at."""
        return self._held is not None and self._held == self._worker_id

    def hold(self, worker_id: str) -> bool:
        """Takes the lock that proves a worker alive, instead of one held before, and again after each reconnect.

        False: not now (`wait` goes on trying), or never, behind a pooler.
        """
        self._refuse_if_over()
        with self._lock:
            before = self._connection
            self._want(worker_id)
            self._tend(time.monotonic())
            is_moved = self._connection is not before
        if is_moved or self._heard or not self.holds:
            # Other threads must wait on the connection there is now, hear what was just read, or try again.
            self._bell.ring()
        return self.holds

    def keep(self, worker_id: str) -> None:
        """As `hold`, without waiting for the server or for another thread that does: for a heartbeat."""
        self._refuse_if_over()
        if not self._lock.acquire(blocking=False):
            return  # the thread that has it does what is due
        try:
            self._want(worker_id)
            self._tend(time.monotonic(), may_wait=False)
        finally:
            self._lock.release()
        if self._heard:
            self._bell.ring()

    def _want(self, worker_id: str) -> None:
        if not self.holds or self._worker_id != worker_id:
            self._lock_at = 0.0
        self._worker_id = worker_id

    def release(self, worker_id: str) -> None:
        """Gives the lock of a worker back, unless another one's is held by now; a lost connection has done so."""
        with self._lock:
            if self._worker_id != worker_id:
                return
            self._worker_id = None
            if self._connection is not None:
                self._tend(time.monotonic())
        self._bell.ring()

    def wait(self, seconds: float | None = None) -> bool:
        self._refuse_if_over()
        began = time.monotonic()
        while True:
            poked = self._bell.silence()
            self._nudge.silence()
            now = time.monotonic()
            with self._lock:
                if self._closed:
                    return True
                self._tend(now)
                lull = self._lull.take(now)
                heard, self._heard = self._heard, False
                patience = PROVEN_POLL if self.is_pushed else SAFETY_POLL
                wake_at = self._next_at()
                bell = self._bell.fileno()
                bells = (bell, self._nudge.fileno())
                descriptors = bells if self._connection is None else (*bells, self._socket)
            if heard or poked:
                return True
            until = began + (patience if seconds is None else min(seconds, patience))
            if now >= until:
                return False
            if lull and rest((bell,), min(lull, until - now)):
                continue
            rest(descriptors, min(until, wake_at) - time.monotonic())

    # The connection

    def _tend(self, now: float, *, may_wait: bool = True) -> None:
        """Takes in what arrived and does what is due; `now` is from before, so that nothing is missed by lateness."""
        if self._connection is None and (now < self._retry_at or self._is_aside):
            return
        try:
            if self._connection is None:
                if self._has_tried:
                    self._do_aside(self._connect_aside)
                    return
                self._has_tried = True
                self._install(self._open(self._worker_id), now)
            assert self._connection is not None
            self._take_in(self._connection)
            self._prove(now)
            if may_wait:
                self._listen(self._connection)
                self._take_lock(self._connection, now)
            elif self._is_behind(now):
                self._do_aside(self._catch_up_aside)
        except psycopg.Error as error:
            self._lose(error)

    def _do_aside(self, work: Callable[[], None]) -> None:
        """On a thread of its own, one at a time."""
        if self._is_aside:
            return
        self._is_aside = True
        try:
            threading.Thread(target=work, name="dray-listen", daemon=True).start()
        except (RuntimeError, MemoryError) as error:
            self._is_aside = False
            self._lose(psycopg.OperationalError(str(error)))

    def _connect_aside(self) -> None:
        try:
            opened = self._open(self._worker_id)
        except psycopg.Error as error:
            with self._lock:
                self._is_aside = False
                if not self._closed:
                    self._lose(error)
        else:
            with self._lock:
                self._is_aside = False
                if self._closed:
                    opened[0].close()
                else:
                    self._install(opened, time.monotonic())
        self._nudge.ring()  # a waiting thread has to wait on the new connection, or try again in time

    def _catch_up_aside(self) -> None:
        with self._lock:
            self._is_aside = False
            self._tend(time.monotonic())
        self._nudge.ring()

    def _open(self, worker_id: str | None) -> _Opened:
        """A connection that listens, and holds the worker's lock if it can. Touches nothing that others see."""
        given = conninfo_to_dict(self._conninfo)
        ours = {key: value for key, value in _OURS.items() if key not in given}
        connection: Connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None, **ours)
        try:
            is_direct, held = leads_to_server(connection), None
            connection.execute(_LISTEN.format(Identifier(self._ping.channel)))
            if is_direct:
                set_for_session(connection, _SERVERS)
                for channel in self._hears:
                    connection.execute(_LISTEN.format(Identifier(channel)))
                held = worker_id if worker_id is not None and _lock(connection, worker_id) else None
        except BaseException:
            connection.close()
            raise
        return connection, is_direct, held

    def _install(self, opened: _Opened, now: float) -> None:
        self._start_anew(now)
        connection, self.is_direct, self._held = opened
        self._connection, self._is_listening = connection, self.is_direct
        self._socket = connection.fileno()
        # For those that arrive together with the result of something else.
        connection.add_notify_handler(lambda note: self._hear(note.channel, note.payload))
        self._heard = True  # no thread has been told what happened until now
        if not self.holds:
            self._lock_at = now + _LOCK_PAUSE  # it was just tried

    def _is_behind(self, now: float) -> bool:
        """Whether to `_listen` or to `_take_lock` would ask the server something."""
        is_to_listen = not self._is_listening and (self.is_direct or self._is_proven)
        return is_to_listen or now >= self._wants_lock_at() or self._held not in (None, self._worker_id)

    def _listen(self, connection: Connection) -> None:
        if self._is_listening or not (self.is_direct or self._is_proven):
            return
        for channel in self._hears:
            connection.execute(_LISTEN.format(Identifier(channel)))
        self._is_listening = True
        self._heard = True  # no thread has been told what happened until now

    def _take_in(self, connection: Connection) -> None:
        connection.pgconn.consume_input()
        while (note := connection.pgconn.notifies()) is not None:
            self._hear(note.relname.decode(), note.extra.decode())

    def _hear(self, channel: str, payload: str) -> None:
        if channel == self._work and self._queues is not None and payload not in {ALL_QUEUES, *self._queues}:
            self._lull.is_due = True
            return
        if channel != self._ping.channel:
            self._heard = True
            return
        if self._has_warned:
            log.info("%s: LISTEN delivers", self._place)
            self._has_warned = False
        self._is_proven = self._was_proven = True
        self._misses = self._failures = 0
        self._proof_until = None

    def _prove(self, now: float) -> None:
        if self._proof_until is not None and now >= self._proof_until:
            self._proof_until = None
            self._miss()
        if self._proof_until is None and now >= self._ping_at:
            self._proof_until = now + PROOF
            self._ping_at = now + (_PING if self._is_proven else _UNPROVEN_PING)
            self._notifier.push_soon(self._ping)

    def _miss(self) -> None:
        if not self._has_warned:
            log.warning(
                "%s: LISTEN does not deliver (a pooler?); looking each second instead. Give a direct address as "
                "listen_url",
                self._place,
            )
            self._has_warned = True
        self._is_proven = False
        self._misses += 1
        self._ping_at = min(self._ping_at, time.monotonic() + _UNPROVEN_PING)
        if not self.is_direct or (self._was_proven and self._misses >= _MISSES):
            raise psycopg.OperationalError("it does not deliver")

    def _take_lock(self, connection: Connection, now: float) -> None:
        if self._held is not None and self._held != self._worker_id:
            connection.execute(_UNLOCK, (WORKER_SPACE, lock_key(self._held)))
            self._held = None
        if self.holds or self._worker_id is None or not self.is_direct or now < self._lock_at:
            return
        self._lock_at = now + _LOCK_PAUSE
        if _lock(connection, self._worker_id):
            self._held = self._worker_id

    def _next_at(self) -> float:
        if self._connection is None:
            return math.inf if self._is_aside else self._retry_at
        return min(self._ping_at if self._proof_until is None else self._proof_until, self._wants_lock_at())

    def _wants_lock_at(self) -> float:
        is_wanted = self._worker_id is not None and self.is_direct and not self.holds
        return self._lock_at if is_wanted else math.inf

    def _lose(self, error: psycopg.Error) -> None:
        level = logging.DEBUG if self._failures or self._has_warned else logging.WARNING
        said = redact(str(error).strip().partition("\n")[0])
        log.log(level, "%s: the connection that listens is lost: %s; trying again", self._place, said)
        # A pooler that took LISTEN and does not deliver will not do so in a second's time either.
        is_hopeless = self._misses > 0 and not self.is_direct and not self._was_proven
        backoff = min(_SHORTEST_BACKOFF * 2 ** min(self._failures, 10), _LONGEST_BACKOFF)
        self._failures += 1
        self._let_go()
        # From now, not from before: a host that does not answer takes all of connect_timeout at each try.
        pause = (_POOLER_PAUSE if is_hopeless else backoff) * random.uniform(0.5, 1)  # noqa: S311 - not all at once
        self._retry_at = time.monotonic() + pause

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._start_anew(0.0)

    # Fork and end

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._forked = self._closed = True
        self._is_aside = False
        leave_to_parent([self._connection])
        self._let_go()

    def close(self) -> None:
        super().close()
        self._notifier.flush()


class Lull:
    """How long not to listen, after what was heard was for others."""

    def __init__(self) -> None:
        self.is_due = False
        self._seconds = 0.0
        self._ends_at = -math.inf

    def take(self, now: float) -> float:
        """The pause that is due now; each is twice the one before, unless that was long ago."""
        if not self.is_due:
            return 0.0
        self.is_due = False
        was_long_ago = now > self._ends_at + 10 * _LONGEST_LULL
        self._seconds = _FIRST_LULL if was_long_ago else min(self._seconds * 2, _LONGEST_LULL)
        self._ends_at = now + self._seconds
        return self._seconds


def _parse(listen_url: str) -> str:
    address = parse_address(listen_url)
    if not isinstance(address, PostgresAddress):
        raise ConfigError(f"listen_url has to be a PostgreSQL address, not {redact(listen_url)!r}")
    return address.conninfo


def _lock(connection: Connection, worker_id: str) -> bool:
    """Refused: the server has not noticed yet that our last connection is gone. Its lock is as good meanwhile."""
    return bool(connection.execute(_LOCK, (WORKER_SPACE, lock_key(worker_id))).fetchall()[0][0])
