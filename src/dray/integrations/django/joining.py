"""A database that every call reaches in the right transaction: the one that `atomic()` has open in this thread, or,
outside, one of Dray's own. A database in memory is reached through Django's connection alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from django.db.transaction import Atomic, TransactionManagementError

from dray.backends.database import Copier, Database, Later, OpenTransaction, Row, Session
from dray.backends.joined import JoinedDatabase
from dray.backends.watch import Watch
from dray.errors import ConfigError
from dray.integrations.django.addresses import connection_of, is_in_memory
from dray.model.new_job import AlikeJobs

T = TypeVar("T")


@contextmanager
def open_transaction(alias: str) -> Generator[Any]:
    """The driver's connection in the transaction of this thread; None: there is none, and none is needed."""
    django = connection_of(alias)
    if is_open(django):
        yield _driver(django)
    elif is_in_memory(django):
        with Atomic(alias, savepoint=True, durable=False):
            yield _driver(django)
    else:
        yield None


def is_open(django: Any) -> bool:
    """Whether the program has a transaction open: by `atomic()`, or without autocommit."""
    return django.in_atomic_block or (django.connection is not None and not django.autocommit)


def _driver(django: Any) -> Any:
    django.validate_no_broken_transaction()
    if django.connection is None:
        raise TransactionManagementError("the connection was closed inside atomic(): end the block, and begin again")
    return django.connection


class DjangoDatabase(Database):
    """The tables as the calling thread should see them."""

    def __init__(self, own: Database, alias: str) -> None:
        self._own = own
        self._alias = alias
        self.clock = own.clock
        self.place = own.place
        self.proofs = own.proofs
        self.upkeep = own.upkeep

    @contextmanager
    def _here(self) -> Generator[Database]:
        with open_transaction(self._alias) as connection:
            yield self._own if connection is None else JoinedDatabase(self._own, connection)

    @property
    def boot(self) -> str | None:
        return self._own.boot

    @property
    def copier(self) -> Copier:
        return self._own.copier

    def now(self) -> int:
        return self._own.now()

    def read(self, work: Callable[[Session], T]) -> T:
        with self._here() as db:
            return db.read(work)

    def snapshot(self, work: Callable[[Session], T]) -> T:
        with self._here() as db:
            return db.snapshot(work)

    def identity(self) -> Row | None:
        return self._own.identity()

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        with self._here() as db:
            return db.glance(name, **params)

    def inspect(self, work: Callable[[Session], T], *, seconds: float) -> T:
        with self._here() as db:
            return db.inspect(work, seconds=seconds)

    def write(self, work: Callable[[Session], T], *, durable: bool = True, many: bool = False) -> T:
        with self._here() as db:
            return db.write(work, durable=durable, many=many)

    def check_may_write(self) -> None:
        with self._here() as db:
            db.check_may_write()

    def exchange(self, work: Callable[[Session], Later[T]], **options: Any) -> T:
        with self._here() as db:
            return db.exchange(work, **options)

    def post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool = True) -> None:
        with self._here() as db:
            db.post(gather, durable=durable)

    def join(self, connection: Any, work: Callable[[Session], T], **options: Any) -> T:
        return self._own.join(connection, work, **options)

    async def join_async(self, connection: Any, work: Callable[[Session], T], **options: Any) -> T:
        return await self._own.join_async(connection, work, **options)

    def transaction(self) -> OpenTransaction:
        with self._here() as db:
            return db.transaction()

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        with self._here() as db:
            return db.atransaction()

    def watch(self, **options: Any) -> Watch:
        self._refuse_memory()
        return self._own.watch(**options)

    def announce(self, queues: Iterable[str]) -> None:
        with self._here() as db:
            db.announce(queues)

    def announce_done(self) -> None:
        with self._here() as db:
            db.announce_done()

    def verify(self, *, full: bool) -> list[str]:
        self._refuse_memory()
        return self._own.verify(full=full)

    def migrate(self) -> int:
        with open_transaction(self._alias) as connection:
            return self._own.migrate() if connection is None else self._own.migrate_in(connection)

    def migrate_in(self, connection: Any) -> int:
        return self._own.migrate_in(connection)

    async def migrate_in_async(self, connection: Any) -> int:
        return await self._own.migrate_in_async(connection)

    def version(self) -> int | None:
        with open_transaction(self._alias) as connection:
            if connection is None:
                return self._own.version()
            known = self._own.join(connection, lambda tx: tx.known())
            return int(known["version"]) if known else None

    def is_writable(self) -> bool:
        return is_in_memory(connection_of(self._alias)) or self._own.is_writable()

    def close(self) -> None:
        self._own.close()  # Django's connections are Django's

    def _refuse_memory(self) -> None:
        if is_in_memory(connection_of(self._alias)):
            raise ConfigError(
                f"DATABASES[{self._alias!r}] is a SQLite database in memory, which no worker and no other connection "
                "reaches: in tests, dray.testing.drain(app) runs the jobs; elsewhere, give NAME a file"
            )
