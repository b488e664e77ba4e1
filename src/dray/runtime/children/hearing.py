"""What a child says of a job: checked, and noted in its execution.

A body's code may write anything to the socket. Texts are made fit to be stored, as the child should have done.
Anything else, which no database would take, raises ValueError, TypeError or OverflowError.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from types import NoneType
from typing import Any

from dray.log import log
from dray.model.bounds import ERROR_MESSAGE_BYTES, LOG_LINES, LOG_MESSAGE_BYTES, TRACEBACK_BYTES
from dray.model.job import FINAL, Claim, LogLine, State
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement
from dray.runtime.children.wire import Message
from dray.runtime.children.worker_side import StartFailed
from dray.runtime.execution import Execution, StopCause
from dray.runtime.notes import NAME_BYTES
from dray.sanitize import clean, escape_control, escape_lines

_STATES = FINAL | {State.SCHEDULED, State.QUEUED}  # in which an attempt may leave its job
_KINDS = {  # of what a settlement holds
    (str,): ("state",),
    (int, NoneType): ("delay_us",),
    (bool,): ("gives_back", "drops_args", "counts_crash", "keeps_error"),
    (str, NoneType): (
        "outcome",
        "reason",
        "result",
        "error",
        "error_type",
        "error_message",
        "traceback",
        "error_class",
    ),
}


def take_note(execution: Execution, message: Message) -> None:
    link = execution.link
    if "began" in message:
        begin(execution, checked_instant(message["began"], link.clock.steady()))
    elif "report" in message:
        execution.report = _checked_report(message["report"])
        link.note(execution)
    elif "lines" in message:
        lines = _checked_lines(execution.claim, message["lines"], link.clock.steady())
        if execution.lines is None:
            execution.lines = deque(maxlen=LOG_LINES)
        execution.lines.extend(lines)
        link.note(execution)
        if not message["is_shown"]:
            _show(lines)
    elif "written" in message:
        execution.is_written = True
    elif "grown" in message:
        execution.grown.append(_checked_step(message["grown"], execution.claim.workflow_id))
    else:
        level, said = _checked_log(message["said"])
        log.log(level, "%s", escape_lines(said))


def begin(execution: Execution, at: int) -> None:
    execution.begin(at)
    execution.link.began(execution)


def _show(lines: Sequence[LogLine]) -> None:
    """Logs lines of a child in this process, where bodies in threads log too."""
    levels = logging.getLevelNamesMapping()
    for line in lines:
        name, message = escape_control(line.logger), escape_lines(line.message)
        logger, level = logging.getLogger(name), levels.get(line.level, logging.INFO)
        if logger.isEnabledFor(level):
            logger.handle(logger.makeRecord(name, level, "", 0, message, (), None))


def settlement_of(execution: Execution, message: Message) -> Settlement | None:
    execution.is_written = bool(message["is_written"])
    now, began = execution.link.clock.steady(), message["began"]
    is_known = execution.started is not None
    execution.started = None if began is None else checked_instant(began, now)
    if began is not None and not is_known:
        execution.link.began(execution)  # without a deadline: it is over
    if message["end"] is None or execution.stop is StopCause.LOST:
        return None
    return _checked_settlement(execution.claim, message["end"], now)


def refusal_of(execution: Execution, message: Message) -> StartFailed:
    error = StartFailed(f"a child process could not load task {execution.task.name}: {message['refused']}")
    error.add_note(str(message["trace"]))
    return error


def checked_instant(given: Any, now: int) -> int:
    """A reading of the steady clock, not in the future."""
    if not isinstance(given, int):
        raise TypeError(f"a time that is a {type(given).__name__}")
    return min(max(given, 0), now)


def _checked_report(given: Any) -> tuple[float | None, str | None]:
    percent, said = given
    if percent is not None:
        percent = float(percent)
        if not 0 <= percent <= 100:
            raise ValueError("a percentage that is none")
    return percent, None if said is None else _text(said, ERROR_MESSAGE_BYTES)


def _checked_log(given: Any) -> tuple[int, str]:
    level, text = given
    if not isinstance(level, int):
        raise TypeError(f"a level that is a {type(level).__name__}")
    return level, _text(text, TRACEBACK_BYTES)


def _checked_lines(claim: Claim, given: Any, now: int) -> list[LogLine]:
    return [
        LogLine(
            claim.id,
            claim.claim,
            checked_instant(at, now),
            _text(level, NAME_BYTES),
            _text(logger, NAME_BYTES),
            _text(message, LOG_MESSAGE_BYTES),
        )
        for at, level, logger, message in given
    ]


def _checked_settlement(claim: Claim, given: Any, now: int) -> Settlement:
    """How its attempt has ended. The database checks the values that it stores, and refuses a bad one alone."""
    found = Settlement(*given)
    if found[:2] != (claim.id, claim.claim):
        raise ValueError("the outcome of another job")
    for kinds, names in _KINDS.items():
        for name in names:
            if not isinstance(value := getattr(found, name), kinds):
                raise TypeError(f"{name} is a {type(value).__name__}")
    if found.state not in _STATES:
        raise ValueError("a state that no attempt ends in")
    started, finished = checked_instant(found.started, now), checked_instant(found.finished, now)
    return found._replace(started=started, finished=finished, task=claim.task)


def _checked_step(given: dict[str, Any], workflow_id: str | None) -> NewJob:
    lists: dict[str, Any] = {name: tuple(given[name]) for name in ("parents", "tags")}
    job = NewJob(**{**given, **lists})
    if workflow_id is None or job.workflow_id != workflow_id:
        raise ValueError("a step of another workflow")
    return job


def _text(given: Any, limit_bytes: int) -> str:
    if not isinstance(given, str):
        raise TypeError(f"a text that is a {type(given).__name__}")
    return clean(given, limit_bytes)
