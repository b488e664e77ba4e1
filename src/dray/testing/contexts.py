"""A Context made by hand, for plain calls of a task's function."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from dray.model.bounds import LOG_LINES
from dray.runtime.context import LocalContext
from dray.runtime.execution import Interrupted, StopCause
from dray.task.checks import whole


def context(
    attempt: int = 1,
    *,
    task: str = "a task",
    queue: str = "default",
    args: Mapping[str, Any] | None = None,
    max_attempts: int = 3,
    job_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    parent_results: Mapping[str, Any] | None = None,
    schedule: str | None = None,
    slot: datetime | None = None,
    cancelled: bool = False,
) -> HandContext:
    """A Context for a plain call: ``send(context(attempt=3), "ann@example.com")``. It notes what the body reports.

    Example:

        >>> context(attempt=3, max_attempts=5).attempt
        3
    """
    whole("attempt", attempt, 1)
    return HandContext(
        task=task,
        queue=queue,
        args=args,
        attempt=attempt,
        max_attempts=max(attempt, whole("max_attempts", max_attempts, 1)),
        job_id=str(uuid4()) if job_id is None else job_id,
        headers={} if headers is None else dict(headers),
        parent_results={} if parent_results is None else parent_results,
        schedule=schedule,
        slot=slot,
        cancelled=cancelled,
    )


class HandContext(LocalContext):
    """What a body sees of its attempt, as the test says, and what it has reported.

    Example:

        >>> ctx = context()
        >>> ctx.progress(50, "half way")
        >>> len(ctx.reports)
        1
    """

    def __init__(
        self, *, task: str, queue: str, args: Mapping[str, Any] | None, cancelled: bool, **facts: Any
    ) -> None:
        super().__init__(task, facts["job_id"], args, queue)
        self._facts = facts
        self._is_cancelled = cancelled
        self.reports: deque[tuple[float | None, str | None]] = deque(maxlen=LOG_LINES)
        """What was passed to `progress`, oldest first."""
        self.logged: deque[str] = deque(maxlen=LOG_LINES)
        """The messages of `log`, oldest first."""
        # A logger of its own, so that contexts do not mix; its records reach pytest's caplog all the same.
        self._logger = logging.Logger("dray.task.by_hand")
        self._logger.parent = logging.getLogger("dray.task")
        self._logger.addHandler(_Note(self.logged))

    @property
    def headers(self) -> Mapping[str, str]:
        return MappingProxyType(self._facts["headers"])

    @property
    def attempt(self) -> int:
        return self._facts["attempt"]

    @property
    def max_attempts(self) -> int:
        return self._facts["max_attempts"]

    @property
    def schedule(self) -> str | None:
        return self._facts["schedule"]

    @property
    def slot(self) -> datetime | None:
        return self._facts["slot"]

    @property
    def parent_results(self) -> Mapping[str, Any]:
        return self._facts["parent_results"]

    @property
    def log(self) -> logging.Logger:
        return self._logger

    def progress(self, percent: float | None, message: str | None = None) -> None:
        self.reports.append((percent, message))

    @property
    def cancelled(self) -> bool:
        """Set it to tell the body to stop."""
        return self._is_cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._is_cancelled = value

    def raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise Interrupted(StopCause.CANCEL)


class _Note(logging.Handler):
    def __init__(self, messages: deque[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())
