"""The contract between the stores (`store/`) and the two databases: transactions, and named statements in them.

All verbs are written once against `Session` and `Database`. The two databases differ in how they open, lock, batch
and fail, and in the SQL of their catalogues. A difference shows here as a capability, never as a question which
database this is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from dray.backends.watch import Watch
from dray.clock import UNKNOWN_BOOT, Clock
from dray.errors import StorageError
from dray.model.job import Claim, Demand

if TYPE_CHECKING:
    from dray.backends.rows import SettledRow, SettlementRow, Start
    from dray.backends.sqlite.upkeep import Upkeep
    from dray.backends.statements import Catalogue
    from dray.backends.store.turns import Turns
    from dray.backends.tables import Tables
    from dray.model.new_job import AlikeJobs, NewJob
    from dray.model.worker import Signs


T = TypeVar("T")
Row = tuple[Any, ...]
FIRST_ID, LAST_ID = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
ALL_LIMITS = ""  # what all claims lock, beside their queues; no queue is called so
Later = Callable[[], T]  # a result that may still be on its way; call it once the transaction is over


def nothing() -> None:
    """What a caller of `exchange` has to do meanwhile, if it says nothing else."""


class Rivalry(NamedTuple):
    """What a transaction saw that had to wait for the one write lock."""

    since: int  # when it got the lock, by the steady clock
    newest: int  # grows with every new job


class Claimed(NamedTuple):
    """What one transaction has claimed."""

    claims: list[Claim]
    goes_on: bool = False  # there may be more under limits that it has not looked at, or could not count: claim again


class Session(Protocol):
    """Named statements inside one transaction. `now` and `steady` are filled in; lists travel as JSON."""

    catalogue: Catalogue

    def rows(self, name: str, /, **params: Any) -> list[Row]:
        """All rows of a statement."""
        ...

    def run(self, name: str, /, **params: Any) -> int:
        """How many rows a statement changed."""
        ...

    def later(self, name: str, /, **params: Any) -> Later[list[Row]]:
        """All rows of a statement that are not needed before the commit."""
        ...

    def each(self, name: str, rows: Sequence[Row]) -> list[bool]:
        """Applies a statement to every row; tells for each whether it changed one."""
        ...

    def insert(self, jobs: Sequence[NewJob], starts: Mapping[str, Start]) -> list[bool]:
        """Writes new jobs, each as `starts` says (an id that is not in it: free); tells for each whether it was
        written (not: its id or unique lock is there)."""
        ...

    def insert_alike(self, jobs: AlikeJobs) -> None:
        """Writes new jobs. One whose id is there already stays as it is."""
        ...

    def replace(self, met: Sequence[tuple[NewJob, str]]) -> list[bool]:
        """Gives each holder (an id) that has not started the work of the request it met; tells which were changed."""
        ...

    def tend(self, limit: int) -> tuple[Later[list[Row]], Later[list[Row]]]:
        """Cancels what expired, then queues what is due: the rows of `job_expire` and of `job_promote`."""
        ...

    def claim(self, worker_id: str, demand: Demand, turns: Turns) -> Later[Claimed]:
        """Takes ready jobs for a live worker out of queues that are not paused; in the order of the demand's queues,
        and in each by priority, time and id. Where there are limits or keys, as `store/gate.py` says."""
        ...

    def take(
        self,
        worker_id: str,
        keys: Mapping[str, str | None],
        held: Sequence[str],
        limit: int,
        spanning: Container[str] = (),
    ) -> list[Claim]:
        """Takes these jobs, by id, unless they have started, ended or got another key meanwhile. Returns them in
        this order. Limits count those in `held`. Those from `limit` on are claimed ahead: not where losing an attempt
        would do harm. `spanning`: tasks whose limits hold in other queues too."""
        ...

    @property
    def claims_alone(self) -> bool:
        """Whether no other claim can be under way: there is only one writer, so nothing to lock."""
        ...

    def lock_limits(self, names: Collection[str]) -> Later[set[str]]:
        """Locks these names for this transaction, and waits for none; returns those it got."""
        ...

    def settle(self, endings: Sequence[SettlementRow]) -> Later[list[SettledRow]]:
        """Ends attempts by their claims; returns those it wrote."""
        ...

    def listed(self, fit: Mapping[str, Any], before: str, limit: int) -> list[Row]:
        """At most `limit` jobs before an id that match every given filter, newest first."""
        ...

    def begin_work(self, queues: Sequence[str], *, durable: bool) -> None:
        """Opens a worker's transaction, in order with pauses of these queues. Nothing to do where there is one
        writer, and how its commit is synced is set before BEGIN."""

    def rivalry(self) -> Rivalry | None:
        """None: this transaction did not have to wait for the write lock, or there is none."""
        return None

    def forget_results(self, ids: Sequence[str]) -> None:
        """Drops results, where they are kept outside the jobs' rows."""

    def begin_pause(self, queue: str) -> None:
        """Opens the transaction of a pause: waits until claims under way on that queue are over, where there is more
        than one writer."""

    def begin_limits(self, milliseconds: int) -> None:
        """Opens the transaction of a change of limits: waits until all claims under way are over, where there is more
        than one writer. It waits so long at most, for these and for locked rows: new claims wait meanwhile."""

    def hold_free(self, scope: str, name: str) -> list[str]:  # noqa: ARG002
        """Marks the running jobs of a task or a queue as held, before a change of limits does so while claims wait.
        Returns those whose rows other transactions have locked. Nothing to do where there is one writer."""
        return []

    def hold_locked(self, job_id: str) -> None:
        """Marks one of those once it is free; waits for a while."""

    def known(self) -> dict[str, str]:
        """The versions that the tables note; empty: there are no tables."""
        are_there = self.rows("meta_table", table="dray_meta", schema=self.catalogue.schema)
        return dict(self.rows("meta_list")) if are_there else {}

    @property
    def tables(self) -> Tables:
        """The tables as a whole; only in a snapshot, or a write of many rows."""
        ...

    def bury(self, verdicts: Sequence[tuple[str, int]]) -> list[bool]:
        """Declares workers dead that have not renewed their lease since they were judged."""
        ...


