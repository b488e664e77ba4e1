"""Queues: default priority, pause and resume."""

from __future__ import annotations

from dray.backends.database import Database, Session
from dray.backends.store import repeated
from dray.model.job import Queue


def upsert(db: Database, name: str, priority: int) -> None:
    db.write(lambda tx: tx.run("queue_set", name=name, priority=priority))


def pause(db: Database, name: str) -> bool:
    def work(tx: Session) -> bool:
        tx.begin_pause(name)
        return tx.run("queue_pause", name=name) > 0

    return repeated.write(db, work)


def resume(db: Database, name: str) -> bool:
    return repeated.write(db, lambda tx: tx.run("queue_resume", name=name)) > 0


def list_queues(db: Database) -> list[Queue]:
    return [Queue(*row) for row in db.read(lambda tx: tx.rows("queue_list"))]
