"""Schedules: rows that enqueue. A slot fires once, whoever and however many try."""

from __future__ import annotations

from collections.abc import Sequence

from dray.backends import rows
from dray.backends.database import Database, Session
from dray.backends.store import repeated
from dray.backends.store.jobs import insert
from dray.model.job import Enqueued
from dray.model.new_job import NewJob
from dray.model.schedule import Schedule, blocking_states, same_rule


def upsert(db: Database, schedule: Schedule) -> bool:
    def work(tx: Session) -> bool:
        found = tx.rows("schedule_get", name=schedule.name)
        if found and same_rule(rows.schedule(found[0]), schedule):
            return False
        written = tx.run(
            "schedule_upsert",
            name=schedule.name,
            task=schedule.task,
            queue=schedule.queue,
            args=schedule.args,
            cron=schedule.cron,
            every_us=schedule.every_us,
            tz=schedule.tz,
            misfire=schedule.misfire,
            misfire_limit=schedule.misfire_limit,
            overlap=schedule.overlap,
            priority=schedule.priority,
            next_at=schedule.next_at,
            created_at=schedule.created_at,
        )
        return written > 0

    return repeated.write(db, work)


def change(db: Database, stored: Schedule, wanted: Schedule) -> bool:
    written = repeated.write(
        db,
        lambda tx: tx.run(
            "schedule_change",
            name=stored.name,
            expected_at=stored.next_at,
            read_at=stored.updated_at,
            task=wanted.task,
            queue=wanted.queue,
            args=wanted.args,
            cron=wanted.cron,
            every_us=wanted.every_us,
            tz=wanted.tz,
            misfire=wanted.misfire,
            misfire_limit=wanted.misfire_limit,
            overlap=wanted.overlap,
            priority=wanted.priority,
            next_at=wanted.next_at,
        ),
    )
    return written > 0


def get(db: Database, name: str) -> Schedule | None:
    found = db.read(lambda tx: tx.rows("schedule_get", name=name))
    return rows.schedule(found[0]) if found else None


def list_schedules(db: Database) -> list[Schedule]:
    return [rows.schedule(row) for row in db.read(lambda tx: tx.rows("schedule_list"))]


def due(db: Database, limit: int) -> list[Schedule]:
    return [rows.schedule(row) for row in db.read(lambda tx: tx.rows("schedule_due", limit=limit))]


def upcoming(db: Database) -> tuple[int | None, int]:
    next_at, now = db.read(lambda tx: tx.rows("schedule_upcoming"))[0]
    return next_at, now


def fire(
    db: Database, schedule: Schedule, next_at: int | None, last_at: int | None, jobs: Sequence[NewJob]
) -> list[Enqueued] | None:
    def work(tx: Session) -> list[Enqueued] | None:
        moved = tx.run(
            "schedule_advance",
            name=schedule.name,
            expected_at=schedule.next_at,
            read_at=schedule.updated_at,
            next_at=next_at,
            last_at=last_at,
        )
        if not moved:
            return None
        blocking = sorted(blocking_states(schedule.overlap))
        fired: list[Enqueued] = []
        for job in jobs:
            if blocking and tx.rows("schedule_busy", name=schedule.name, states=blocking)[0][0]:
                continue
            tx.run("queue_add", names=[job.queue])
            fired += insert(tx, [job])
        return fired

    return repeated.write(db, work)


def pause(db: Database, name: str) -> bool:
    return repeated.write(db, lambda tx: tx.run("schedule_pause", name=name)) > 0


def resume(db: Database, name: str, next_at: int | None) -> bool:
    return repeated.write(db, lambda tx: tx.run("schedule_resume", name=name, next_at=next_at)) > 0


def delete(db: Database, name: str) -> bool:
    return repeated.write(db, lambda tx: tx.run("schedule_delete", name=name)) > 0
