"""The worker's log of ends: a line for each attempt that has ended, once its outcome is written.

Above 50 lines a second there is one line a second with the counts instead; failures keep their own, up to 50 of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from dray.instants import SECOND
from dray.log import END_FIELDS, log
from dray.model.job import FINAL, Claim, State
from dray.model.settlement import Settlement, completed
from dray.runtime.execution import Execution
from dray.runtime.in_flight import End
from dray.sanitize import clean_traceback, escape_control, escape_lines
from dray.wording import attempt_of, counted, short_id, span

MOST = 50  # lines a second
_WINDOW = 1.0
_TRACEBACK_BYTES = 8 * 1024
_FAILURES = frozenset({"failed", "retried"})


class EndLog:
    """An `Observer` for the log. On the engine's thread."""

    began = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_busy = False  # more ended in the last second than there are lines
        self._begin(clock())

    def _begin(self, now: float) -> None:
        self._since = now
        self._counts: dict[str, int] = {}
        self._lines = self._failures = 0
        self._unsaid: set[str] = set()  # events that were only counted

    def ended(self, ends: Sequence[End]) -> None:
        """These outcomes were written."""
        self.tick()
        says_all, counts = log.isEnabledFor(logging.INFO), self._counts
        for end in ends:
            event = event_of(end.settlement)
            if event is None or not (says_all or event == State.FAILED):
                continue
            counts[event] = counts.get(event, 0) + 1
            if event in _FAILURES and self._failures < MOST:
                self._failures += 1
                _say(event, end)
            elif event not in _FAILURES and self._lines < MOST and not self._is_busy:
                self._lines += 1
                _say(event, end)
            else:
                self._unsaid.add(event)

    def tick(self, *, is_over: bool = False) -> None:
        """Says what was only counted, once the second is over or the worker ends."""
        now = self._clock()
        if now - self._since < _WINDOW and not is_over:
            return
        if self._unsaid:
            total, counts = sum(self._counts.values()), [f"{n:,} {event}" for event, n in self._counts.items()]
            level = logging.WARNING if State.FAILED in self._unsaid else logging.INFO
            _put(level, f"{counted(total, 'job')} ended in the last second: {', '.join(counts)}")
        self._is_busy = sum(self._counts.values()) > MOST
        self._begin(now)


def event_of(settlement: Settlement | None) -> str | None:
    """What became of a job, in a word; None: it goes back unrun."""
    if settlement is None:
        return "completed"
    if settlement.state in FINAL:
        return str(settlement.state)
    if settlement.outcome is not None:
        return "retried"
    return None if settlement.keeps_error else "snoozed"


def _say(event: str, end: End) -> None:
    level = logging.WARNING if event == State.FAILED else logging.INFO
    if not log.isEnabledFor(level):
        return
    claim, settlement = end.execution.claim, end.settlement or _by_its_body(end.execution)
    error = settlement.error or settlement.error_message
    trace = settlement.traceback and clean_traceback(settlement.traceback.rstrip(), _TRACEBACK_BYTES)
    seconds = (settlement.finished - settlement.started) / SECOND
    text = f"job {short_id(claim.id)} ({claim.task}) {_words(event, claim, settlement, span(seconds))}"
    line = escape_control(f"{text}: {error}" if error else text)
    fields = {
        "event": event,
        "job": claim.id,
        "task": claim.task,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "max_attempts": claim.max_attempts,
        "seconds": seconds,
        "reason": settlement.reason,
        "error": error,
        "traceback": trace,
        "retry_in": (settlement.delay_us or 0) / SECOND if event in {"retried", "snoozed"} else None,
    }
    _put(level, line, fields, trace)


def _put(level: int, line: str, fields: dict[str, Any] | None = None, trace: str | None = None) -> None:
    if not log.isEnabledFor(level):
        return
    extra = None if fields is None else {END_FIELDS: fields}
    record = log.makeRecord(log.name, level, __file__, 0, "%s", (line,), None, extra=extra)
    if trace:
        # Formatters put this under the line, as they do with the traceback of an exception that is at hand.
        record.exc_text = escape_lines(f"\n{trace}").removeprefix("\n")
    try:
        log.handle(record)
    except Exception:  # noqa: BLE001 - of a program's own handler: what it raised in the engine cost a batch its events
        _COMPLAINER.handleError(record)


_COMPLAINER = logging.NullHandler()  # writes to stderr what a handler raised, as `logging` does


def _by_its_body(execution: Execution) -> Settlement:
    """The body has completed the job in a transaction of its own."""
    now = execution.link.clock.steady()
    return completed(execution.claim, now if execution.started is None else execution.started, now)


def _words(event: str, claim: Claim, settlement: Settlement, took: str) -> str:
    attempt = attempt_of(claim.attempt, claim.max_attempts, claim.claim)
    again = f"in {span(settlement.delay_us / SECOND)}" if settlement.delay_us else "at once"
    if event == State.COMPLETED:
        return f"completed in {took}, {attempt}"
    if event == "retried":
        return f"will be retried {again}: {attempt} failed after {took}"
    if event == "snoozed":
        return f"was put back after {took}, without counting the attempt, and runs again {again}"
    return f"{'was cancelled' if event == State.CANCELLED else event} after {took}, {attempt}"
