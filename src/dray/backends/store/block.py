"""Transactions that are the user's to fill, and the fence of the claim that they stand and fall with."""

from __future__ import annotations

from typing import Any

from dray.backends.database import Database, Row, Session
from dray.errors import StaleClaim
from dray.interrupts import CleanExit

Fence = tuple[str, str, int]  # (job id, worker id, claim): who may write to a running job


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


class TransactionBlock(CleanExit):
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
