"""Queues: default priority, pause and resume."""

from __future__ import annotations

from dray.backends.database import Database, Session
from dray.backends.store import repeated
from dray.model.job import Queue


class Queues:
    """Queues."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def upsert(self, name: str, priority: int) -> None:
        """Makes a queue, or changes its default priority for jobs to come."""
        self._db.write(lambda tx: tx.run("queue_set", name=name, priority=priority))

    def pause(self, name: str) -> bool:
        """Once this returns nothing is claimed from the queue. False: it was paused already."""

        def work(tx: Session) -> bool:
            tx.begin_pause(name)
            return tx.run("queue_pause", name=name) > 0

        return repeated.write(self._db, work)

    def resume(self, name: str) -> bool:
        """False: it was not paused."""
        return repeated.write(self._db, lambda tx: tx.run("queue_resume", name=name)) > 0

    def all(self) -> list[Queue]:
        """All queues that were enqueued to (other than on a user's connection), served, set or paused."""
        return [Queue(*row) for row in self._db.read(lambda tx: tx.rows("queue_list"))]
