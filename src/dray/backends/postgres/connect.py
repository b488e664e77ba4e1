"""Opening Dray's own PostgreSQL connections, and the settings that its promises need on them.

A server, a database or a role may have any defaults: commits that do not wait for the disk, another isolation level,
a time limit of 200 ms for statements. What Dray relies on it therefore says: once for a session where the server
itself is at the other end, with each transaction behind a pooler, which gives every transaction another session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Identifier

from dray.backends.postgres import faults
from dray.backends.postgres.adapt import adapt
from dray.errors import ConfigError
from dray.log import log
from dray.sanitize import redact

# How soon each side notices that the other is gone: 11 s after the last packet.
KEEPALIVE: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
SERVER_KEEPALIVE = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_SHORTEST_TIMEOUT, _LONGEST_TIMEOUT = 2, 10  # seconds
_PREPARE_AFTER = 3  # executions

# Off means that a crash forgets commits that were acknowledged. Every other level writes them to this server's disk.
_DURABLE: LiteralString = "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' \
ELSE current_setting('synchronous_commit') END"

# A statement of Dray's waits for locks only, and for those no longer than the program said. Limits that are meant for
# a web request must not end a prune or a move.
# A client whose network is cut off inside a transaction keeps its row locks, and rescue waits for them. By default
# the server notices after two hours. (A limit for idle transactions is no cure: inside a pipeline it does not count,
# and between the statements of a bulk enqueue of 200,000 jobs the client may compute for a second.)
# Planning settle and claim each time takes longer than running them for one job, and a plan that was made while the
# table was empty is kept until it is analyzed: it must use the indexes from the start.
_SESSION = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    **SERVER_KEEPALIVE,
    "transaction_timeout": "0",
    "default_transaction_isolation": "read committed",  # of single statements; others say it in their BEGIN
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
}
_SINCE = {"idle_session_timeout": 14_00_00, "transaction_timeout": 17_00_00}  # settings that older servers lack
_TRANSACTION: LiteralString = f"""
SELECT set_config('synchronous_commit', CASE WHEN %(durable)s THEN {_DURABLE} ELSE 'off' END, TRUE),
    set_config('statement_timeout', '0', TRUE), set_config('lock_timeout', %(patience)s, TRUE)
"""

_STAY_DURABLE: LiteralString = f"SELECT set_config('synchronous_commit', {_DURABLE}, FALSE)"

# For one transaction whose session is not pinned, as its first statement.
MAKE_DURABLE: LiteralString = f"SELECT set_config('synchronous_commit', {_DURABLE}, TRUE)"

WRITE: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED"
READ: LiteralString = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class OwnConnection(psycopg.Connection[tuple[object, ...]]):
    """A connection of Dray's own; the server itself is at its other end, or a pooler."""

    is_direct = False
    lock_patience = "0"  # milliseconds

    def __del__(self, *_: object) -> None:
        if not sys.is_finalizing():  # an App is often a module's, and open until the program ends
            super().__del__()

    def begin(self, how: LiteralString, *, durable: bool = True) -> None:
        self.execute(how)
        if not self.is_direct:
            self.execute(_TRANSACTION, {"durable": durable, "patience": self.lock_patience})
        elif not durable:
            self.execute("SET LOCAL synchronous_commit TO off")


class Connector:
    """Opens connections to one address."""

    def __init__(self, conninfo: str, place: str, patience: float) -> None:
        self._conninfo = conninfo
        self._place = place
        self._patience = patience
        self._prepares = True

    def connect(self) -> OwnConnection:
        try:
            connection = OwnConnection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None, **self.settings()
            )
        except psycopg.ProgrammingError:
            # The address itself; the driver's text would repeat the part it stumbled over, maybe the password.
            raise ConfigError(
                f"{self._place}: the address has a part that PostgreSQL does not know; write postgresql://user:password@host/db?option=value"
            ) from None
        except psycopg.Error as error:
            raise faults.translate(error, self._place) from None
        try:
            self._set_up(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise faults.translate(error, self._place) from error
            raise
        return connection

    def _set_up(self, connection: OwnConnection) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise ConfigError(
                f"{self._place}: this database stores text as {encoding}, which cannot hold all text; Dray needs one "
                "made with ENCODING 'UTF8'"
            )
        adapt(connection)
        connection.lock_patience = str(int(self._patience * 1_000))
        connection.is_direct = leads_to_server(connection)
        if connection.is_direct:
            connection.execute(_STAY_DURABLE)
            set_for_session(connection, {**_SESSION, "lock_timeout": connection.lock_patience})
            connection.prepare_threshold = _PREPARE_AFTER if self._prepares else None

    def settings(self) -> dict[str, Any]:
        """What connections are opened with beside the address."""
        given: dict[str, Any] = conninfo_to_dict(self._conninfo)
        # Who waits two seconds for the database must not wait ten for a network that swallows everything.
        seconds = max(_SHORTEST_TIMEOUT, min(_LONGEST_TIMEOUT, int(self._patience)))
        ours = KEEPALIVE | {
            "tcp_user_timeout": seconds * 1_000,
            "connect_timeout": seconds,
            "client_encoding": "UTF8",
            "application_name": "dray",
        }
        if "," in f"{given.get('host', '')}{given.get('hostaddr', '')}":
            # After a failover the first of several hosts may be the one that can only be read.
            ours["target_session_attrs"] = "read-write"
        return {key: value for key, value in ours.items() if key not in given}

    def stop_preparing(self) -> None:
        """Prepared statements do not last here: a pooler mixes sessions, or another program deallocates them."""
        if self._prepares:
            log.warning("%s: prepared statements do not last here (a pooler?); going on without them", self._place)
        self._prepares = False


def set_for_session(connection: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Changes settings of the server until the connection ends, in one statement. Those that it lacks are skipped.

    They are chosen by the server's version: looking them up in pg_settings took it 2.5 ms for each connection.
    """
    known = [item for item in settings.items() if connection.info.server_version >= _SINCE.get(item[0], 0)]
    calls = SQL(", ").join([SQL("set_config(%s, %s, FALSE)")] * len(known))
    connection.execute(SQL("SELECT {}").format(calls), [word for item in known for word in item])


def leads_to_server(connection: psycopg.Connection[Any]) -> bool:
    """A pooler makes up the process number it greets with; the server knows its own."""
    return connection.execute("SELECT pg_backend_pid()").fetchall()[0][0] == connection.info.backend_pid


def leave_to_parent(connections: Iterable[psycopg.Connection[Any] | psycopg.AsyncConnection[Any] | None]) -> None:
    """In a forked child: the sockets are the parent's. Anything we said on them, even good-bye, would be said in its
    name."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for connection in connections:
        if connection is not None and not connection.closed:
            os.dup2(nowhere, connection.fileno(), inheritable=False)
    os.close(nowhere)


@lru_cache
def search_path_of(conninfo: str) -> tuple[str, str | None]:
    """The options that an address has, and where its connections look for tables; None: a pooler is in between."""
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            options = conninfo_to_dict(conninfo).get("options") or ""
            if not leads_to_server(connection):
                return str(options), None
            return str(options), connection.execute("SHOW search_path").fetchall()[0][0]
    except psycopg.Error as error:
        raise faults.translate(error, redact(conninfo)) from error


def drop_schema(conninfo: str, schema: str) -> None:
    """Drops a schema with all that is in it, if it is there."""
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("SET client_min_messages TO warning")  # not a word about each table
            connection.execute(SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(schema)))
    except psycopg.Error as error:
        raise faults.translate(error, redact(conninfo)) from error
