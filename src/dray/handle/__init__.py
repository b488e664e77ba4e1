"""Handles: what people hold of a job, its attempts and its log."""

from __future__ import annotations

from dray.handle.history import Attempt, AttemptError, LogLine, Progress
from dray.handle.job import Desk, Job

__all__ = ["Attempt", "AttemptError", "Desk", "Job", "LogLine", "Progress"]
