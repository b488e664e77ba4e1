"""Writes whose answer may be lost. A server may commit and go away before it has said so: the transaction is then run
again, and finds nothing left to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dray.backends.database import Database, Session

T = TypeVar("T")


def write(db: Database, work: Callable[[Session], T], *, durable: bool = True) -> T:
    """Runs `work` and commits. If the last try has found nothing to do, what the try before it did is the answer."""
    before: list[T] = []

    def tried(tx: Session) -> T:
        answer = work(tx)
        if before and not answer:
            return before[-1]
        before.append(answer)
        return answer

    return db.write(tried, durable=durable)
