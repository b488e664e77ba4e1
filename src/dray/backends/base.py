"""The storage contract: a backend, its life cycle, and one attribute for each store (`backend.jobs.enqueue(…)`).

The methods of a store (`store/`) are its verbs: each says what is atomic in it, what it returns and what
no rows mean. Verbs take batches; one job is a batch of one. They decide nothing: next states, delays and cut-offs
come from `model/`. Each is one transaction unless it says otherwise, safe to repeat after a lost answer, and the same
on every database. Where the backend itself repeats one whose answer was lost, it returns what both tries did.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from dray.address import SqliteAddress, parse_address
from dray.backends import sqlite
from dray.backends.store.block import Fence, TransactionBlock, check
from dray.clock import Clock
from dray.errors import ConfigError

if TYPE_CHECKING:
    from dray.backends.database import Database
    from dray.backends.store.actions import ActionStore
    from dray.backends.store.doctor import AuditStore, Examination
    from dray.backends.store.failures import FailureStore
    from dray.backends.store.graph import GraphStore
    from dray.backends.store.history import HistoryStore
    from dray.backends.store.imports import ImportStore
    from dray.backends.store.jobs import JobStore, QueueStore, WorkflowStore
    from dray.backends.store.limits import LimitStore
    from dray.backends.store.live import LiveStore
    from dray.backends.store.outcomes import OutcomeStore
    from dray.backends.store.overview import OverviewStore
    from dray.backends.store.pages import PageStore
    from dray.backends.store.rollups import RollupStore
    from dray.backends.store.schedules import ScheduleStore
    from dray.backends.store.search import SearchStore
    from dray.backends.store.stacks import StackStore
    from dray.backends.store.transfer import Transfer
    from dray.backends.store.why import WhyStore
    from dray.backends.store.work import WorkStore
    from dray.backends.store.workers import LeaseStore, WorkerStore

T = TypeVar("T")


def _load(module: str, name: str) -> Any:
    return getattr(import_module(f"dray.backends.store.{module}"), name)


def _store(module: str, name: str) -> Any:
    """A class of `store/`, loaded when it is first used."""

    def make(backend: Backend) -> Any:
        return _load(module, name)(backend.db)

    return cached_property(make)


class Backend:
    """All that Dray does to a database."""

    def __init__(self, db: Database) -> None:
        self.db = db
        # `Database` says what these do.
        self.migrate = db.migrate
        self.migrate_in = db.migrate_in
        self.migrate_in_async = db.migrate_in_async
        self.schema_version = db.version
        self.is_writable = db.is_writable
        self.now = db.now
        self.watch = db.watch
        self.announce = db.announce
        self.announce_done = db.announce_done
        self.verify = db.verify
        self.proofs = db.proofs
        self.upkeep = db.upkeep
        self.close = db.close

    jobs: JobStore = _store("jobs", "JobStore")
    work: WorkStore = _store("work", "WorkStore")
    outcomes: OutcomeStore = _store("outcomes", "OutcomeStore")
    graph: GraphStore = _store("graph", "GraphStore")
    workflows: WorkflowStore = _store("jobs", "WorkflowStore")
    queues: QueueStore = _store("jobs", "QueueStore")
    limits: LimitStore = _store("limits", "LimitStore")
    schedules: ScheduleStore = _store("schedules", "ScheduleStore")
    workers: WorkerStore = _store("workers", "WorkerStore")
    leases: LeaseStore = _store("workers", "LeaseStore")
    history: HistoryStore = _store("history", "HistoryStore")
    rollups: RollupStore = _store("rollups", "RollupStore")
    failures: FailureStore = _store("failures", "FailureStore")
    live: LiveStore = _store("live", "LiveStore")
    overview: OverviewStore = _store("overview", "OverviewStore")
    why: WhyStore = _store("why", "WhyStore")
    stacks: StackStore = _store("stacks", "StackStore")
    actions: ActionStore = _store("actions", "ActionStore")
    search: SearchStore = _store("search", "SearchStore")
    pages: PageStore = _store("pages", "PageStore")
    audit: AuditStore = _store("doctor", "AuditStore")
    transfer: Transfer = _store("transfer", "Transfer")
    imports: ImportStore = _store("imports", "ImportStore")

    def examine(self, seconds: float = 1.0) -> Examination:
        """Reads a database in whatever state, and changes nothing. `seconds`: the time limit of each question."""
        return _load("doctor", "Examination")(self.db, seconds)

    def seen_by(self, connection: Any) -> Backend:
        """The same tables, as the open transaction of a user's own connection sees them; writes are part of it."""
        return Backend(import_module("dray.backends.joined").LentDatabase(self.db, connection))

    async def read_async(self, connection: Any, look: Callable[[Backend], T]) -> T:
        """What `look` reads, as the transaction of a user's own connection sees it, which may be asynchronous."""

        def looked(seen: Database) -> T:
            return look(Backend(seen))

        return await import_module("dray.backends.awaiting").read(self.db, connection, looked)  # it loads asyncio

    def note_once(self, name: str, value: str) -> bool:
        """Notes something about this database; returns whether it was not noted before. Writes only then."""
        if name in self.db.read(lambda tx: tx.known()):
            return False
        return bool(self.db.write(lambda tx: tx.run("meta_add", name=name, value=value)))

    def noted(self, name: str) -> str | None:
        """What was noted about this database under a name."""
        return self.db.read(lambda tx: tx.known()).get(name)

    def transaction(self, *, fence: Fence | None = None) -> TransactionBlock:
        """A fresh connection of the driver's (sqlite3.Connection, psycopg.Connection) for the body of a job.

        Its transaction is durable, commits at the end of the block and rolls back after an error. With a fence
        (job id, worker id, claim) the block is entered only while that claim holds (else `StaleClaim`). On SQLite it
        holds the write lock; on PostgreSQL the job can be cancelled or taken back meanwhile, and `work.complete` at
        the end tells. After an error of the commit itself only the job's row says whether it happened: settle by the
        same fence.
        """
        return TransactionBlock(self.db, fence)

    @asynccontextmanager
    async def atransaction(self, *, fence: Fence | None = None) -> AsyncGenerator[Any]:
        """As `transaction`, for an event loop: sqlite3.Connection (of the loop's thread), psycopg.AsyncConnection."""
        async with self.db.atransaction() as connection:
            if fence is not None:
                await self.db.join_async(connection, lambda tx: check(tx, fence))
            yield connection


