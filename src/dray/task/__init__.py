"""Tasks: functions that can be run later, elsewhere, by name.

A function is looked at once: what it is called (`naming`), which options it has (`options`), what its arguments
are (`signature`). A `Task` then turns each call into a job that is ready to be written; an App, as the task's
`Submitter`, writes it. Nothing here speaks to a database or asks for the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.errors import Misfit
    from dray.task.naming import task_name
    from dray.task.options import TaskKeywords, TaskOptions
    from dray.task.registry import Registry
    from dray.task.retrying import next_delay_us, policy_delay_us
    from dray.task.signature import Signature
    from dray.task.task import AsyncTask, Bound, Submitter, Task, define
    from dray.task.using import Using, UsingKeywords, prepare

__getattr__ = loader(
    __name__,
    {
        "dray.errors": "Misfit",
        "dray.task.naming": "task_name",
        "dray.task.options": "TaskKeywords TaskOptions",
        "dray.task.registry": "Registry",
        "dray.task.retrying": "next_delay_us policy_delay_us",
        "dray.task.signature": "Signature",
        "dray.task.task": "AsyncTask Bound Submitter Task define",
        "dray.task.using": "Using UsingKeywords prepare",
    },
)

__all__ = [
    "AsyncTask",
    "Bound",
    "Misfit",
    "Registry",
    "Signature",
    "Submitter",
    "Task",
    "TaskKeywords",
    "TaskOptions",
    "Using",
    "UsingKeywords",
    "define",
    "next_delay_us",
    "policy_delay_us",
    "prepare",
    "task_name",
]
