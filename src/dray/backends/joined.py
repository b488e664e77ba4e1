"""A database seen through one open transaction of a user's: every verb runs inside it, and nothing is committed.

For tests whose data is never committed (`dray.testing.drain(app, connection=…)`), and for handles that read on the
connection of a user (`app.job(id, connection=…)`): all stores work on it as they do on the database itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from dray.backends.database import Copier, Database, Later, OpenTransaction, Row, Session
from dray.backends.user_connection import is_idle, unwrap
from dray.backends.watch import Watch
from dray.errors import ConfigError
from dray.model.new_job import AlikeJobs

T = TypeVar("T")


class JoinedDatabase(Database):
    """The tables as the transaction of a synchronous connection sees them."""

    def __init__(self, db: Database, connection: Any) -> None:
        self._db = db
        self._connection = connection
        self.clock = db.clock
        self.place = db.place
        self.proofs = db.proofs

    @property
    def boot(self) -> str | None:
        return self._db.boot

    @property
    def copier(self) -> Copier:
        return self._db.copier

    def now(self) -> int:
        return self._db.now()

    def read(self, work: Callable[[Session], T]) -> T:
        return self._db.join(self._connection, work)

    def snapshot(self, work: Callable[[Session], T]) -> T:
        return self.read(work)

    def inspect(self, work: Callable[[Session], T], *, seconds: float) -> T:  # noqa: ARG002 - the user's connection has its own limits
        return self.read(work)

    def identity(self) -> Row | None:
        return self._db.identity()

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        return self.read(lambda tx: tx.rows(name, **params))

    def write(self, work: Callable[[Session], T], *, durable: bool = True, many: bool = False) -> T:  # noqa: ARG002 - the user commits
        return self._db.join(self._connection, work)

    def exchange(self, work: Callable[[Session], Later[T]], **_: Any) -> T:
        return self._db.join(self._connection, lambda tx: work(tx)())

    def post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool = True) -> None:  # noqa: ARG002 - as above
        def work(tx: Session) -> None:
            for jobs in gather():
                tx.insert_alike(jobs)

        self._db.join(self._connection, work)

    def join(self, connection: Any, work: Callable[[Session], T], **options: Any) -> T:
        return self._db.join(connection, work, **options)

    async def join_async(self, connection: Any, work: Callable[[Session], T], **options: Any) -> T:
        return await self._db.join_async(connection, work, **options)

    def transaction(self) -> OpenTransaction:
        return _Savepoint(unwrap(self._connection))

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        raise ConfigError(
            "`async with ctx.transaction()` needs a connection of its own, which sees nothing of the test's open "
            "transaction: commit first, and call drain(app) without connection="
        )

    def watch(self, **options: Any) -> Watch:
        return self._db.watch(**options)

    def announce(self, queues: Iterable[str]) -> None:
        """By the user's commit: before it, workers would look and find nothing."""
        ready = set(queues)
        if ready:
            self._db.join(self._connection, _no_work, ready=ready)

    def announce_done(self) -> None:
        self._db.join(self._connection, _no_work, ended=True)

    def verify(self, *, full: bool) -> list[str]:
        return self._db.verify(full=full)

    def migrate(self) -> int:
        return self._db.migrate()

    def migrate_in(self, connection: Any) -> int:
        return self._db.migrate_in(connection)

    async def migrate_in_async(self, connection: Any) -> int:
        return await self._db.migrate_in_async(connection)

    def version(self) -> int | None:
        return self._db.version()

    def is_writable(self) -> bool:
        return self._db.is_writable()

    def close(self) -> None:
        self._db.close()  # the user's own connection is theirs


class LentDatabase(JoinedDatabase):
    """The same, for a connection that need not have a transaction open.

    Without one it sees no more than others do. Reading there would open one and leave it open, on SQLite with the
    write lock; so the database's own connections read.
    """

    def read(self, work: Callable[[Session], T]) -> T:
        return self._db.read(work) if is_idle(unwrap(self._connection)) else super().read(work)


class SessionDatabase(JoinedDatabase):
    """What a coroutine reads, inside `join_async`: the tables as this session sees them."""

    def __init__(self, db: Database, tx: Session) -> None:
        super().__init__(db, None)
        self._tx = tx

    def read(self, work: Callable[[Session], T]) -> T:
        return work(self._tx)


def _no_work(_: Session) -> None:
    """Only the announcement is part of the transaction."""


class _Savepoint:
    """An `OpenTransaction` inside the user's: kept at its end, undone after an error."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_open = False

    def begin(self) -> Any:
        self._is_open = True
        self._connection.cursor().execute("SAVEPOINT dray_block")
        return self._connection

    def commit(self) -> None:
        self._connection.cursor().execute("RELEASE SAVEPOINT dray_block")
        self._is_open = False

    def end(self) -> None:
        if self._is_open:
            self._connection.cursor().execute("ROLLBACK TO SAVEPOINT dray_block")
            self._connection.cursor().execute("RELEASE SAVEPOINT dray_block")
            self._is_open = False
