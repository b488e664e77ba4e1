"""Jobs ended inside transactions that are not Dray's: the user's own, or a block's that is the user's to fill."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from dray.backends.database import Database, Row, Session
from dray.backends.store.work import settle_rows, trim_attempts
from dray.backends.store.workflows import add_steps
from dray.errors import StaleClaim
from dray.interrupts import CleanExit
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement


class Fence(NamedTuple):
    """Who may write to a running job."""

    job_id: str
    worker_id: str
    claim: int


def complete(
    db: Database,
    worker_id: str,
    settlement: Settlement,
    new: Sequence[NewJob],
    connection: Any,
) -> bool:
    completion = _completion(db, worker_id, settlement, new)
    return db.join(connection, completion, ready={job.queue for job in new}, ended=True)


async def complete_async(
    db: Database,
    worker_id: str,
    settlement: Settlement,
    new: Sequence[NewJob],
    connection: Any,
) -> bool:
    completion = _completion(db, worker_id, settlement, new)
    return await db.join_async(connection, completion, ready={job.queue for job in new}, ended=True)


def _completion(
    db: Database, worker_id: str, settlement: Settlement, new: Sequence[NewJob]
) -> Callable[[Session], bool]:
    def work(tx: Session) -> bool:
        # First: a settle leaves out a row that somebody else has, as if its claim were lost.
        sees_all = hold(tx, Fence(settlement.id, worker_id, settlement.claim))
        ((_, _, has_children),) = tx.settle(settle_rows(db, worker_id, [settlement]))()
        trim_attempts(tx, [settlement])
        ends_some = add_steps(tx, settlement.id, new)
        if not sees_all:
            tx.run("fanout_suspect", id=settlement.id)
        return has_children or ends_some or not sees_all

    return work


def hold(tx: Session, fence: Fence) -> bool:
    """Makes sure of a claim until the transaction ends; tells whether the transaction sees all that is committed."""
    return not _find(tx, "fence_hold", fence)[0]


def check(tx: Session, fence: Fence) -> None:
    """Refuses a claim that is lost. It locks nothing: while a body fills its transaction, which may take an hour, the
    job can be asked to stop, or be taken back. The `hold` at the end decides."""
    _find(tx, "fence_look", fence)


def _find(tx: Session, statement: str, fence: Fence) -> Row:
    job_id, worker_id, claim = fence
    found = tx.rows(statement, id=job_id, worker_id=worker_id, claim=claim)
    if not found:
        raise StaleClaim(
            f"job {job_id} is no longer held by claim {claim} of worker {worker_id}: it was taken back or has ended; "
            "nothing of this transaction may be kept"
        )
    return found[0]


class Transaction(CleanExit):
    """A block whose statements are the user's: committed at its end, rolled back after an error."""

    def __init__(self, db: Database, fence: Fence | None) -> None:
        self._db = db
        self._fence = fence
        self._open = db.transaction()

    def __enter__(self) -> Any:
        connection, fence = self._open.begin(), self._fence
        if fence is not None:
            self._db.join(connection, lambda tx: check(tx, fence))
        return connection

    def leave(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self._open.commit()
        finally:
            self._open.end()

    def cleanup(self) -> None:
        self._open.end()


@asynccontextmanager
async def atransaction(db: Database, fence: Fence | None) -> AsyncGenerator[Any]:
    async with db.atransaction() as connection:
        if fence is not None:
            await db.join_async(connection, lambda tx: check(tx, fence))
        yield connection
