"""A PostgreSQL database as a `Database`: a few connections, one round trip where one will do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg.abc import QueryNoTemplate

from dray.address import PostgresAddress
from dray.backends import migrate, user_connection
from dray.backends.awaiting import in_a_thread, to_the_end
from dray.backends.database import Copier, Database, DataRefused, Later, Proofs, Row, TookTooLong
from dray.backends.postgres import faults, tables
from dray.backends.postgres.connect import READ, WRITE, Connector, OwnConnection
from dray.backends.postgres.copier import PostgresCopier
from dray.backends.postgres.listen import PostgresWatch
from dray.backends.postgres.notify import DONE_WINDOW, NOTIFY, WINDOW, Note, Notifier, channels
from dray.backends.postgres.pool import Loan, Pool
from dray.backends.postgres.proof import PostgresProofs
from dray.backends.postgres.session import MIGRATE_SPACE, PostgresSession, lock_key
from dray.backends.postgres.transaction import (
    PostgresTransaction,
    async_block,
    borrowed,
    interrupt,
    joined,
    refuse_autocommit,
)
from dray.backends.statements import Catalogue
from dray.backends.user_connection import Cancellation
from dray.clock import Clock, SystemClock
from dray.errors import ConfigError, ForkedConnection, SchemaMissing
from dray.interrupts import with_cleanup
from dray.log import log
from dray.model.new_job import AlikeJobs

T = TypeVar("T")

_TRIES = 8  # of a transaction that conflicts with another
_CONNECTION_TRIES = 3  # of a transaction whose connection was lost; connecting itself is tried once
_CONNECTIONS = 20
_LIMIT = "SELECT set_config('statement_timeout', %s, TRUE)"


class PostgresDatabase(Database):
    """One database (and schema) on a server."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        clock: Clock | None = None,
        busy_timeout: float = 30.0,
        create: bool = False,
        notify: bool = True,
        listen_url: str | None = None,
    ) -> None:
        self.place = address.place
        self.schema = address.schema
        self.clock: Clock = clock or SystemClock()
        self.proofs: Proofs = PostgresProofs()
        self._follows_server = clock is None
        self._create = create
        self._catalogue = Catalogue("postgres", address.schema)
        self._connector = Connector(address.conninfo, self.place, busy_timeout)
        self._pool = Pool(self._connector, self.place, _CONNECTIONS, busy_timeout)
        self._schema_is_open = False
        self._has_asked_users = False
        self._identity: Row | None = None
        self._notifies = notify
        self._conninfo = address.conninfo
        self._listen_url = listen_url
        self._channels = channels(address.schema)
        self._jobs_table = "dray_jobs" if address.schema is None else f"{address.schema}.dray_jobs"
        self._notifier = Notifier(self._notify)

    @property
    def copier(self) -> Copier:
        return PostgresCopier(self._conninfo, self.place, self._namespace)

    def _namespace(self) -> str:
        return self.read(lambda tx: tx.rows("table_namespace", table=self._jobs_table))[0][1]

    def verify(self, *, full: bool) -> list[str]:
        found = self.read(lambda session: tables.look(session, self._jobs_table))
        if found.extension is None:
            return found.problems
        return found.problems + self._again(lambda connection: tables.look_into(connection, found, full=full))

    def _times(self) -> dict[str, int | None]:
        if self._follows_server:
            return {}
        return {"now": self.clock.now(), "steady": self.clock.steady()}

    def now(self) -> int:
        return self.read(lambda tx: tx.rows("server_now"))[0][0]

    # Transactions

    def read(self, work: Callable[[PostgresSession], T]) -> T:
        return self._again(lambda connection: self._pipelined(connection, work, READ, durable=True))

    def inspect(self, work: Callable[[PostgresSession], T], *, seconds: float) -> T:
        def look(connection: OwnConnection) -> T:
            connection.begin(READ)
            connection.execute(_LIMIT, (str(int(seconds * 1_000)),))
            try:
                answer = work(self._session(connection))
            except psycopg.errors.QueryCanceled as error:
                raise TookTooLong(f"{self.place}: this took longer than {seconds:g} s") from error
            connection.execute("COMMIT")
            return answer

        return self._persist(look)

    def snapshot(self, work: Callable[[PostgresSession], T]) -> T:
        def look() -> T:
            connection = loan.take()  # not worth keeping: looks like this one are rare, and long
            connection.begin(READ)
            return work(self._session(connection))

        self._open_schema()
        loan = Loan(self._pool)
        try:
            return with_cleanup(look, loan.end)
        except psycopg.Error as error:
            raise faults.translate(error, self.place) from error

    def identity(self) -> Row:
        return self._persist(lambda connection: self._identity_of(self._session(connection)))

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        # No transaction around it, no pipeline: each statement more costs as much as the question itself.
        return self._again(lambda connection: self._session(connection).rows(name, **params))

    def write(self, work: Callable[[PostgresSession], T], *, durable: bool = True, many: bool = False) -> T:
        if many:
            return self._again(lambda connection: self._transact(connection, work, durable=durable))
        return self._again(lambda connection: self._pipelined(connection, work, WRITE, durable=durable))

    def _transact(self, connection: OwnConnection, work: Callable[[PostgresSession], T], *, durable: bool) -> T:
        """A transaction outside a pipeline, which can neither COPY nor read through a cursor of the server's."""
        connection.begin(WRITE, durable=durable)
        answer = work(self._session(connection))
        connection.execute("COMMIT")
        return answer

    def exchange(self, work: Callable[[PostgresSession], Later[T]], *, durable: bool = False) -> T:  # noqa: ARG002
        # How durable it is, `begin_work` says, in the same statement that takes the queues' locks.
        return self._again(lambda connection: self._pipelined(connection, work, WRITE, durable=True)())

    def post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool = True) -> None:
        batch = gather()
        notes = self._work_notes({jobs.pattern.queue for jobs in batch})
        sent = [note for note in notes if self._notifier.take(note)]

        def transaction(connection: OwnConnection) -> None:
            if durable and connection.is_direct and not sent:
                self._session(connection).post(batch)  # one statement is a transaction of its own
                return
            try:
                self._pipelined(connection, lambda tx: tx.post(batch), WRITE, durable=durable, notes=sent)
            except psycopg.errors.ProgramLimitExceeded:
                # The server's queue of notifications is full: the jobs are committed, and found under their ids.
                self._pipelined(connection, lambda tx: tx.post(batch), WRITE, durable=durable)

        self._again(transaction)
        for note in notes:
            if note not in sent:
                self._notifier.push(note)

    def _pipelined(
        self,
        connection: OwnConnection,
        work: Callable[[PostgresSession], T],
        begin: LiteralString,
        *,
        durable: bool,
        notes: Sequence[Note] = (),
    ) -> T:
        """A transaction in a pipeline, and then the notes. The end of the pipeline sends what is left, so that COMMIT
        needs no round trip of its own.

        An error inside is taken out of the pipeline by hand: on its own way out it would be logged.
        """
        with connection.pipeline() as pipeline:
            try:
                connection.begin(begin, durable=durable)
                answer = work(PostgresSession(connection, self._catalogue, self._times(), pipeline=pipeline))
                if notes:
                    # In a transaction of their own, whose end is a statement: the driver cannot be told at the end of
                    # the pipeline that they were refused.
                    connection.execute("COMMIT AND CHAIN")
                    for note in notes:
                        connection.execute(NOTIFY, (note.channel, note.payload))
                connection.execute("COMMIT")
            except psycopg.Error as error:
                failure = error
                with suppress(psycopg.Error):
                    pipeline.sync()
            else:
                return answer
        raise failure

    def _again(self, transaction: Callable[[OwnConnection], T]) -> T:
        """Runs a transaction; after a conflict, or on a fresh connection when the one at hand was dead."""
        self._open_schema()
        return self._persist(transaction)

    def _persist(self, transaction: Callable[[OwnConnection], T]) -> T:
        tries = 0
        while True:
            tries += 1
            loan = Loan(self._pool)
            try:
                return with_cleanup(lambda: loan.run(transaction), loan.end)  # noqa: B023 - over before the next one
            except psycopg.Error as error:
                if loan.is_inherited:
                    raise ForkedConnection(
                        f"{self.place}: this process was forked inside a transaction, which stays the parent's; "
                        "fork outside transactions"
                    ) from error
                if not self._may_try_again(error, tries):
                    raise faults.translate(error, self.place) from error
            except UnicodeEncodeError as error:
                raise DataRefused(f"{self.place}: {error}") from error
            time.sleep(random.uniform(0, 0.002 * tries))  # noqa: S311 - apart from whom we collided with

    def _may_try_again(self, error: psycopg.Error, tries: int) -> bool:
        if faults.is_lost(error):
            self._pool.forget_idle()
            return tries < _CONNECTION_TRIES
        if faults.is_unprepared(error):
            return tries < _CONNECTION_TRIES
        return faults.is_conflict(error) and tries < _TRIES

    # Users' transactions

    def join(
        self,
        connection: Any,
        work: Callable[[PostgresSession], T],
        *,
        ready: Collection[str] = (),
        ended: bool = False,
    ) -> T:
        found = user_connection.unwrap(connection)
        if isinstance(found, psycopg.AsyncConnection):
            raise user_connection.needs_await(connection)
        if not isinstance(found, psycopg.Connection):
            raise user_connection.refusal(connection, found, self.place)
        theirs = cast("psycopg.Connection[Any]", found)
        refuse_autocommit(theirs, self.place)
        return self._join(theirs, work, self._notes(ready, ended=ended), Cancellation())

    async def join_async(
        self,
        connection: Any,
        work: Callable[[PostgresSession], T],
        *,
        ready: Collection[str] = (),
        ended: bool = False,
    ) -> T:
        found = await user_connection.unwrap_async(connection)
        if not isinstance(found, psycopg.AsyncConnection):
            return self.join(found, work, ready=ready, ended=ended)
        theirs, cancellation = cast("psycopg.AsyncConnection[Any]", found), Cancellation()
        notes = self._notes(ready, ended=ended)
        async with theirs.lock:
            refuse_autocommit(theirs, self.place)
            with borrowed(theirs) as facade:
                joining = in_a_thread(lambda: self._join(facade, work, notes, cancellation))
                return await to_the_end(joining, cancellation, lambda: interrupt(theirs))

    def _join(
        self,
        connection: psycopg.Connection[Any],
        work: Callable[[PostgresSession], T],
        notes: Mapping[str, Sequence[str]],
        cancellation: Cancellation,
    ) -> T:
        cancellation.check()
        with joined(connection, self.place) as theirs:
            cancellation.guard()
            session = PostgresSession(theirs, self._catalogue, self._times(), is_users=True)
            self._refuse_elsewhere(session)
            self._warn_if_forgetful(session)
            try:
                answer = work(session)
            except UnicodeEncodeError as error:
                raise DataRefused(f"{self.place}: {error}") from error
            for channel, payloads in notes.items():
                session.rows("join_notify", channel=channel, notes=list(payloads))
            cancellation.check()
            return answer

    def _warn_if_forgetful(self, session: PostgresSession) -> None:
        """Asked once: how durable their commits are is their connections' own setting, mostly the server's."""
        if self._has_asked_users:
            return
        self._has_asked_users = True
        if session.rows("join_is_forgetful")[0][0]:
            log.warning(
                "%s: a connection= of this program has synchronous_commit off: a crash of the server may forget the "
                "jobs it commits, with the data that caused them",
                self.place,
            )

    def _notes(self, ready: Collection[str], *, ended: bool) -> dict[str, list[str]]:
        """What to send inside a user's transaction, whose commit this process will not see."""
        notes = {self._channels.work: sorted(set(ready)), self._channels.done: [""] if ended else []}
        return {channel: payloads for channel, payloads in notes.items() if payloads and self._notifies}

    def _refuse_elsewhere(self, session: PostgresSession) -> None:
        """Refuses another database, another schema's tables, and tables that are missing or too new."""
        theirs, ours = self._identity_of(session), self._identity
        if ours is None or theirs != ours:
            # Ours may have been noted before the server was restarted, or the tables made.
            ours = self._identity = self.identity()
        if theirs[:2] != ours[:2]:
            raise ConfigError(
                f"this connection leads to another database ({theirs[0]!r}) than the queue ({self.place}); "
                "use a connection to the same one"
            )
        if not self._schema_is_open:
            known = session.known()
            if not known:
                raise SchemaMissing(f"{self.place}: Dray's tables are not there yet; run `dray db init`")
            migrate.admit("postgres", known, self.place)
        if theirs != ours:
            raise ConfigError(
                f"this connection does not find the tables of the queue ({self.place}) by its search_path; give App "
                "the schema they are in (?schema=…)"
            )

    def _identity_of(self, session: PostgresSession) -> Row:
        return session.rows("join_identity", table=self._jobs_table)[0]

    def _session(self, connection: OwnConnection) -> PostgresSession:
        return PostgresSession(connection, self._catalogue, self._times())

    def transaction(self) -> PostgresTransaction:
        return PostgresTransaction(self._conninfo, self.place, self._connector.settings())

    def atransaction(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        return async_block(self._conninfo, self.place, self._connector.settings())

    # Wake-ups

    def watch(
        self, *, hears_work: bool = True, hears_done: bool = True, queues: Collection[str] | None = None
    ) -> PostgresWatch:
        return PostgresWatch(
            self._conninfo,
            self.schema,
            self._notify,
            listen_url=self._listen_url,
            hears_work=hears_work,
            hears_done=hears_done,
            queues=queues,
        )

    def announce(self, queues: Iterable[str]) -> None:
        for note in self._work_notes(queues):
            self._notifier.push(note)

    def _work_notes(self, queues: Iterable[str]) -> list[Note]:
        return [Note(self._channels.work, queue, WINDOW) for queue in dict.fromkeys(queues)]

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
        return self._persist(lambda connection: self._session(connection).known())

    def migrate(self) -> int:
        def transaction(connection: OwnConnection) -> int:
            return self._transact(connection, lambda session: self._upgrade(connection, session), durable=True)

        version = self._persist(transaction)
        self._schema_is_open = True
        return version

    def _upgrade(self, connection: OwnConnection, session: PostgresSession) -> int:
        session.rows("migrate_lock", space=MIGRATE_SPACE, key=lock_key(self.schema or ""))
        # With each migration, and not before: no right to create anything is needed where none is missing.
        schema = "" if self.schema is None else migrate.SCHEMA.format(schema=self.schema)
        return migrate.upgrade(
            "postgres",
            session,
            self.place,
            lambda text: connection.execute(cast(QueryNoTemplate, schema + text)),
        )

    def version(self) -> int | None:
        known = self._meta()
        return int(known["version"]) if known else None

    def close(self) -> None:
        self._notifier.flush()
        self._pool.forget_idle()
