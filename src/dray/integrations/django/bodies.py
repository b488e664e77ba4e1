"""What a worker calls for one of Django's tasks: the function, between two looks at Django's connections; and the
signals that tell of it once it is written."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.tasks.base import TaskContext, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json

from dray.handle.job import AttemptError, Job
from dray.log import log
from dray.runtime.context import Context
from dray.wording import short_id

if TYPE_CHECKING:
    from dray.integrations.django.core import DjangoApp

ResultOf = Callable[[str], TaskResult]  # by the id of a job
Args = list[Any] | None
Kwargs = dict[str, Any] | None


def body_of(task: Any, result_of: ResultOf) -> Callable[..., Any]:
    """The function that a worker calls with what the row holds. Schedules and command lines may leave args out."""
    if inspect.iscoroutinefunction(task.func):

        async def abody(
            ctx: Context,
            args: Args = None,
            kwargs: Kwargs = None,
            run_after: str | None = None,  # noqa: ARG001 - for the result alone
        ) -> Any:
            first = [await sync_to_async(_context)(ctx, result_of)] if task.takes_context else []
            return normalize_json(await task.func(*first, *(args or ()), **(kwargs or {})))

        return _named(abody, task.func)

    def body(
        ctx: Context,
        args: Args = None,
        kwargs: Kwargs = None,
        run_after: str | None = None,  # noqa: ARG001 - as above
    ) -> Any:
        first = [_context(ctx, result_of)] if task.takes_context else []
        return normalize_json(task.func(*first, *(args or ()), **(kwargs or {})))

    return _named(body, task.func)


def _context(ctx: Context, result_of: ResultOf) -> TaskContext:
    return TaskContext(task_result=result_of(ctx.job_id))


def _named(body: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Takes its own arguments, and has the name and the words of the user's function."""
    functools.update_wrapper(body, function, ("__module__", "__name__", "__qualname__", "__doc__"), ())
    del body.__wrapped__  # pyright: ignore[reportFunctionMemberAccess] - Dray would look there for the parameters
    return body


# Connections


def close_old() -> None:
    """As at the end of a request. A connection inside `atomic()` is a test's, and stays."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _close_all() -> None:
    """In a thread that is about to end."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def tidily(ctx: Context, call: Callable[[], Any]) -> Any:  # noqa: ARG001 - what middleware takes
    """Around each body that is a def."""
    close_old()
    try:
        return call()
    finally:
        close_old()


async def tidily_async(ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG001 - as above
    """Around each body that is an async def: its queries share a thread of its own, which ends with it."""
    async with ThreadSensitiveContext():
        try:
            return await call()
        finally:
            await sync_to_async(_close_all)()


# Signals


class TaskFailed(Exception):
    """Carries a body's traceback into Django's log, which shows the exception that is being handled."""


def tell_signals(app: DjangoApp) -> None:
    """Sends task_started and task_finished, once what they tell is written. On the worker's thread for hooks."""

    def started(job: Job[Any]) -> None:
        _send(app, job, None)

    def finished(job: Job[Any], error: AttemptError | None = None) -> None:
        _send(app, job, error, is_over=True)

    app.on("started")(started)
    for event in ("completed", "failed", "cancelled"):
        app.on(event)(finished)


def _send(app: DjangoApp, job: Job[Any], error: AttemptError | None, *, is_over: bool = False) -> None:
    close_old()
    try:
        result = app.result_of(job.id)
    except TaskResultDoesNotExist as unknown:  # removed meanwhile, or of a task that is not Django's
        log.debug("no signal is sent of job %s: %s", short_id(job.id), unknown)
        return
    try:
        if is_over and result.status == TaskResultStatus.FAILED:
            trace = error.traceback if error is not None and error.traceback else result.errors[-1].traceback
            _in_handler(TaskFailed(trace.rstrip("\n")), lambda: task_finished.send(app.sender, task_result=result))
        else:
            (task_finished if is_over else task_started).send(app.sender, task_result=result)
    finally:
        close_old()


def _in_handler(error: TaskFailed, send: Callable[[], object]) -> None:
    try:
        raise error
    except TaskFailed:
        send()
