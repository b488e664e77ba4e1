"""What running bodies say, on its way to the database: log lines and progress, written at most twice a second."""

from __future__ import annotations

from collections import deque

from dray.backends.store.work import SILENCE, Notes, Report
from dray.instants import SECOND
from dray.model.job import LogLine
from dray.model.limits import LOG_LINES
from dray.runtime.execution import Execution
from dray.runtime.in_flight import InFlight

_PAUSE = SECOND // 2


class NoteBuffer:
    """`add` is for any thread, all else for the engine's."""

    def __init__(self) -> None:
        self._noted: deque[Execution] = deque()
        self._sent: dict[tuple[str, int], Execution] = {}  # whose notes are on their way, by claim
        self._at = 0  # when everything is written next

    def add(self, execution: Execution) -> bool:
        """There is something to be written; whether nobody knew that yet."""
        is_first = not self._noted
        self._noted.append(execution)
        return is_first

    def is_due(self, now: int, in_flight: InFlight) -> bool:
        return bool(self._noted) and (now >= self._at or bool(in_flight.final_notes))

    def pause(self, now: int) -> int | None:
        """Microseconds until something is due; None: there is nothing."""
        return max(0, self._at - now) if self._noted else None

    def collect(self, in_flight: InFlight, now: int) -> Notes:
        """All of it if it is time, else what those have said that end now."""
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
                self._sent[execution.claim.id, execution.claim.claim] = execution
                _copy_out(execution, lines, reports)
            else:
                self._noted.append(execution)
        in_flight.final_notes.clear()
        return Notes(lines, reports)

    def keep(self, notes: Notes) -> None:
        """Puts back what could not be written; the rest of what was collected is done with."""
        for line in reversed(notes.lines):
            execution = self._sent[line.job_id, line.claim]
            if execution.lines is not None and len(execution.lines) < LOG_LINES:  # else newer ones would go for it
                execution.lines.appendleft(line)
                self._noted.append(execution)
        for report in notes.reports:
            execution = self._sent[report.id, report.claim]
            if execution.report is None:
                execution.report = (report.percent, report.message)
                self._noted.append(execution)
        self._sent.clear()


def _copy_out(execution: Execution, lines: list[LogLine], reports: list[Report]) -> None:
    kept, report = execution.lines, execution.report
    while kept:
        lines.append(kept.popleft())
    if report is not None:
        execution.report = None
        reports.append(Report(execution.claim.id, execution.claim.claim, *report))
