"""Writes whose answer may be lost. A server may commit and go away before it has said so: the transaction is then run
again, and finds nothing left to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dray.backends.database import Database, Session

T = TypeVar("T")


def write(db: Database, work: Callable[[Session], T], *, durable: bool = True) -> T:
    """Runs `work` and commits. A try that finds nothing to do returns what an earlier one did, if the database
    knows that as committed: otherwise another process has done the same meanwhile."""
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
