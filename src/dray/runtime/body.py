"""Calls a task's function for an execution, in the thread or on the loop of the caller.

Returns the settlement of whatever happened; None: nothing is to be written. Anything a body can do to its thread
ends here: `SystemExit`, `KeyboardInterrupt` and worse are outcomes like others.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Coroutine, Generator
from datetime import UTC, datetime
from typing import Any

from dray.errors import Misfit, PayloadError, StorageError
from dray.hooks import wrapped
from dray.instants import SECOND, from_datetime, to_datetime
from dray.log import log
from dray.model import settlement
from dray.model.settlement import Settlement
from dray.runtime import outcome
from dray.runtime.context import Context, parent_results
from dray.runtime.execution import Execution, Interrupted, current
from dray.sanitize import escape_control
from dray.wording import short_id

Call = tuple[list[Any], dict[str, Any]]  # the arguments by position, and those by name
Begun = tuple[Call, Context | None]
_STORAGE_PAUSE = 5 * SECOND


def run(execution: Execution) -> Settlement | None:
    token = current.set(execution)
    try:
        task = execution.task
        around = task.app.hooks.around_def
        begun = _begin(execution, is_wrapped=bool(around))
        if isinstance(begun, Settlement):
            return begun
        call, context = begun
        home = os.getpid()
        try:
            value = wrapped(around, context, task.function, call)() if around else task.function(*call[0], **call[1])
        except BaseException as error:  # noqa: BLE001 - whatever a body raises is its outcome
            _end_copy(home, error)
            return outcome.raised(execution, error)
        _end_copy(home, None)
        return outcome.returned(execution, value)
    finally:
        current.reset(token)


async def arun(execution: Execution, leash: Leash) -> Settlement | None:
    current.set(execution)  # the task that runs this has a context of its own
    task = execution.task
    around = task.app.hooks.around_async
    begun = _begin(execution, is_wrapped=bool(around))
    if isinstance(begun, Settlement):
        return begun
    call, context = begun
    home = os.getpid()
    try:
        body = wrapped(around, context, task.function, call)() if around else task.function(*call[0], **call[1])
        value = await leash.lead(body)
    except BaseException as error:  # noqa: BLE001 - as above
        _end_copy(home, error)
        return outcome.raised(execution, error)
    _end_copy(home, None)
    return outcome.returned(execution, value)


class Leash:
    """Steps a coroutine for as long as it may run.

    A coroutine can swallow its cancellation and go on. So this stands between the loop and the body: once it is cut,
    no more steps reach the body, whatever the body does, and nothing of it can overlap with a retry.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self._body: Coroutine[Any, Any, Any] | None = None

    def lead(self, body: Coroutine[Any, Any, Any]) -> Leash:
        self._body = body
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        body = self._body
        assert body is not None
        try:
            awaited = body.send(None)
            while True:
                try:
                    sent = yield awaited
                except BaseException as error:
                    if self.is_cut:
                        raise
                    awaited = body.throw(error)
                else:
                    awaited = body.send(sent)
        except StopIteration as end:
            return end.value

    def stack(self) -> str | None:
        lines: list[str] = []
        step: Any = self._body
        while step is not None and getattr(step, "cr_frame", None) is not None:
            lines += traceback.format_stack(step.cr_frame, limit=1)
            step = step.cr_await
        return "".join(lines) or None

    def cut(self) -> None:
        """Allows no further step. Call it on the loop's thread, then cancel the task that awaits this."""
        self.is_cut = True

    def bury(self) -> None:
        """Ends the body where it stands, once nothing awaits it."""
        if self._body is None:
            return
        try:
            self._body.close()
        except BaseException as error:  # noqa: BLE001 - its clean-up may raise anything; it is over either way
            log.debug("a coroutine that was cut off raised %s", escape_control(type(error).__name__))


def _end_copy(home: int, error: BaseException | None) -> None:
    """Ends this process if the body forked it: it is a copy of the worker, and must run nothing."""
    if os.getpid() == home:
        return
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code if isinstance(code, int) else int(code is not None))


def _begin(execution: Execution, *, is_wrapped: bool) -> Begun | Settlement:
    """The arguments of the call, which starts now, or the settlement of a job whose arguments cannot be used."""
    task, claim, link = execution.task, execution.claim, execution.link
    try:
        results = parent_results(link.backend, claim.id) if task.signature.takes_parent_results else None
        context = Context(execution) if is_wrapped or task.signature.contexts else None
        call = task.arguments(claim.args, context=context, parent_results=results)
        if context is not None:
            execution.call = call
    except Misfit as error:
        return _misfitting(execution, str(error))
    except PayloadError as error:
        return outcome.unreadable(execution, error)
    except StorageError as error:
        log.warning("job %s: the results of its parents cannot be read now: %s", short_id(claim.id), error)
        return settlement.postponed(claim, link.clock.steady(), _STORAGE_PAUSE)
    except Interrupted:
        raise
    except BaseException as error:  # noqa: BLE001 - a model's own code reads the arguments, and may raise anything
        return _misfitting(execution, f"reading the arguments raised {outcome.described(error)}")
    execution.begin(link.clock.steady())
    link.began(execution)
    return call, context


def _misfitting(execution: Execution, what: str) -> Settlement:
    """The row's own error tells since when the arguments have not fitted: workers come and go."""
    link = execution.link
    now = to_datetime(link.clock.now())
    try:
        rows = link.backend.jobs.get([execution.claim.id])
    except StorageError as unread:
        job = short_id(execution.claim.id)
        log.warning("job %s: since when its arguments do not fit cannot be read now: %s", job, unread)
        return settlement.postponed(execution.claim, link.clock.steady(), _STORAGE_PAUSE)
    since = _since(rows[0].error if rows else None) or now
    since_us = from_datetime(now) - from_datetime(since)
    return outcome.misfitting(execution, f"{since.strftime(_SINCE)}: {what}", since_us)


_SINCE = "since %Y-%m-%dT%H:%M:%SZ"


def _since(error: str | None) -> datetime | None:
    """Reads back what `_misfitting` has written."""
    try:
        return datetime.strptime((error or "")[:34], f"Misfit: {_SINCE}").replace(tzinfo=UTC)
    except ValueError:
        return None
