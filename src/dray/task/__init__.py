"""Tasks: functions that can be run later, elsewhere, by name.

A function is looked at once: its name and options (`options`), its arguments (`signature`). A `Task` then turns each
call into a job that is ready to be written, and its App writes it. Nothing here speaks to a database or asks for the
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.errors import Misfit
    from dray.task.job_options import JobKeywords, JobOptions, prepare
    from dray.task.options import TaskKeywords, TaskOptions, next_delay_us, policy_delay_us, task_name
    from dray.task.registry import Registry
    from dray.task.signature import Signature
    from dray.task.task import AsyncTask, Enqueuer, Task, define

__getattr__ = loader(
    __name__,
    {
        "dray.errors": "Misfit",
        "dray.task.job_options": "JobKeywords JobOptions prepare",
        "dray.task.options": "TaskKeywords TaskOptions next_delay_us policy_delay_us task_name",
        "dray.task.registry": "Registry",
        "dray.task.signature": "Signature",
        "dray.task.task": "AsyncTask Enqueuer Task define",
    },
)

__all__ = [
    "AsyncTask",
    "Enqueuer",
    "JobKeywords",
    "JobOptions",
    "Misfit",
    "Registry",
    "Signature",
    "Task",
    "TaskKeywords",
    "TaskOptions",
    "define",
    "next_delay_us",
    "policy_delay_us",
    "prepare",
    "task_name",
]
