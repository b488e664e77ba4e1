"""Jobs that schedules make: from the row, and from the task where its code is here."""

from __future__ import annotations

from dray.model.new_job import NewJob
from dray.model.schedule import Schedule
from dray.task.options import TaskOptions


def job_of(schedule: Schedule, task: TaskOptions, job_id: str, slot: int | None) -> NewJob:
    """The job of a slot; of none, if somebody runs the schedule by hand."""
    return NewJob(
        id=job_id,
        task=schedule.task,
        queue=schedule.queue or task.queue,
        args=schedule.args,
        priority=task.priority if schedule.priority is None else schedule.priority,
        max_attempts=task.max_attempts,
        max_crashes=task.max_crashes,
        timeout=task.timeout,
        schedule=schedule.name,
        slot=slot,
        description=task.description,
    )
