"""A PostgreSQL database as a `Database`: a few connections, one round trip where one will do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, LiteralString, TypeVar

import psycopg

from dray.address import PostgresAddress
from dray.backends import migrate
from dray.backends.database import Copier, Database, DataRefused, Later, Proofs, Row, TookTooLong, nothing
from dray.backends.postgres import faults, tables
from dray.backends.postgres.connect import READ, WRITE, Connector, OwnConnection
from dray.backends.postgres.copier import PostgresCopier
from dray.backends.postgres.foreign import ForeignSession
from dray.backends.postgres.joins import Joins
from dray.backends.postgres.listen import PostgresWatch
from dray.backends.postgres.notify import DONE_WINDOW, NOTIFY, WINDOW, Note, Notifier, channels
from dray.backends.postgres.pool import Loan, Pool
from dray.backends.postgres.proof import PostgresProofs
from dray.backends.postgres.session import MIGRATE_SPACE, PostgresSession, lock_key
from dray.backends.postgres.transaction import PostgresTransaction, UsersConnection, async_block
from dray.backends.statements import Catalogue
from dray.clock import Clock, SystemClock
from dray.errors import ForkedConnection, StorageLocked
from dray.interrupts import with_cleanup
from dray.model.new_job import AlikeJobs

T = TypeVar("T")

_MOMENT = "1s"  # to wait for a lock that may be the caller's own

_TRIES = 8  # of a transaction that conflicts with another
_CONNECTION_TRIES = 3  # of a transaction whose connection was lost; connecting itself is tried once
_CONNECTIONS = 20
_LIMIT = "SELECT set_config('statement_timeout', %s, TRUE)"


class PostgresDatabase(Database):
    """One database (and schema) on a server."""

    # A transaction takes about 2 ms whatever is in it. On a file larger ones gain nothing.
    most_ahead = 2_000
    is_remote = True

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
        self._notifies = notify
        self._conninfo = address.conninfo
        self._listen_url = listen_url
        self._channels = channels(address.schema)
        self.jobs_table = "dray_jobs" if address.schema is None else f"{address.schema}.dray_jobs"
        self._notifier = Notifier(self._notify)
        self._joins = Joins(self, makes_tables=create)

    @property
    def copier(self) -> Copier:
        return PostgresCopier(self._conninfo, self.place, self._namespace)

    def _namespace(self) -> str:
        return self.read(lambda tx: tx.rows("table_namespace", table=self.jobs_table))[0][1]

    def verify(self, *, full: bool) -> list[str]:
        found = self.read(lambda session: tables.look(session, self.jobs_table))
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
        def look(connection: OwnConnection) -> T:
            connection.begin(READ)
            answer = work(self._session(connection))
            connection.execute("COMMIT")
            return answer

        self._open_schema()
        loan = Loan(self._pool)
        try:
            return with_cleanup(lambda: loan.run(look), loan.end)
        except psycopg.Error as error:
            raise faults.translate(error, self.place) from error

    def identity(self) -> Row:
        return self.ask("join_identity", table=self.jobs_table)[0]

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

    def exchange(
        self,
        work: Callable[[PostgresSession], Later[T]],
        *,
        durable: bool = False,  # noqa: ARG002
        meanwhile: Callable[[], None] = nothing,
    ) -> T:
        # How durable it is, `begin_work` says, in the same statement that takes the queues' locks.
        return self._again(
            lambda connection: self._pipelined(connection, work, WRITE, durable=True, meanwhile=meanwhile)()
        )

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
        meanwhile: Callable[[], None] = nothing,
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
                meanwhile()
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
        return self._joins.run(connection, work, self._notes(ready, ended=ended))

    async def join_async(
        self,
        connection: Any,
        work: Callable[[PostgresSession], T],
        *,
        ready: Collection[str] = (),
        ended: bool = False,
    ) -> T:
        return await self._joins.run_async(connection, work, self._notes(ready, ended=ended))

    def migrate_in(self, connection: Any) -> int:
        return self._joins.migrate(connection)

    async def migrate_in_async(self, connection: Any) -> int:
        return await self._joins.migrate_async(connection)

    def make_tables(self) -> None:
        """For a user's transaction. It may hold locks on old tables, and cannot end while its program waits here; and
        every reader of the tables waits behind an ALTER that waits. So this waits for a moment only."""
        try:
            self._open_schema(patience=_MOMENT)
        except StorageLocked as error:
            raise migrate.cannot_upgrade(self.place) from error

    def _notes(self, ready: Collection[str], *, ended: bool) -> dict[str, list[str]]:
        """What to send inside a user's transaction, whose commit this process will not see."""
        notes = {self._channels.work: sorted(set(ready)), self._channels.done: [""] if ended else []}
        return {channel: payloads for channel, payloads in notes.items() if payloads and self._notifies}

    def ask(self, name: str, /, **params: Any) -> list[Row]:
        """All rows of a statement, by a connection of our own, whatever tables are there."""
        return self._persist(lambda connection: self._session(connection).rows(name, **params))

    def users_session(self, connection: UsersConnection) -> PostgresSession:
        """A user's own connection as a session."""
        if isinstance(connection, psycopg.Connection):
            return PostgresSession(connection, self._catalogue, self._times(), is_users=True)
        return ForeignSession(connection, self._catalogue, self._times())

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

    def _open_schema(self, patience: str | None = None) -> None:
        """Refuses a database without tables or with tables that are too new, before the first transaction."""
        if self._schema_is_open:
            return
        known = self._meta()
        if self._create and migrate.is_behind("postgres", known):
            self.migrate(patience)
        elif not known:
            raise migrate.missing(self.place)
        else:
            migrate.admit("postgres", known, self.place)
        self._schema_is_open = True

    def _meta(self) -> dict[str, str]:
        return self._persist(lambda connection: self._session(connection).known())

    def migrate(self, patience: str | None = None) -> int:
        """`patience`: how long to wait for locks, if not for as long as usual."""

        def transaction(connection: OwnConnection) -> int:
            connection.begin(WRITE, durable=True)
            if patience is not None:
                connection.execute("SELECT set_config('lock_timeout', %s, TRUE)", [patience])
            version = self.upgrade(self._session(connection))
            connection.execute("COMMIT")
            return version

        version = self._persist(transaction)
        self._schema_is_open = True
        return version

    def upgrade(self, session: PostgresSession) -> int:
        """Makes or upgrades the tables in a session's transaction, whose search_path is another one afterwards."""
        session.rows("migrate_lock", space=MIGRATE_SPACE, key=lock_key(self.schema or ""))
        # With each migration, and not before: no right to create anything is needed where none is missing.
        schema = "" if self.schema is None else migrate.SCHEMA.format(schema=self.schema)
        return migrate.upgrade("postgres", session, self.place, lambda text: session.script(schema + text))

    def version(self) -> int | None:
        known = self._meta()
        return int(known["version"]) if known else None

    def is_writable(self) -> bool:
        return bool(self.glance("server_is_writable")[0][0])

    def close(self) -> None:
        self._notifier.flush()
        self._pool.close()
