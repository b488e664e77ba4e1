"""A SQLite file as a `Database`: one writer connection a process behind a lock, readers beside it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from dray import forks
from dray.backends import migrate, sqlite
from dray.backends.database import Copier, Database, Later, Proofs, Row
from dray.backends.rows import merged
from dray.backends.sqlite import faults, files, fork
from dray.backends.sqlite.connect import (
    WRITER_CACHE,
    closed_on_error,
    connect,
    enter_wal,
    patiently,
    patiently_awaiting,
    refuse_missing,
    run_script,
    tolerantly,
)
from dray.backends.sqlite.files import Way
from dray.backends.sqlite.inspect import inspected, verify
from dray.backends.sqlite.proof import SqliteProofs
from dray.backends.sqlite.readers import Readers, Visit
from dray.backends.sqlite.session import SqliteSession, insert_plain, is_one_row
from dray.backends.sqlite.transaction import SqliteBlock, SqliteTransaction
from dray.backends.sqlite.upkeep import Deference, Upkeep
from dray.backends.statements import Catalogue
from dray.clock import Clock, SystemClock
from dray.errors import DrayError, StorageError, StorageLocked
from dray.interrupts import Lent, OwnedLock, with_cleanup
from dray.log import log
from dray.model.new_job import AlikeJobs

T = TypeVar("T")

_MOMENT = 1.0  # seconds to wait for a lock that may be the caller's own
_FORK_PATIENCE = 2.0  # seconds that a fork waits for transactions of other threads


class SqliteDatabase(Database):
    """One file. Opened at the first call, again after a fork."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        busy_timeout: float = 30.0,
        file_mode: int = 0o600,
        create: bool = True,
        tell_of_new_file: bool = False,
    ) -> None:
        self.path = path
        self.place = str(path)
        self.clock: Clock = clock or SystemClock()
        self._busy_timeout = busy_timeout
        self._file_mode = file_mode
        self._create = create
        self._tells_of_new_file = tell_of_new_file
        self.proofs: Proofs = SqliteProofs(path, self.clock)
        self.upkeep = Upkeep(path, self._reading, self._exclusive)
        self._catalogue = Catalogue("sqlite")
        self._locks = fork.ProcessLocks(path)
        self._broken = False
        self._write_lock = OwnedLock()
        self._has_inherited = False
        self._has_told_of_freeze = False
        self._fork_is_clean = False
        self._fork_writes = False  # the thread that forks is inside a transaction of its own
        self._start_over()
        forks.watch(self)

    @property
    def copier(self) -> Copier:
        return sqlite.SqliteCopier(self.path, self._reading, self._busy_timeout)

    def verify(self, *, full: bool) -> list[str]:
        return verify(self.glance, full=full)

    def _start_over(self) -> None:
        self._write_lock.start_over()
        self._writer: sqlite3.Connection | None = None
        self._writer_session: SqliteSession | None = None
        self._synchronous = ""
        self._file: Row | None = None  # the one that is open
        self._readers = Readers(self._connect_reader)
        self._blocks: dict[SqliteBlock, int] = {}  # each with the thread that it keeps the write lock for

    @property
    def boot(self) -> str | None:
        return self.clock.boot

    def now(self) -> int:
        return self.clock.now()

    # Transactions

    def write(self, work: Callable[[SqliteSession], T], *, durable: bool = True, many: bool = False) -> T:  # noqa: ARG002
        self.check_may_write()
        return with_cleanup(lambda: self._write(work, durable=durable), self._give_writer_back)

    def _write(self, work: Callable[[SqliteSession], T], *, durable: bool) -> T:
        connection = self._take_writer()
        self._deference.pay(connection)
        return self._transact(connection, work, durable=durable)

    def exchange(self, work: Callable[[SqliteSession], Later[T]], *, durable: bool = False, **_: Any) -> T:
        return self.write(work, durable=durable)()

    def post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool = True) -> None:
        with_cleanup(lambda: self._post(gather, durable=durable), self._give_writer_back)

    def _post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool) -> None:
        def work(tx: SqliteSession) -> None:
            for jobs in merged(gather()):
                tx.insert_alike(jobs)

        connection = self._take_writer()
        self._deference.pay(connection)
        batch = gather()
        if not (is_one_row(batch) and self._insert(connection, batch[0], durable=durable)):
            self._transact(connection, work, durable=durable)

    def _insert(self, connection: sqlite3.Connection, jobs: AlikeJobs, *, durable: bool) -> bool:
        """One statement, which is a transaction of its own. False: another connection has the write lock."""
        try:
            self._sync(connection, durable=durable)
            insert_plain(connection, self._catalogue, jobs, self.clock.now())
        except (sqlite3.Error, *faults.UNWRITABLE) as error:
            if faults.is_busy(error):
                return False
            raise self._fault(error) from error
        return True

    def _transact(self, connection: sqlite3.Connection, work: Callable[[SqliteSession], T], *, durable: bool) -> T:
        try:
            return tolerantly(connection, lambda: self._try(connection, work, durable=durable))
        except (sqlite3.Error, *faults.UNWRITABLE) as error:
            raise self._fault(error) from error

    def _fault(self, error: Exception) -> DrayError:
        """In a child that was forked amid this call, the writer refuses all statements."""
        return faults.forked(self.place) if self._broken else faults.translate(error, self.place)

    def _try(self, connection: sqlite3.Connection, work: Callable[[SqliteSession], T], *, durable: bool) -> T:
        self._sync(connection, durable=durable)
        self._writer_session = session = SqliteSession(connection, self._catalogue, self.clock)
        try:
            # IMMEDIATE: a deferred transaction that writes after reading fails at once when another connection wrote.
            patiently(session.begin, self._busy_timeout, self.place)
            answer = work(session)
            session.check()
            connection.execute("COMMIT")
        except BaseException:
            session.roll_back()
            raise
        return answer

    def _sync(self, connection: sqlite3.Connection, *, durable: bool) -> None:
        level = "FULL" if durable else "NORMAL"
        if level != self._synchronous:
            self._synchronous = ""  # not known, if this is interrupted
            connection.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level

    def _exclusive(self) -> Lent[sqlite3.Connection]:
        """The writer connection, for this thread alone."""
        self.check_may_write()
        return Lent(self._take_writer, self._give_writer_back)

    def check_may_write(self) -> None:
        """Before anything is taken: what is given back at the end must be this call's own."""
        self._refuse_if_broken()
        if self._write_lock.is_mine:
            raise StorageError(f"{self.place}: a write was started inside another one of the same thread")
        if threading.get_ident() in list(self._blocks.values()):
            raise StorageLocked(
                f"{self.place}: this thread has a transaction() block open, which keeps the write lock; use its "
                "connection (connection=), or wait for its end"
            )

    def _take_writer(self) -> sqlite3.Connection:
        if not self._write_lock.acquire(self._busy_timeout):
            raise faults.locked(self.place, self._busy_timeout)
        writer = self._writer
        if writer is not None:
            self._refuse_if_moved()
        else:
            self._writer = writer = self._open(create=self._create)
        return writer

    def _give_writer_back(self) -> None:
        """Ends what was cut short, and frees the lock. After a fork in between, the child has another one."""
        if not self._write_lock.is_mine:
            return
        session = self._writer_session
        if session is not None and not session.is_over:
            # Not even a ROLLBACK came through: whatever this connection is in the middle of ends with it.
            if self._writer is not None:
                self._writer.close()
            self._writer = self._file = None
        self._writer_session = None
        self._write_lock.release_if_mine()

    def read(self, work: Callable[[SqliteSession], T]) -> T:
        visit = Visit(self._readers)
        return with_cleanup(lambda: self._look(visit, self._take_reader(visit), work), visit.end)

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        def look(visit: Visit) -> list[Row]:
            connection = self._take_reader(visit)
            visit.session = session = SqliteSession(connection, self._catalogue, self.clock)
            return self._patiently(connection, lambda: session.rows(name, **params))

        visit = Visit(self._readers)
        return with_cleanup(lambda: look(visit), visit.end)

    def _look(self, visit: Visit, connection: sqlite3.Connection, work: Callable[[SqliteSession], T]) -> T:
        def look() -> T:
            visit.session = session = SqliteSession(connection, self._catalogue, self.clock)
            try:
                connection.execute("BEGIN")
                answer = work(session)
                if not session.forked:
                    connection.execute("COMMIT")
            except BaseException:
                session.roll_back()
                raise
            return answer

        return self._patiently(connection, look)

    def _patiently(self, connection: sqlite3.Connection, look: Callable[[], T]) -> T:
        return patiently(lambda: tolerantly(connection, look), self._busy_timeout, self.place)

    def _reading(self) -> Lent[sqlite3.Connection]:
        """A connection that does not write, for this thread alone."""
        visit = Visit(self._readers)
        return Lent(lambda: self._take_reader(visit), visit.end)

    def _take_reader(self, visit: Visit) -> sqlite3.Connection:
        way = Way.WRITE if self._writer is not None else files.way(self.path)
        if way is Way.READ or way is Way.FROZEN:
            return self._view(visit, way)
        self._open_file()
        self._refuse_if_broken()
        if self._file != self.identity():
            self._open_file(again=True)
        return visit.read()

    def _view(self, visit: Visit, way: Way) -> sqlite3.Connection:
        """A connection to a file that may only be read, for one look: the next may find that it can be written."""
        self._refuse_if_broken()
        if way is Way.READ:
            files.refuse_network(self.path)
        connection = visit.view(lambda: self._connect(way))
        known = self._meta(connection)
        refuse_missing(known, self.place)
        migrate.admit("sqlite", known, self.place)
        self._tell_of(way)
        return connection

    def _tell_of(self, way: Way) -> None:
        if way is Way.FROZEN and not self._has_told_of_freeze:
            self._has_told_of_freeze = True
            log.warning(
                "%s: may only be read here, and has no -wal beside it: what is shown is frozen, as the file was left",
                self.place,
            )

    def _open_file(self, *, again: bool = False) -> None:
        if self._writer is None or again:
            with self._exclusive():
                pass  # the file and its tables are there now

    def _refuse_if_moved(self) -> None:
        """What is written to a file that was removed is lost. The next call opens what is there by then."""
        if self._file == self.identity():
            return
        self._refuse_if_broken()  # it was forked meanwhile
        self._let_go()
        raise faults.moved(self.place)

    def snapshot(self, work: Callable[[SqliteSession], T]) -> T:
        def look() -> T:
            connection = self._take_reader(visit)
            connection.text_factory = str  # what is copied is what is stored, or an error
            visit.session = session = SqliteSession(connection, self._catalogue, self.clock)
            connection.execute("BEGIN")
            try:
                return work(session)
            finally:
                session.roll_back()  # it has only read

        visit = Visit(self._readers)
        try:
            return with_cleanup(look, visit.end)
        except sqlite3.Error as error:
            raise faults.translate(error, self.place) from error

    def identity(self) -> Row | None:
        return files.identity(self.place)

    def inspect(self, work: Callable[[SqliteSession], T], *, seconds: float) -> T:
        def look() -> T:
            visit.begin()
            return inspected(
                self.path, lambda found: work(SqliteSession(found, self._catalogue, self.clock)), seconds
            )

        self._refuse_if_broken()
        visit = Visit(self._readers)
        return with_cleanup(look, visit.end)

    def _connect(self, way: Way = Way.WRITE) -> sqlite3.Connection:
        return patiently(lambda: connect(self.path, way=way), self._busy_timeout, self.place)

    def _connect_reader(self) -> sqlite3.Connection:
        connection, query_only = self._connect(), "PRAGMA query_only = ON"
        return closed_on_error(
            connection, lambda: patiently(lambda: connection.execute(query_only), self._busy_timeout, self.place)
        )

    # Users' transactions

    @cached_property
    def _joins(self) -> sqlite.Joins:
        return sqlite.Joins(self.path, self._catalogue, self.clock, self._make_tables)

    # The commit itself tells what is ready and what has ended.

    def join(self, connection: Any, work: Callable[[SqliteSession], T], **_: Any) -> T:
        return self._joins.run(connection, work)

    async def join_async(self, connection: Any, work: Callable[[SqliteSession], T], **_: Any) -> T:
        return await self._joins.run_async(connection, work)

    def migrate_in(self, connection: Any) -> int:
        return self._joins.migrate(connection)

    async def migrate_in_async(self, connection: Any) -> int:
        return await self._joins.migrate_async(connection)

    def transaction(self) -> SqliteTransaction:
        self._refuse_if_broken()
        visit = Visit(self._readers)
        settings = self.path, visit, self._blocks, self.clock, self._busy_timeout, self._open_file
        return SqliteTransaction(*settings, lambda: self._deference)  # known once the file is open

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[sqlite3.Connection]:
        if self._writer is None:
            import asyncio  # noqa: PLC0415 - 40 ms for those who do not have it loaded

            await asyncio.to_thread(self._open_file)
        transaction = self.transaction()
        try:
            block = transaction.open()
            await patiently_awaiting(transaction.take_lock, self._busy_timeout, self.place)
            yield block
            transaction.commit()
        finally:
            transaction.end()

    # Wake-ups

    def watch(self, **_: Any) -> sqlite.SqliteWatch:  # it hears every commit
        self.read(lambda _: None)  # the file is there, in WAL mode
        return sqlite.SqliteWatch(self.path, busy_timeout=self._busy_timeout)

    # Opening

    def _open(self, *, create: bool) -> sqlite3.Connection:
        """The writer, on a file that is in order: in WAL mode, its tables made or admitted."""
        files.prepare(self.path, self._file_mode, create=create, tell=self._tells_of_new_file)
        if self._locks.are_inherited():
            self._locks.remember()
            self._broken = not self._locks.take()
            self._refuse_if_broken()
        file = self.identity()  # before: if it is replaced meanwhile, the next call finds another
        is_new = self.path.stat().st_size == 0
        self._synchronous = ""
        self._deference = Deference(self.clock, self._catalogue)
        connection = self._connect()
        try:
            known = self._meta(connection)
            if not create:
                refuse_missing(known, self.place)
            patiently(lambda: connection.execute(WRITER_CACHE), self._busy_timeout, self.place)
            patiently(lambda: enter_wal(connection, self.place, is_new=is_new), self._busy_timeout, self.place)
            if create and migrate.is_behind("sqlite", known):
                self._upgrade(connection)
            else:
                migrate.admit("sqlite", known, self.place)
        except BaseException:
            connection.close()
            raise
        self._file = file
        return connection

    def _meta(self, connection: sqlite3.Connection) -> dict[str, str]:
        return self._look(Visit(self._readers), connection, SqliteSession.known)

    def _upgrade(self, connection: sqlite3.Connection) -> int:
        run = partial(run_script, connection)
        return self._transact(connection, lambda tx: migrate.upgrade("sqlite", tx, self.place, run), durable=True)

    def migrate(self) -> int:
        create, self._create = self._create, True
        try:
            with self._exclusive() as connection:
                return self._upgrade(connection)
        finally:
            self._create = create

    def _make_tables(self, *, in_transaction: bool) -> bool:
        """For a user's transaction, by a connection of its own; returns whether the tables are there. A transaction
        that is open may hold the lock, and cannot end while its program waits here: this waits for a moment only."""
        if self._writer is not None:
            return True
        patience = min(_MOMENT, self._busy_timeout) if in_transaction else self._busy_timeout
        maker = SqliteDatabase(self.path, clock=self.clock, busy_timeout=patience, file_mode=self._file_mode)

        def make() -> bool:
            version = maker.version()
            if version is None or version < migrate.latest("sqlite"):
                if not self._create:
                    return False
                maker.migrate()
            return True

        try:
            return with_cleanup(make, maker.close)
        except StorageLocked as error:
            raise migrate.cannot_make(self.place, in_transaction=in_transaction, seconds=patience) from error

    def is_writable(self) -> bool:
        return files.way(self.path) in {None, Way.WRITE}

    def version(self) -> int | None:
        way = files.way(self.path)
        if way is None:
            return None
        with closing(self._connect(way)) as connection:
            known = self._meta(connection)
        self._tell_of(way)
        return int(known["version"]) if known else None

    # Fork and end

    def before_fork(self) -> None:
        self._fork_writes = self._write_lock.is_mine
        is_mine = self._fork_writes or self._readers.is_mine()
        has_lock = not is_mine and self._write_lock.acquire(_FORK_PATIENCE)
        quiet = self._readers.hold(0 if is_mine else _FORK_PATIENCE)
        self._fork_is_clean = has_lock and quiet
        if self._has_files_open():
            self._locks.remember()

    def after_fork_in_parent(self) -> None:
        self._readers.go_on()
        if not self._fork_writes:
            self._write_lock.release_if_mine()

    def after_fork_in_child(self) -> None:
        opened = self._has_files_open()
        self._readers.disown()
        fork.disown(self._blocks, self._writer, self._writer_session, amid_a_write=self._fork_writes)
        self._start_over()
        if opened:
            self._has_inherited = True
            self._broken = self._broken or not self._fork_is_clean or not self._locks.take()

    def _has_files_open(self) -> bool:
        """Whether SQLite has this database open in this process: by us, or by a connection of a forebear's."""
        return self._has_inherited or self._writer is not None or self._readers.any_open or bool(self._blocks)

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise faults.forked(self.place)

    def close(self) -> None:
        with self._write_lock.lock:
            self._let_go()

    def _let_go(self) -> None:
        self._readers.close()
        if self._writer is not None:  # last: the connection that closes last moves the log into the file
            self._writer.close()
            self._writer = self._file = None
