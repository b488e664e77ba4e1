"""How the end of a body becomes a settlement, whatever it returned, raised or was stopped by; stacks as text.

None instead of a settlement: nothing is to be written, because the body has completed the job itself, or another
worker has it.
Nothing here raises: an error that cannot be shown (a ``__str__`` that raises, a message of 100 MB, a traceback of a
recursion) is recorded as well as possible.
"""

from __future__ import annotations

import re
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from dray.errors import PayloadError
from dray.instants import DAY, SECOND
from dray.job_control import Cancel, Fail, Retry, Snooze
from dray.log import log
from dray.model import settlement
from dray.model.bounds import ERROR_MESSAGE_BYTES, TRACEBACK_BYTES
from dray.model.job import FINAL, Outcome, Reason, State
from dray.model.job_retry import decode_retry
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution, Interrupted, StopCause
from dray.sanitize import bounded, clean, clean_traceback, escape_lines, redact
from dray.task.options import next_delay_us, policy_delay_us
from dray.wording import short_id

_KIND_BYTES = 200
_CLASS_BYTES = 500
_LAST_MOMENTS = 2 * SECOND  # from a worker's last write to the end of its process
_FRAME = re.compile(r'^(?=  File ")', re.MULTILINE)
# Frames of modules below these folders call bodies.
_OURS = tuple(f'  File "{Path(__file__).parents[1] / folder}' for folder in ("runtime", "integrations"))
_CALLERS = ("dray.runtime.", "dray.integrations.")  # modules that call bodies
_FRAMES = 100  # of a traceback, from either end: a recursion has a thousand that say the same


def returned(execution: Execution, value: Any) -> Settlement | None:
    claim, times = execution.claim, _times(execution)
    if execution.is_written:
        if value is not None:
            what_now = "what it returned is dropped, set tx.result instead"
            log.warning("job %s: its transaction has completed it; %s", short_id(claim.id), what_now)
        return None
    try:
        text = None if value is None else execution.task.encode_result(value)
    except BaseException as error:  # noqa: BLE001 - a result's own methods may raise anything; the body must not run again
        message = f"the body returned, but its result cannot be stored: {_message(error)}"
        ended = settlement.failed(claim, *times, Reason.RESULT, _kind(error), message, _trace(error))
        return _of_class(ended, error)
    return settlement.completed(claim, *times, text, keep_args=execution.task.options.keep_args)


def ungrown(execution: Execution, ended: Settlement, error: BaseException) -> Settlement:
    """The body returned, but the steps that it added to its workflow cannot be written."""
    message = f"the body returned, but the steps it added cannot be written: {_message(error)}"
    times = ended.started, ended.finished
    return _of_class(settlement.failed(execution.claim, *times, Reason.RESULT, _kind(error), message, None), error)


def raised(execution: Execution, error: BaseException) -> Settlement | None:
    claim, times = execution.claim, _times(execution)
    if execution.is_written:
        # Not as exc_info: that prints the error's own text as it is, and with it lines that look like the log's.
        after = _trace(error) or described(error)
        what_now = f"the error after that is only logged: {escape_lines(after.rstrip())}"
        log.warning("job %s: its transaction has completed it; %s", short_id(claim.id), what_now)
        return None
    if execution.stop is not None:
        return stopped(execution, error)
    if isinstance(error, Snooze):
        return settlement.snoozed(claim, *times, error.delay_us)
    if isinstance(error, Cancel):
        return settlement.cancelled(claim, *times, _message(error) or None)
    shown = _kind(error), _message(error), _trace(error)
    if isinstance(error, Retry):
        kind, delay_us = Outcome.RETRY, _policy_us(execution) if error.delay_us is None else error.delay_us
    else:
        kind, delay_us = Outcome.ERROR, None if isinstance(error, Fail) else _delay_us(execution, error)
    if delay_us is None:
        return _of_class(settlement.failed(claim, *times, Reason.ERROR, *shown), error)
    return _of_class(settlement.errored(claim, *times, kind, delay_us, *shown), error)


def stopped(execution: Execution, error: BaseException | None = None, stack: str | None = None) -> Settlement | None:
    claim, times = execution.claim, _times(execution)
    if execution.stop is StopCause.LOST:
        return None
    if execution.stop is StopCause.SHUTDOWN:
        return settlement.released(claim, times[1])
    if execution.stop is StopCause.CANCEL:
        return settlement.cancelled(claim, *times, "cancelled while it ran")
    message = f"ran longer than its timeout of {claim.timeout or 0:g} s"
    shown = "Timeout", message, _cut(stack) if error is None else _trace(error)
    delay_us = _delay_us(execution, TimeoutError(message))
    if delay_us is None:
        return settlement.failed(claim, *times, Reason.TIMEOUT, *shown)
    return settlement.errored(claim, *times, Outcome.TIMEOUT, delay_us, *shown)


def out_of_time(execution: Execution, stack: str | None) -> Settlement:
    """The body did not stop, and this was the last attempt: the job ends while the body still runs."""
    message = f"ran longer than its timeout of {execution.claim.timeout or 0:g} s and did not stop when told to"
    shown = "Timeout", message, _cut(stack)
    return settlement.failed(execution.claim, *_times(execution), Reason.TIMEOUT, *shown)


