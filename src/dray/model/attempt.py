"""An attempt: one execution of a job, kept for people to read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    job_id: str
    claim: int
    attempt: int
    worker_id: str | None
    outcome: str
    error_type: str | None
    error_message: str | None
    traceback: str | None
    started_at: int | None
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One captured log record."""

    job_id: str
    claim: int
    at: int
    level: str
    logger: str
    message: str