class OpenTransaction(Protocol):
    """A transaction whose statements are the user's."""

    def begin(self) -> Any:
        """Connects and opens it; the driver's connection."""
        ...

    def commit(self) -> None:
        """Commits it; a deferred constraint of the user's own is reported as the driver does."""

    def end(self) -> None:
        """Rolls back what was not committed and closes the connection; at any point, more than once."""


class Database(Protocol):
    """A database that holds Dray's tables."""

    clock: Clock  # this process's
    place: str  # the file or address, fit to be shown
    proofs: Proofs  # how workers here prove that they live
    is_remote: bool = False  # another process does the work: while a thread waits for it, others have the GIL
    upkeep: Upkeep | None = None  # of the file, where there is one
    most_ahead: int = 1_000  # short jobs that a worker may have claimed; half of them make its largest transaction
    # Told of jobs that were cancelled here as expired or with a parent, once that is committed.
    on_cancelled: Callable[[Sequence[str]], None] | None = None

    @property
    def boot(self) -> str | None:
        """The boot within which leases can be compared; None where the server's clock decides."""
        return None

    @property
    def copier(self) -> Copier: ...

    def now(self) -> int:
        """The database's own wall time."""
        ...

    def read(self, work: Callable[[Session], T]) -> T:
        """Runs `work` in one consistent read; it must not write."""
        ...

    def snapshot(self, work: Callable[[Session], T]) -> T:
        """As `read`, for work that lasts: it can read whole tables, and is not tried again."""
        ...

    def identity(self) -> Row | None:
        """What tells this database from any other while it is up; None: it is not there."""
        ...

    def glance(self, name: str, /, **params: Any) -> list[Row]:
        """All rows of one statement that reads, outside any transaction: the cheapest question there is."""
        ...

    def inspect(self, work: Callable[[Session], T], *, seconds: float) -> T:
        """As `read`, whatever state the database is in: nothing is made, upgraded or switched for it, and no table
        need be there. `TookTooLong` if it is not over in time."""
        ...

    def write(self, work: Callable[[Session], T], *, durable: bool = True, many: bool = False) -> T:
        """Runs `work` in one transaction and commits.

        `work` runs again from the start after a conflict or a lost connection, so it must not change anything
        outside. Durable: on disk when this returns; otherwise a power loss may forget it. Many: it writes
        thousands of rows, and the rate matters more than the number of round trips.
        """
        ...

    def check_may_write(self) -> None:
        """Raises if a write of this thread would wait for itself."""

    def exchange(
        self,
        work: Callable[[Session], Later[T]],
        *,
        durable: bool = False,
        meanwhile: Callable[[], None] = nothing,
    ) -> T:
        """As `write`, for work whose results are not needed before the commit: one round trip where there is one.
        `meanwhile` is called where it is remote, when this thread can only wait; maybe again in another try."""
        ...

    def post(self, gather: Callable[[], Sequence[AlikeJobs]], *, durable: bool = True) -> None:
        """Writes new jobs in a transaction of their own and announces them; in one round trip where there is one.
        After `check_may_write`.

        `gather` returns the jobs. It is called as late as can be, because threads that come until then share the
        transaction, and maybe again in another try. A job whose id is there already stays as it is.
        """
        ...

    def join(
        self, connection: Any, work: Callable[[Session], T], *, ready: Collection[str] = (), ended: bool = False
    ) -> T:
        """Runs `work` in the transaction that a user's own connection has open; neither commits nor rolls back.

        It opens one where the connection would do so by itself, and leaves it open. If `work` raises, its writes are
        rolled back, and the transaction is as before. Their commit tells other processes' watches that jobs of the
        `ready` queues are there, and that jobs have `ended`.
        """
        ...

    async def join_async(
        self, connection: Any, work: Callable[[Session], T], *, ready: Collection[str] = (), ended: bool = False
    ) -> T:
        """As `join`, for asynchronous connections too; a synchronous one is used in the calling thread.

        Cancelled, it ends when `work` has: done whole or not at all.
        """
        ...

    def transaction(self) -> OpenTransaction:
        """A durable transaction on a fresh connection of the driver's."""
        ...

    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        """As `transaction`, for an event loop, which it does not block while it waits: committed at the end of the
        block, rolled back after an error."""
        ...

    def watch(
        self, *, hears_work: bool = True, hears_done: bool = True, queues: Collection[str] | None = None
    ) -> Watch:
        """A new watch on this database, whose tables must be there."""
        ...

    def announce(self, queues: Iterable[str]) -> None:
        """Tells other processes that jobs of these queues are ready; after the commit, where that does not tell."""

    def announce_done(self) -> None:
        """Tells other processes that jobs have ended; as `announce`."""

    def verify(self, *, full: bool) -> list[str]:
        """What is wrong with how the tables are stored, by the database's own checks; full ones read all there is."""
        ...

    def migrate(self) -> int:
        """Creates or upgrades the tables; returns the version they are at."""
        ...

    def migrate_in(self, connection: Any) -> int:
        """As `migrate`, in the transaction that a user's own connection has open: as `join`, theirs to commit. On
        SQLite also in a database in memory, which can be joined from then on."""
        ...

    async def migrate_in_async(self, connection: Any) -> int:
        """As `migrate_in`, for asynchronous connections too."""
        ...

    def version(self) -> int | None:
        """The version the tables are at; None: there are none."""
        ...

    def is_writable(self) -> bool:
        """Whether this process may write: the file's rights, or the server's role and the user's rights, allow it."""
        ...

    def close(self) -> None:
        """Closes every connection of this process."""