def left_behind(execution: Execution) -> Settlement | None:
    """The body still runs and ends with its process, in a moment. The job must not start again before that."""
    ended = stopped(execution)
    if ended is None or ended.state in FINAL:
        return ended
    return ended._replace(state=State.SCHEDULED, delay_us=max(ended.delay_us or 0, _LAST_MOMENTS))


def died(execution: Execution, message: str, stack: str | None) -> Settlement | None:
    if execution.stop is not None:
        return stopped(execution, stack=stack)
    shown = bounded(message, ERROR_MESSAGE_BYTES), _cut(stack)
    return settlement.child_died(execution.claim, *_times(execution), _policy_us(execution), *shown)


def unreadable(execution: Execution, error: PayloadError) -> Settlement:
    """The stored arguments cannot be read by any code."""
    shown = _kind(error), _message(error), None
    return _of_class(settlement.failed(execution.claim, *_times(execution), Reason.ARGUMENTS, *shown), error)


def misfitting(execution: Execution, message: str, since_us: int) -> Settlement:
    """The arguments do not fit the code here. After a day the job fails."""
    claim, times, message = execution.claim, _times(execution), bounded(message, ERROR_MESSAGE_BYTES)
    if since_us >= DAY:
        return settlement.failed(claim, *times, Reason.ARGUMENTS, "Misfit", message, None)
    # It waits for as long as they have not fitted so far, between 5 seconds and 5 minutes.
    delay_us = max(5 * SECOND, min(since_us, 300 * SECOND))
    return settlement.misfit(claim, times[1], delay_us, message)


def _times(execution: Execution) -> tuple[int, int]:
    """When the body started, if it did, and now."""
    now = execution.link.clock.steady()
    return now if execution.started is None else execution.started, now


def _delay_us(execution: Execution, error: BaseException) -> int | None:
    claim = execution.claim
    options, of_job = execution.task.options, decode_retry(claim.retry)
    return next_delay_us(options, claim.attempt, error, execution.link.rng, of_job)


def _policy_us(execution: Execution) -> int:
    """The delay before an attempt that follows in any case."""
    claim = execution.claim
    return policy_delay_us(execution.task.options, claim.attempt, execution.link.rng, decode_retry(claim.retry))


def described(error: BaseException) -> str:
    """An error in one line, whatever it is."""
    return f"{_kind(error)}: {_message(error)}"


def _kind(error: BaseException) -> str:
    return clean(type(error).__name__, _KIND_BYTES)


def _of_class(ended: Settlement, error: BaseException) -> Settlement:
    """With the place of the error's class, as an import statement needs it."""
    kind = type(error)
    try:
        # In a child process the script that was started has another name.
        place = re.sub("^__mp_main__$", "__main__", kind.__module__)
        path = clean(f"{place}.{kind.__qualname__}", _CLASS_BYTES)
    except BaseException:  # noqa: BLE001 - a class may say anything of itself, and its metaclass raise anything
        path = None
    return ended._replace(error_class=path)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as second:  # noqa: BLE001 - a __str__ of the user's may raise anything at all
        text = f"<its message could not be read: {type(second).__name__}>"
    return bounded(text, ERROR_MESSAGE_BYTES)


def _trace(error: BaseException) -> str | None:
    trace = _users(error.__traceback__)
    if isinstance(error, Interrupted) and trace is None:
        return None
    try:
        summary = traceback.TracebackException(type(error), error, trace, limit=_FRAMES, compact=True)
        text = "".join(summary.format())
    except BaseException as second:  # noqa: BLE001 - as above
        text = "".join(traceback.format_tb(trace, limit=_FRAMES))
        text += f"{type(error).__name__}: <could not be shown: {type(second).__name__}>\n"
    return _cut(text)


def _users(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames of Dray that call the body."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        if trace.tb_next is None:
            break
        trace = trace.tb_next
    return trace


def _cut(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > 4 * TRACEBACK_BYTES:  # a message of 100 MB is in it too; only both ends are kept
        text = f"{text[: 2 * TRACEBACK_BYTES]}\n…\n{text[-2 * TRACEBACK_BYTES :]}"
    return clean_traceback(redact(text), TRACEBACK_BYTES)


def shown_stack(stack: str) -> str:
    """A stack as `traceback` formats it, outermost frame first, without the frames that call the body."""
    frames = _FRAME.split(stack)
    while frames and (not frames[0] or frames[0].startswith((*_OURS, f'  File "{threading.__file__}'))):
        del frames[0]
    return clean_traceback(redact("".join(frames).rstrip("\n")), TRACEBACK_BYTES)


def shown_dump(dump: str) -> str:
    """A stack as `faulthandler` dumps it, a line a frame, innermost first, without the frames that call the body."""
    ours = (*_OURS, '  File "<string>", line 1 in <module>')  # the latter: the forker's program
    return "\n".join(line for line in dump.split("\n") if not line.startswith(ours))
