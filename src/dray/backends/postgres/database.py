"""A PostgreSQL database as a `Database`: a few connections, one round trip where one will do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import QueryNoTemplate
from psycopg.sql import SQL, Identifier

from dray.backends import foreign, migrate
from dray.backends.aside import in_a_thread, to_the_end
from dray.backends.copier import Copier
from dray.backends.database import Later, Row
from dray.backends.errors import DataRefused, TookTooLong
from dray.backends.postgres import faults
from dray.backends.postgres.adapt import Connection
from dray.backends.postgres.block import async_block, block
from dray.backends.postgres.join import borrowed, interrupt, joined, refuse_autocommit
from dray.backends.postgres.listen import PostgresWatch
from dray.backends.postgres.notify import DONE_WINDOW, NOTIFY, WINDOW, Note, Notifier, channels
from dray.backends.postgres.pool import Pool
from dray.backends.postgres.proof import PostgresProofs
from dray.backends.postgres.session import MIGRATE_SPACE, PostgresSession, lock_key
from dray.backends.statements import catalogue
from dray.backends.stop import Stop
from dray.backends.upkeep import Upkeep
from dray.clock import Clock, SystemClock
from dray.config import PostgresAddress
from dray.errors import ConfigError, ForkedConnection, SchemaMissing

T = TypeVar("T")

_TRIES = 8  # of a transaction that conflicts with another
_CONNECTION_TRIES = 3  # of a transaction whose connection was lost; connecting itself is tried once
_CONNECTIONS = 20
_LIMIT = "SELECT set_config('statement_timeout', %s, TRUE)"


class PostgresDatabase:
    """One database (and schema) on a server."""

    boot: str | None = None
    upkeep: Upkeep | None = None

    def __init__(
        self,
        address: PostgresAddress,
        *,
        clock: Clock | None = None,
        busy_timeout: float = 30.0,
        connections: int = _CONNECTIONS,
        create: bool = False,
        notify: bool = True,
        listen_url: str | None = None,
    ) -> None:
        self.place = address.place
        self.schema = address.schema
        self.clock: Clock = clock or SystemClock()
        self.proofs = PostgresProofs()
        self._follows_server = clock is None
        self._create = create
        self._catalogue = catalogue("postgres", address.schema)
        self._pool = Pool(address.conninfo, self.place, connections, busy_timeout)
        self._schema_is_open = False
        self._identity: Row | None = None
        self._notifies = notify
        self._conninfo = address.conninfo
        self._listen_url = listen_url
        self._channels = channels(address.schema)
        self._notifier = Notifier(self._notify)

    @property
    def copier(self) -> Copier:
        from dray.backends.postgres.copier import PostgresCopier  # noqa: PLC0415 - for backups alone

        return PostgresCopier(self._conninfo, self.place, self._namespace)

    def _namespace(self) -> str:
        return self.read(lambda tx: tx.rows("table_namespace", table=self._table("dray_jobs")))[0][1]

    def verify(self, *, full: bool) -> list[str]:
        from dray.backends.postgres import check  # noqa: PLC0415 - for checks alone

        found = self.read(lambda session: check.look(session, self._table("dray_jobs")))
        if found.extension is None:
            return found.problems
        return found.problems + self._again(lambda connection: check.look_into(connection, found, full=full))

    def _times(self) -> dict[str, int | None]:
        if self._follows_server:
            return {}
        return {"now": self.clock.now(), "steady": self.clock.steady()}

    def now(self) -> int:
        return self.read(lambda tx: tx.rows("server_now"))[0][0]

    # Transactions

    def read(self, work: Callable[[PostgresSession], T]) -> T:
        return self._run(work, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", durable=True)

    def inspect(self, work: Callable[[PostgresSession], T], *, seconds: float) -> T:
        def look(connection: Connection) -> T:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(_LIMIT, (str(int(seconds * 1_000)),))
            try:
                answer = work(self._session(connection))
            except psycopg.errors.QueryCanceled as error:
                raise TookTooLong(f"{self.place}: this took longer than {seconds:g} s") from error
            connection.execute("COMMIT")
            return answer

        return self._persist(look)

    @contextmanager
    def snapshot(self) -> Generator[PostgresSession]:
        self._open_schema()
        connection = self._pool.take()
        try:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield self._session(connection)
            connection.execute("COMMIT")
        except psycopg.Error as error:
            raise faults.translate(error, self.place) from error
        finally:
            self._clear(connection)
            self._pool.give_back(connection)

    def identity(self) -> Row | None:
        return self._persist(lambda connection: self._identity_of(self._session(connection)))

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        # No transaction around it, no pipeline: each statement more costs as much as the question itself.
        return self._again(
            lambda connection: PostgresSession(connection, self._catalogue, self._times()).rows(name, **params)
        )

    def write(self, work: Callable[[PostgresSession], T], *, durable: bool = True, many: bool = False) -> T:
        if not many:
            return self._run(work, "BEGIN", durable=durable)

        def transaction(connection: Connection) -> T:
            with connection.transaction():
                return work(self._session(connection))

        return self._again(transaction)

    def exchange(self, work: Callable[[PostgresSession], Later[T]], *, durable: bool = False) -> T:  # noqa: ARG002
        # How durable it is, `begin_work` says, in the same statement that takes the queues' locks.
        def statements(connection: Connection, pipeline: psycopg.Pipeline) -> Later[T]:
            connection.execute("BEGIN")
            answer = work(PostgresSession(connection, self._catalogue, self._times(), pipeline=pipeline))
            connection.execute("COMMIT")
            return answer

        return self._again(lambda connection: _pipelined(connection, statements)())

    def _run(self, work: Callable[[PostgresSession], T], begin: str, *, durable: bool) -> T:
        def statements(connection: Connection, pipeline: psycopg.Pipeline) -> T:
            connection.execute(cast(QueryNoTemplate, begin))
            if not durable:
                connection.execute("SET LOCAL synchronous_commit TO off")
            answer = work(PostgresSession(connection, self._catalogue, self._times(), pipeline=pipeline))
            connection.execute("COMMIT")
            return answer

        return self._again(lambda connection: _pipelined(connection, statements))

    def _again(self, transaction: Callable[[Connection], T]) -> T:
        """Runs a transaction; after a conflict, or on a fresh connection when the one at hand was dead."""
        self._open_schema()
        return self._persist(transaction)

    def _persist(self, transaction: Callable[[Connection], T]) -> T:
        tries = 0
        while True:
            connection = self._pool.take()
            tries += 1
            try:
                return transaction(connection)
            except psycopg.Error as error:
                self._refuse_if_forked(connection)
                self._clear(connection)
                if faults.is_pooler(error):
                    self._pool.stop_preparing()
                elif faults.is_lost(error) and tries < _CONNECTION_TRIES:
                    self._pool.forget_idle()
                elif not faults.is_conflict(error) or tries >= _TRIES:
                    raise faults.translate(error, self.place) from error
            except UnicodeEncodeError as error:
                self._clear(connection)
                raise DataRefused(f"{self.place}: {error}") from error
            except BaseException:
                self._clear(connection)
                raise
            finally:
                self._pool.give_back(connection)
            time.sleep(random.uniform(0, 0.002 * tries))  # noqa: S311 - apart from whom we collided with

    def _refuse_if_forked(self, connection: Connection) -> None:
        if not self._pool.owns(connection):
            raise ForkedConnection(
                f"{self.place}: this process was forked inside a transaction, which stays the parent's; "
                "fork outside transactions"
            )

    @staticmethod
    def _clear(connection: Connection) -> None:
        """Rolls back what is open; a connection that cannot do even that is closed."""
        try:
            if not connection.closed:
                connection.rollback()
        except psycopg.Error:
            connection.close()

    # Users' transactions

    def join(
        self,
        connection: Any,
        work: Callable[[PostgresSession], T],
        *,
        ready: Collection[str] = (),
        ended: bool = False,
    ) -> T:
        found = foreign.unwrap(connection)
        if isinstance(found, psycopg.AsyncConnection):
            raise foreign.needs_await(connection)
        if not isinstance(found, psycopg.Connection):
            raise foreign.refusal(connection, found, self.place)
        theirs = cast("psycopg.Connection[Any]", found)
        refuse_autocommit(theirs, self.place)
        return self._join(theirs, work, self._notes(ready, ended=ended), Stop())

    async def join_async(
        self,
        connection: Any,
        work: Callable[[PostgresSession], T],
        *,
        ready: Collection[str] = (),
        ended: bool = False,
    ) -> T:
        found = await foreign.unwrap_async(connection)
        if not isinstance(found, psycopg.AsyncConnection):
            return self.join(found, work, ready=ready, ended=ended)
        theirs, stop = cast("psycopg.AsyncConnection[Any]", found), Stop()
        notes = self._notes(ready, ended=ended)
        async with theirs.lock:
            refuse_autocommit(theirs, self.place)
            with borrowed(theirs) as facade:
                joining = in_a_thread(lambda: self._join(facade, work, notes, stop))
                return await to_the_end(joining, stop, lambda: interrupt(theirs))

    def _join(
        self,
        connection: psycopg.Connection[Any],
        work: Callable[[PostgresSession], T],
        notes: Mapping[str, Sequence[str]],
        stop: Stop,
    ) -> T:
        stop.check()
        with joined(connection, self.place) as theirs:
            stop.guard()
            session = PostgresSession(theirs, self._catalogue, self._times(), is_users=True)
            self._refuse_elsewhere(session)
            try:
                answer = work(session)
            except UnicodeEncodeError as error:
                raise DataRefused(f"{self.place}: {error}") from error
            for channel, payloads in notes.items():
                session.rows("join_notify", channel=channel, notes=list(payloads))
            stop.check()
            return answer

    def _notes(self, ready: Collection[str], *, ended: bool) -> dict[str, list[str]]:
        """What to send inside a user's transaction, whose commit nobody here will see."""
        notes = {self._channels.work: sorted(set(ready)), self._channels.done: [""] if ended else []}
        return {channel: payloads for channel, payloads in notes.items() if payloads and self._notifies}

    def _refuse_elsewhere(self, session: PostgresSession) -> None:
        """Refuses another database, another schema's tables, and tables that are missing or too new."""
        theirs, ours = self._identity_of(session), self._identity
        if ours is None or theirs != ours:
            # Ours may have been noted before the server was started anew, or the tables made.
            ours = self._persist(lambda connection: self._identity_of(self._session(connection)))
            self._identity = ours
        if theirs[:2] != ours[:2]:
            raise ConfigError(
                f"this connection leads to another database ({theirs[0]!r}) than the queue ({self.place}); "
                "use a connection to the same one"
            )
        if not self._schema_is_open:
            known = self._known_of(session)
            if not known:
                raise SchemaMissing(f"{self.place}: Dray's tables are not there yet; run `dray db init`")
            migrate.admit("postgres", known, self.place)
        if theirs != ours:
            raise ConfigError(
                f"this connection does not find the tables of the queue ({self.place}) by its search_path; give App "
                "the schema they are in (?schema=…)"
            )

    def _identity_of(self, session: PostgresSession) -> Row:
        return session.rows("join_identity", table=self._table("dray_jobs"))[0]

    def _session(self, connection: Connection) -> PostgresSession:
        return PostgresSession(connection, self._catalogue, self._times(), schema=self.schema)

    def transaction(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return block(self._conninfo, self.place, self._pool.settings())

    def atransaction(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        return async_block(self._conninfo, self.place, self._pool.settings())

    # Wake-ups

    def watch(
        self, *, hears_work: bool = True, hears_done: bool = True, queues: Collection[str] | None = None
    ) -> PostgresWatch:
        listen_url = self._listen_url
        return PostgresWatch(
            self._conninfo,
            self.schema,
            self._notify,
            listen_url=listen_url,
            hears_work=hears_work,
            hears_done=hears_done,
            queues=queues,
        )

    def announce(self, queues: Iterable[str]) -> None:
        for queue in dict.fromkeys(queues):
            self._notifier.push(Note(self._channels.work, queue, WINDOW))

    def announce_done(self) -> None:
        self._notifier.push(Note(self._channels.done, "", DONE_WINDOW))

    def _notify(self, channel: str, payload: str) -> None:
        """A transaction of its own: inside a larger one it would take the server's one lock for notifications."""
        self._persist(lambda connection: connection.execute(NOTIFY, (channel, payload)))

    # Schema

    def _open_schema(self) -> None:
        """Refuses a database without tables or with tables that are too new, before the first transaction."""
        if self._schema_is_open:
            return
        known = self._meta()
        if self._create and migrate.is_behind("postgres", known):
            self.migrate()
        elif not known:
            raise SchemaMissing(
                f"{self.place}: Dray's tables are not there yet; run `dray db init`, or open it with "
                "App(..., migrate=True)"
            )
        else:
            migrate.admit("postgres", known, self.place)
        self._schema_is_open = True

    def _meta(self) -> dict[str, str]:
        def look(connection: Connection) -> dict[str, str]:
            return self._known_of(PostgresSession(connection, self._catalogue, self._times()))

        return self._persist(look)

    def _known_of(self, session: PostgresSession) -> dict[str, str]:
        found = session.rows("meta_table", table="dray_meta", schema=self.schema)
        return dict(session.rows("meta_list")) if found else {}

    def _table(self, name: str) -> str:
        return name if self.schema is None else f"{self.schema}.{name}"

    def migrate(self) -> int:
        def transaction(connection: Connection) -> int:
            with connection.transaction():
                return self._upgrade(connection)

        version = self._persist(transaction)
        self._schema_is_open = True
        return version

    def _upgrade(self, connection: Connection) -> int:
        session = PostgresSession(connection, self._catalogue, self._times())
        session.rows("migrate_lock", space=MIGRATE_SPACE, key=lock_key(self.schema or ""))
        if self.schema is not None:
            name = Identifier(self.schema)
            connection.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            connection.execute(SQL("SET LOCAL search_path TO {}").format(name))
        return migrate.upgrade(
            "postgres",
            self._known_of(session),
            self.place,
            lambda text: _run_script(connection, text),
            lambda name, value: _note(session, name, value),
        )

    def known(self, *, seconds: float) -> dict[str, str]:
        return self.inspect(self._known_of, seconds=seconds)

    def version(self) -> int | None:
        known = self._meta()
        return int(known["version"]) if known else None

    def close(self) -> None:
        self._notifier.flush()
        self._pool.forget_idle()


def _pipelined(connection: Connection, statements: Callable[[Connection, psycopg.Pipeline], T]) -> T:
    """Runs statements in a pipeline. An error is taken out of it by hand: on its own way out it would be logged."""
    with connection.pipeline() as pipeline:
        try:
            answer = statements(connection, pipeline)
            pipeline.sync()
        except psycopg.Error as error:
            failure = error
            with suppress(psycopg.Error):
                pipeline.sync()
        else:
            return answer
    raise failure


def _run_script(connection: Connection, text: str) -> None:
    connection.execute(cast(QueryNoTemplate, text))


def _note(session: PostgresSession, name: str, value: int) -> None:
    session.run("meta_set", name=name, value=str(value))
