"""Log lines and progress of running bodies: captured here, written by the engine at most twice a second."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dray.backends import Backend
from dray.backends.store.work import SILENCE, Notes, Report
from dray.clock import Clock
from dray.instants import SECOND
from dray.model.bounds import LOG_LINES, LOG_MESSAGE_BYTES
from dray.model.job import LogLine
from dray.model.settlement import Rng
from dray.runtime.execution import Execution, current, deliver_stop
from dray.runtime.in_flight import InFlight
from dray.sanitize import bounded, clean

NAME_BYTES = 200  # of a logger, of a level
_PAUSE = SECOND // 2


class NoteBuffer:
    """`add` is for any thread, all else for the engine's."""

    def __init__(self) -> None:
        self._noted: deque[Execution] = deque()
        self._sent: dict[tuple[str, int], Execution] = {}  # whose notes are on their way, by claim
        self._at = 0  # when everything is written next

    def add(self, execution: Execution) -> bool:
        """There is something to write. Returns whether it is the first since the last `collect`."""
        is_first = not self._noted
        self._noted.append(execution)
        return is_first

    def is_due(self, now: int, in_flight: InFlight) -> bool:
        return bool(self._noted) and (now >= self._at or bool(in_flight.final_notes))

    def pause(self, now: int) -> int | None:
        """Microseconds until something is due; None: nothing is noted."""
        return max(0, self._at - now) if self._noted else None

    def collect(self, in_flight: InFlight, now: int) -> Notes:
        """All notes if it is time, else those of bodies that end now."""
        if not self._noted:
            in_flight.final_notes.clear()
            return SILENCE
        is_time = now >= self._at
        if is_time:
            self._at = now + _PAUSE
        noted: dict[Execution, None] = {}
        while self._noted:
            noted[self._noted.popleft()] = None
        lines: list[LogLine] = []
        reports: list[Report] = []
        for execution in noted:
            is_last = execution.claim.id in in_flight.outcomes or execution in in_flight.final_notes
            if not execution.is_over and in_flight.held.get(execution.claim.id) is not execution:
                continue  # its claim is lost
            if is_last or is_time:
                claim, kept, report = execution.claim, execution.lines, execution.report
                self._sent[claim.id, claim.claim] = execution
                while kept:
                    lines.append(kept.popleft())
                if report is not None:
                    execution.report = None
                    reports.append(Report(claim.id, claim.claim, *report))
            else:
                self._noted.append(execution)
        in_flight.final_notes.clear()
        return Notes(lines, reports)

    def keep(self, notes: Notes) -> None:
        """Puts back what could not be written, and forgets the rest of what was collected."""
        for line in reversed(notes.lines):
            execution = self._sent[line.job_id, line.claim]
            if execution.lines is not None and len(execution.lines) < LOG_LINES:  # else a newer one is lost
                execution.lines.appendleft(line)
                self._noted.append(execution)
        for report in notes.reports:
            execution = self._sent[report.id, report.claim]
            if execution.report is None:
                execution.report = (report.percent, report.message)
                self._noted.append(execution)
        self._sent.clear()


@dataclass(eq=False)
class WorkerLink:
    """The `Link` of bodies that run in the worker's process."""

    clock: Clock
    rng: Rng
    _backend: Callable[[], Backend]
    _notes: NoteBuffer
    _ring: Callable[[], None]
    _on_began: Sequence[Callable[[Execution], None]]

    @property
    def backend(self) -> Backend:
        return self._backend()

    def began(self, execution: Execution) -> None:
        for tell in self._on_began:
            tell(execution)

    def note(self, execution: Execution) -> None:
        if self._notes.add(execution):
            self._ring()

    def written(self, execution: Execution) -> None:
        """Does nothing: the stopper checks `is_written`. Only a child process has to send a message."""


class Capture(logging.Handler):
    """Takes the records that are made while a body runs, in its thread, coroutine or child process."""

    def emit(self, record: logging.LogRecord) -> None:
        self._stand_in(record)
        deliver_stop()
        execution = current.get()
        # What Dray itself logs about a job is for the worker's log. Everything that a body logs is kept.
        if execution is None or record.name == "dray":
            return
        try:
            _keep_line(execution, record.levelname, record.name, self.format(record))
        except Exception:  # noqa: BLE001 - as every handler: a bad format string is reported, never raised
            self.handleError(record)

    def _stand_in(self, record: logging.LogRecord) -> None:
        """Sends warnings to stderr where the program has not set up logging: Python does so only while there is no
        handler, and this is one."""
        last = logging.lastResort
        if last is None or record.levelno < last.level:
            return
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        last.handle(record)


def _keep_line(execution: Execution, level: str, logger: str, message: str) -> None:
    """Puts one line where the engine finds it. Beyond the limit the newest lines are kept."""
    claim = execution.claim
    line = LogLine(
        claim.id,
        claim.claim,
        execution.link.clock.steady(),
        clean(level, NAME_BYTES),
        clean(logger, NAME_BYTES),
        bounded(message, LOG_MESSAGE_BYTES),
    )
    lines = execution.lines
    if lines is None:
        lines = execution.lines = deque(maxlen=LOG_LINES)
    lines.append(line)
    execution.link.note(execution)


_lock = threading.Lock()
_users: set[object] = set()
_handler = Capture()
_handler.setFormatter(logging.Formatter("%(message)s"))


def start_capture(user: object) -> None:
    """Captures log records until the last user has ended it."""
    with _lock:
        _users.add(user)
        logging.getLogger().addHandler(_handler)  # once, however often


def end_capture(user: object) -> None:
    """Ends the capture for this user; a second call does nothing."""
    with _lock:
        _users.discard(user)
        if not _users:
            logging.getLogger().removeHandler(_handler)
