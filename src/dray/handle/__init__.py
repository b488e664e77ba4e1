"""Handles: what people hold of a job, its attempts and its log."""

from __future__ import annotations

from dray.handle.history import Attempt, AttemptError, LogLine, Progress
from dray.handle.job import Desk, Job
from dray.handle.run import Done, Run

__all__ = ["Attempt", "AttemptError", "Desk", "Done", "Job", "LogLine", "Progress", "Run"]