def write_and_recall(db: Database, work: Callable[[Session], T], *, durable: bool = True) -> T:
    """As `Database.write`, for work whose answer may be lost.

    A server may commit and go away before it has said so: `work` then runs again, and finds nothing left to do. A try
    that finds nothing returns what an earlier one did, if the database knows that as committed. Otherwise another
    process has done the same meanwhile.
    """
    before: list[tuple[str | None, T]] = []

    def tried(tx: Session) -> T:
        number = tx.later("transaction_number")
        answer = work(tx)
        if not answer:
            for done_as, done in reversed(before):
                if done and tx.rows("transaction_committed", number=done_as)[0][0]:
                    return done
        before.append((number()[0][0], answer))
        return answer

    return db.write(tried, durable=durable)


Progress = Callable[[int, int | None], None]  # how much is done, of how much in all if that is known


class Copier(Protocol):
    """Makes copies of one database."""

    ending: str  # of the names of copies

    @property
    def name(self) -> str:
        """What a copy may be called, without an ending."""
        ...

    def mode(self) -> int:
        """Who may read a copy, as permissions of its file: only users who may read the database."""
        ...

    def refuse(self, target: Path) -> None:
        """An error if a copy must not be put there, even where what is there may be replaced."""

    def copy(self, draft: Path, progress: Progress) -> int | None:
        """Fills a file that is there, empty and private, and checks it: it needs no other file beside it. Returns the
        number of jobs in it, where that is known. After an error the file is worth nothing."""
        ...


