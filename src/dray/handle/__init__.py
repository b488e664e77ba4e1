"""Handles: what people hold of a job, its attempts and its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dray.lazy import loader

if TYPE_CHECKING:
    from dray.handle.history import Attempt, AttemptError, LogLine, Progress
    from dray.handle.job import Desk, Job
    from dray.handle.run import Done, Run

__getattr__ = loader(
    __name__,
    {
        "dray.handle.history": "Attempt AttemptError LogLine Progress",
        "dray.handle.job": "Desk Job",
        "dray.handle.run": "Done Run",
    },
)

__all__ = ["Attempt", "AttemptError", "Desk", "Done", "Job", "LogLine", "Progress", "Run"]
