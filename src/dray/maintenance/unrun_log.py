"""The worker's log of jobs that ended without a body of its own: expired, cancelled with a parent, crashed.

At most 50 lines a second; what is above that is counted, and said with the next line.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from dray.backends import Backend
from dray.errors import StorageError
from dray.log import END_FIELDS, log
from dray.model.job import FINAL, Job, Reason, State
from dray.sanitize import escape_control
from dray.wording import attempt_of, counted, short_id

MOST = 50  # lines a second
_WINDOW = 1.0
_WORDS = {
    Reason.EXPIRED: "was cancelled: it had not started in time",
    Reason.PARENT: "was cancelled: a job that it runs after did not complete",
    Reason.CRASHED: "failed: its worker is gone",
    Reason.USER: "was cancelled: its worker is gone, and it had been asked to stop",
}


class UnrunLog:
    """For any thread."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._lock = threading.Lock()
        self._since, self._said, self._unsaid = clock(), 0, 0

    def ended(self, ids: Sequence[str], level: int = logging.INFO) -> None:
        """Says of each of these jobs how it ended. It reads them, unless nothing of it would be seen."""
        if not ids or not log.isEnabledFor(level):
            return
        room, more = self._room(len(ids))
        if more:
            log.log(level, "%s ended without a body", counted(more, "more job"))
        if not room:
            return
        try:
            found = self._backend.jobs.get(ids[:room])
        except StorageError as error:
            log.warning("how %s ended cannot be read: %s", ", ".join(map(short_id, ids[:room])), error)
            return
        for row in found:
            if row.state in FINAL:
                _say(row)

    def _room(self, wanted: int) -> tuple[int, int]:
        """How many lines there may be now, and how many jobs of the seconds before had none."""
        with self._lock:
            now, more = self._clock(), 0
            if now - self._since >= _WINDOW:
                more, self._unsaid = self._unsaid, 0
                self._since, self._said = now, 0
            room = min(wanted, MOST - self._said)
            self._said += room
            self._unsaid += wanted - room
            return room, more


def teller(backend: Backend, tell: Callable[[Sequence[str]], None] | None) -> Callable[[Sequence[str]], None]:
    """What a database tells of the jobs it has cancelled: the log, and `tell`, of hooks. On any thread."""
    log_of_ends = UnrunLog(backend)

    def cancelled(ids: Sequence[str]) -> None:
        log_of_ends.ended(ids)
        if tell is not None:
            tell(ids)

    return cancelled


def _say(row: Job) -> None:
    reason = Reason(row.reason) if row.reason in _WORDS else None
    words = _WORDS[reason] if reason is not None else f"ended as {row.state}"
    attempt = f", {attempt_of(row.attempt, row.max_attempts, row.claim)}" if row.attempt else ""
    level = logging.WARNING if row.state == State.FAILED else logging.INFO
    fields = {
        "event": str(row.state),
        "job": row.id,
        "task": row.task,
        "queue": row.queue,
        "attempt": row.attempt,
        "max_attempts": row.max_attempts,
        "reason": row.reason,
        "error": row.error,
    }
    line = escape_control(f"job {short_id(row.id)} ({row.task}) {words}{attempt}")
    log.log(level, "%s", line, extra={END_FIELDS: fields})