class LogFile(NamedTuple):
    """The write-ahead log as the file system shows it."""

    size: int  # bytes; what is in use of them only the database knows
    written_ns: int
    starts: int  # how often it started over, in the room there is


class Checkpoint(NamedTuple):
    frames: int  # pages in the log
    left: int  # those among them that could not be copied back


class FileFacts(NamedTuple):
    """A file as the file system shows it."""

    path: str
    size: int
    mode: int
    folder_mode: int
    owner: int
    can_read: bool  # this user
    can_write: bool  # this user, to it and to what is written beside it
    strange: tuple[str, ...]  # files beside it that belong to another user
    log_size: int | None  # None: no process has it open
    journal: str | None  # "wal", "rollback"; None: it has no header, or it may not be read
    file_system: str | None  # as the kernel names it; None: it does not say
    is_network: bool
    free: int  # bytes on its disk


class DataRefused(StorageError):
    """The database refused the values of a write (a constraint, a type, a size), not the write itself."""


class TookTooLong(StorageError):
    """A look at the database was ended before it was over; nothing is known."""


def are_comparable(boot: str | None, theirs: str) -> bool:
    """Whether a lease that was given in the boot `theirs` can be read by the clock of this one; None: the server's
    clock decides. One that the system does not name may be any boot, also an earlier one of this machine."""
    return boot is None or (boot == theirs and boot != UNKNOWN_BOOT)


class Proof(Protocol):
    """The proof of life of one worker, taken before its row is written and kept until its last outcome is.

    A lease alone is no proof: a thread that renews it starves behind a C call which keeps the GIL, and a stopped or
    suspended process renews nothing and is not dead. So beside its lease a worker holds a lock that the kernel or the
    server frees when the process ends, and not before. A held proof means alive, whatever the lease says. A proof
    that cannot be looked at means nothing, and only then the lease decides.
    """

    lock: str | None  # what the worker's row says of it, so that others know it from another; None: the id is enough
    # It stands for as long as the process does. Otherwise a network is in between, and that it is held is only what
    # this side believes.
    is_certain: bool

    @property
    def is_held(self) -> bool:
        """Whether there is a proof beside the lease now. Never behind a pooler."""
        ...

    def fileno(self) -> int | None:
        """The descriptor that a child must inherit to keep the proof if it outlives its parent; None: it cannot."""
        return None

    def check(self) -> bool:
        """Once a beat: sees to it that what was dropped is taken up again. False: it was taken away for good, and
        this worker has to come back under a new id. Never waits for a network."""
        ...

    def close(self) -> None:
        """Gives the proof up: others may judge by the lease from here on. A second time does nothing."""


class Proofs(Protocol):
    """All proofs at one database: makes this process's, looks at all workers'."""

    def prove(self, worker_id: str, watch: Watch) -> Proof:
        """Takes the proof of life of a worker that is about to register; `lock` belongs into its row."""
        ...

    def suspects(self) -> bool | None:
        """Whether a proof was let go, without asking the database; None: that cannot be told here."""
        ...

    def witness(self, tx: Session, workers: Sequence[Signs]) -> dict[str, bool]:
        """Who of these is proven alive (True) or dead (False); of the others nothing is known."""
        ...

    def forget(self, worker_ids: Collection[str]) -> None:
        """Removes what workers that were declared dead left behind. A server frees their locks by itself."""

    def sweep(self, live_ids: Collection[str]) -> None:
        """Removes what was left behind by workers that are not known."""
