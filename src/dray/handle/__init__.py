"""Handles: what people hold of a job, its attempts and its log, and of a workflow that was enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.handle.job import Attempt, AttemptError, Job, LogLine, Progress, cancel, retry
    from dray.handle.run import Run
    from dray.model.workflow import Done

__getattr__ = loader(
    __name__,
    {
        "dray.handle.job": "Attempt AttemptError Job LogLine Progress cancel retry",
        "dray.handle.run": "Run",
        "dray.model.workflow": "Done",
    },
)

__all__ = ["Attempt", "AttemptError", "Done", "Job", "LogLine", "Progress", "Run", "cancel", "retry"]