def open_backend(
    url: str,
    *,
    clock: Clock | None = None,
    busy_timeout: float = 30.0,
    file_mode: int = 0o600,
    create: bool | None = None,
    notify: bool = True,
    listen_url: str | None = None,
    tell_of_new_file: bool = False,
) -> Backend:
    """The backend for an address; connects at the first call.

    `create`: make missing tables at the first call. By default a SQLite file does, and a PostgreSQL database waits
    for `migrate()`. `notify`: wake workers when a user's own transaction commits; on PostgreSQL this is a NOTIFY
    inside it, which such commits then do one after the other, and which cannot be prepared (two-phase commit).
    `listen_url`: a way to the same PostgreSQL around its pooler, which would not deliver notifications.
    `tell_of_new_file`: log where a new SQLite file is made.
    """
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        create = create is not False
        return Backend(
            sqlite.SqliteDatabase(
                address.path,
                clock=clock,
                busy_timeout=busy_timeout,
                file_mode=file_mode,
                create=create,
                tell_of_new_file=tell_of_new_file,
            )
        )
    # psycopg costs 200 ms and 20 MB to import: only those pay who use PostgreSQL.
    try:
        from dray.backends.postgres import PostgresDatabase  # noqa: PLC0415 - psycopg is an extra
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL needs psycopg 3: pip install 'dray[postgres]'") from error

    return Backend(
        PostgresDatabase(
            address,
            clock=clock,
            busy_timeout=busy_timeout,
            create=bool(create),
            notify=notify,
            listen_url=listen_url,
        )
    )
