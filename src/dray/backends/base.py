"""The storage contract: a backend, its life cycle, and one property for each noun (`backend.jobs.enqueue(…)`).

The verbs of a noun are the methods of its class in `store/`: each says what is atomic in it, what it returns and what
no rows mean. Verbs take batches; one job is a batch of one. They decide nothing: next states, delays and cut-offs
come from `model/`. Each is one transaction unless it says otherwise, safe to repeat after a lost answer, and the same
on every database. Where the backend itself repeats one whose answer was lost, it returns what both tries did.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from dray.address import SqliteAddress, parse_address
from dray.backends import store
from dray.backends.sqlite import SqliteDatabase
from dray.clock import Clock
from dray.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from contextlib import AbstractAsyncContextManager

    from dray.backends.database import Checkpoint, Copier, Database, LogFile
    from dray.backends.watch import Watch


class Backend:
    """All that Dray does to a database."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def migrate(self) -> int:
        """Creates or upgrades the tables under a lock; returns their version. Any number may run at once."""
        return self.db.migrate()

    def schema_version(self) -> int | None:
        """The version of the tables; None: there are none."""
        return self.db.version()

    def now(self) -> int:
        """The database's time: the server's where there is one, this machine's otherwise."""
        return self.db.now()

    def watch(
        self, *, hears_work: bool = True, hears_done: bool = True, queues: Collection[str] | None = None
    ) -> Watch:
        """A new watch on this database, whose tables must be there; look once after making it.

        It need not tell of jobs that are ready, of jobs that have ended, or of other queues than these; where every
        commit wakes, it does.
        """
        return self.db.watch(hears_work=hears_work, hears_done=hears_done, queues=queues)

    def announce(self, queues: Iterable[str]) -> None:
        """Tells other processes' watches that jobs of these queues are ready, where the commit does not tell."""
        self.db.announce(queues)

    def announce_done(self) -> None:
        """Tells other processes' watches that jobs have ended, where the commit does not tell."""
        self.db.announce_done()

    def verify(self, *, full: bool = False) -> list[str]:
        """What is wrong with how the tables are stored, by the database's own checks; full ones read all there is."""
        return self.db.verify(full=full)

    @property
    def copier(self) -> Copier:
        """Makes copies of the whole as it is at one moment, while others write."""
        return self.db.copier

    def close(self) -> None:
        """Closes this process's connections. Nothing is lost: there is no buffer."""
        self.db.close()

    # The nouns; each is loaded when it is first used.

    @cached_property
    def jobs(self) -> store.JobStore:
        """Jobs as producers and operators see them."""
        return store.JobStore(self.db)

    @cached_property
    def work(self) -> store.WorkStore:
        """Jobs in the hands of workers: claimed, reported on, ended."""
        return store.WorkStore(self.db)

    @cached_property
    def outcomes(self) -> store.OutcomeStore:
        """Outcomes that a worker could not write before it had to go."""
        return store.OutcomeStore(self.db)

    @cached_property
    def graph(self) -> store.GraphStore:
        """Jobs that wait for others."""
        return store.GraphStore(self.db)

    @cached_property
    def workflows(self) -> store.WorkflowStore:
        """Workflows, to look at."""
        return store.WorkflowStore(self.db)

    @cached_property
    def queues(self) -> store.QueueStore:
        """Queues and their pauses."""
        return store.QueueStore(self.db)

    @cached_property
    def schedules(self) -> store.ScheduleStore:
        """Schedules and their slots."""
        return store.ScheduleStore(self.db)

    @cached_property
    def workers(self) -> store.WorkerStore:
        """Workers, their proofs of life, and the jobs of dead ones."""
        return store.WorkerStore(self.db)

    @cached_property
    def leases(self) -> store.LeaseStore:
        """Which worker has which duty."""
        return store.LeaseStore(self.db)

    @cached_property
    def history(self) -> store.HistoryStore:
        """What is kept of the past, until it is pruned."""
        return store.HistoryStore(self.db)

    @cached_property
    def live(self) -> store.LiveStore:
        """What live views read."""
        return store.LiveStore(self.db)

    @cached_property
    def why(self) -> store.WhyStore:
        """What explains where a job is."""
        return store.WhyStore(self.db)

    @cached_property
    def stacks(self) -> store.StackStore:
        """Where running bodies are."""
        return store.StackStore(self.db)

    @cached_property
    def audit(self) -> store.AuditStore:
        """What should never be in the tables."""
        return store.AuditStore(self.db)

    @property
    def transfer(self) -> store.Transfer:
        """This database as one side of a move into another."""
        return store.Transfer(self.db)

    def examine(self, seconds: float = 1.0) -> store.Examination:
        """Reads a database in whatever state, and changes nothing. `seconds`: the time limit of each question."""
        return store.Examination(self.db, seconds)

    def transaction(self, *, fence: tuple[str, str, int] | None = None) -> store.TransactionBlock:
        """A fresh connection of the driver's (sqlite3.Connection, psycopg.Connection) for the body of a job.

        Its transaction is durable, commits at the end of the block and rolls back after an error. With a fence
        (job id, worker id, claim) the block is entered only while that claim holds (else `StaleClaim`). On SQLite it
        holds the write lock; on PostgreSQL the job can be cancelled or taken back meanwhile, and `work.complete` at
        the end tells. After an error of the commit itself only the job's row says whether it happened: settle by the
        same fence.
        """
        return store.TransactionBlock(self.db, fence and store.Fence(*fence))

    def atransaction(self, *, fence: tuple[str, str, int] | None = None) -> AbstractAsyncContextManager[Any]:
        """As `transaction`, for an event loop: sqlite3.Connection (of the loop's thread), psycopg.AsyncConnection."""
        return store.atransaction(self.db, fence and store.Fence(*fence))

    # The file, where there is no server to look after it

    @property
    def has_file(self) -> bool:
        """Whether this database is a file, which needs upkeep."""
        return self.db.upkeep is not None

    def file_log(self) -> LogFile | None:
        """The write-ahead log as the file system shows it; it has been written if that differs."""
        return None if self.db.upkeep is None else self.db.upkeep.log()

    def file_checkpoint(self, *, waits: bool = False) -> Checkpoint | None:
        """Copies the write-ahead log back into the file. Waits: keeps writers out until the log can start over, if
        that takes no longer than a second."""
        return None if self.db.upkeep is None else self.db.upkeep.checkpoint(waits=waits)

    def file_vacuum(self, pages: int) -> bool:
        """Gives at most `pages` unused pages back to the file system; returns whether there are more."""
        return self.db.upkeep is not None and self.db.upkeep.vacuum(pages)


def open_backend(
    url: str,
    *,
    clock: Clock | None = None,
    busy_timeout: float = 30.0,
    file_mode: int = 0o600,
    create: bool | None = None,
    notify: bool = True,
    listen_url: str | None = None,
) -> Backend:
    """The backend for an address; connects at the first call.

    `create`: make missing tables at the first call. By default a SQLite file does, and a PostgreSQL database waits
    for `migrate()`. `notify`: wake workers when a user's own transaction commits; on PostgreSQL this is a NOTIFY
    inside it, which such commits then do one after the other, and which cannot be prepared (two-phase commit).
    `listen_url`: a way to the same PostgreSQL around its pooler, which would not deliver notifications.
    """
    address = parse_address(url)
    if isinstance(address, SqliteAddress):
        return Backend(
            SqliteDatabase(
                address.path,
                clock=clock,
                busy_timeout=busy_timeout,
                file_mode=file_mode,
                create=create is not False,
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
