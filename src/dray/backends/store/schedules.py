"""Schedules: rows that enqueue. A slot fires once, however many workers try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dray.backends.database import Session, write_and_recall
from dray.backends.store import Store
from dray.backends.store.actions import write_with_action
from dray.backends.store.insert import insert
from dray.model.action import NewAction
from dray.model.job import Enqueued
from dray.model.new_job import NewJob
from dray.model.schedule import Schedule, blocking_states, same_rule


class ScheduleStore(Store):
    def upsert(self, schedule: Schedule) -> bool:
        """Creates a schedule or changes its rule. False: it was the same, nothing was written."""

        def work(tx: Session) -> bool:
            found = tx.rows("schedule_get", name=schedule.name)
            if found and same_rule(Schedule(*found[0]), schedule):
                return False
            return tx.run("schedule_upsert", **asdict(schedule)) > 0

        return write_and_recall(self._db, work)

    def change(self, stored: Schedule, wanted: Schedule) -> bool:
        """Makes a schedule what is wanted, `next_at` too, if it is still as it was read: a slot that is fired
        meanwhile cannot come again. False: it moved on, was edited or is gone; nothing was written."""
        given = asdict(wanted) | _as_read(stored)
        return write_and_recall(self._db, lambda tx: tx.run("schedule_change", **given)) > 0

    def get(self, name: str) -> Schedule | None:
        found = self._read("schedule_get", name=name)
        return Schedule(*found[0]) if found else None

    def all(self) -> list[Schedule]:
        return [Schedule(*row) for row in self._read("schedule_list")]

    def due(self, limit: int = 100) -> list[Schedule]:
        """Schedules whose `next_at` has come and that are not paused."""
        return [Schedule(*row) for row in self._read("schedule_due", limit=limit)]

    def upcoming(self) -> tuple[int | None, int]:
        """When the earliest schedule is due, and the database's time."""
        next_at, now = self._read("schedule_upcoming")[0]
        return next_at, now

    def fire(
        self, schedule: Schedule, *, next_at: int | None, last_at: int | None, new: Sequence[NewJob]
    ) -> list[Enqueued] | None:
        """Moves a schedule from the `next_at` that was read and enqueues its slots' jobs, together.

        None: another worker did, or it was paused or edited meanwhile; nothing was written. Jobs that the overlap
        rule forbids are left out.
        """

        def work(tx: Session) -> list[Enqueued] | None:
            if not tx.run("schedule_advance", **_as_read(schedule), next_at=next_at, last_at=last_at):
                return None
            blocking = sorted(blocking_states(schedule.overlap))
            fired: list[Enqueued] = []
            for job in new:
                if blocking and tx.rows("schedule_busy", name=schedule.name, states=blocking)[0][0]:
                    continue
                tx.run("queue_add", names=[job.queue])
                fired += insert(tx, [job])
            return fired

        return write_and_recall(self._db, work)

    # `action`: what a person does with this; its row is written in the same transaction.

    def pause(self, name: str, *, action: NewAction | None = None) -> bool:
        """False: unknown or paused already."""
        return write_with_action(self._db, lambda tx: tx.run("schedule_pause", name=name) > 0, action)

    def resume(self, name: str, next_at: int | None, *, action: NewAction | None = None) -> bool:
        """Goes on at `next_at`. False: unknown or not paused."""
        given = {"name": name, "next_at": next_at}
        return write_with_action(self._db, lambda tx: tx.run("schedule_resume", **given) > 0, action)

    def delete(self, name: str, *, action: NewAction | None = None) -> bool:
        """Forgets a schedule; its jobs stay."""
        return write_with_action(self._db, lambda tx: tx.run("schedule_delete", name=name) > 0, action)


def _as_read(schedule: Schedule) -> dict[str, Any]:
    return {"name": schedule.name, "expected_at": schedule.next_at, "read_at": schedule.updated_at}
