"""What a body can know and do: the object that fills a parameter annotated `Context`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self
from uuid import UUID

from dray import codec
from dray.errors import ConfigError, UnknownJob
from dray.instants import moment
from dray.interrupts import CleanExit
from dray.job_control import Cancel, Fail, Snooze
from dray.model import settlement
from dray.model.bounds import ERROR_MESSAGE_BYTES
from dray.model.headers import decode_headers
from dray.model.job import Job, State
from dray.model.new_job import NewJob
from dray.model.settlement import Settlement
from dray.runtime import outcome
from dray.runtime.execution import Execution, Interrupted, deliver_stop
from dray.sanitize import bounded
from dray.task.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dray.backends import Backend
    from dray.backends.store.block import TransactionBlock
    from dray.model.workflow import OnParentFailure
    from dray.task.add_step import AddStep
    from dray.task.steps import Parent, Step
    from dray.task.task import Enqueuer

_TIME_BITS = 48  # of a UUID of version 7
_HASH_BITS = 50

_tasks = logging.getLogger("dray.task")
# Lines that a body writes to its own log are kept, whatever the root logger's level, unless the program has set a
# level here.
if _tasks.level == logging.NOTSET:
    _tasks.setLevel(logging.INFO)


class Context:
    """One attempt, as its body sees it.

    Example:

        >>> @app.task
        ... def ship(ctx: dray.Context, order: int) -> str:
        ...     ctx.progress(50, "half way")
        ...     return f"order {order}, attempt {ctx.attempt} of {ctx.max_attempts}"
        >>> job = ship.enqueue(7)  # the worker passes the Context
        >>> app.worker().run_until_idle()
        1
        >>> job.result(), job.progress.message
        ('order 7, attempt 1 of 3', 'half way')
    """

    __dray_context__ = True

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._steps: Steps | None = None
        self._is_sealed = False  # its completion may be committed any moment: no more steps can go with it

    def __repr__(self) -> str:
        return f"<Context of {self._execution.claim.task} {self.job_id} attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        """The id of the job: ``len(ctx.job_id)  # 36``."""
        return self._execution.claim.id

    @property
    def task(self) -> str:
        """The name of the task: ``ctx.task  # 'total'``."""
        return self._execution.claim.task

    @property
    def queue(self) -> str:
        """The name of the queue: ``ctx.queue  # 'default'``."""
        return self._execution.claim.queue

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments by name, as the body gets them: ``ctx.args["a"]  # 1``. They cannot be changed here."""
        execution = self._execution
        return MappingProxyType({} if execution.call is None else execution.task.signature.named(*execution.call))

    @property
    def headers(self) -> Mapping[str, str]:
        """What the job was enqueued with: ``ctx.headers["request_id"]  # '7f3a'``. They cannot be changed."""
        return MappingProxyType(decode_headers(self._execution.claim.headers))

    @property
    def attempt(self) -> int:
        """The number of this attempt: ``ctx.attempt  # 1``."""
        return self._execution.claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has, with the first: ``ctx.max_attempts  # 3``."""
        return self._execution.claim.max_attempts

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job, for services that know such keys.

        ``headers = {"Idempotency-Key": ctx.idempotency_key}``
        """
        return self.job_id

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made this job, if one did: ``ctx.schedule  # None``."""
        return self._row.schedule

    @property
    def slot(self) -> datetime | None:
        """The time for which its schedule made it, however late it runs: ``ctx.slot  # None``, if run by hand."""
        return moment(self._row.slot)

    @cached_property
    def _row(self) -> Job:
        # Few bodies ask, so a claim does not carry it.
        found = self._execution.link.backend.jobs.get([self.job_id])
        if not found:
            raise UnknownJob(
                f"job {self.job_id} is not there any more: it was deleted while it ran; "
                "stop here, its result is discarded"
            )
        return found[0]

    @property
    def log(self) -> logging.Logger:
        """Its lines are kept with the job: ``ctx.log.info("sent %s", 7)``. Those of other loggers are too."""
        return logging.getLogger(f"dray.task.{self._execution.claim.task}")

    def progress(self, percent: float | None, message: str | None = None) -> None:
        """How far it is: ``ctx.progress(50, "half of it")``. The last counts, written at most twice a second."""
        if percent is not None:
            percent = float(percent)
            if math.isnan(percent):
                raise ValueError("progress must be a number from 0 to 100, not nan")
            percent = min(100.0, max(0.0, percent))
        said = None if message is None else bounded(str(message), ERROR_MESSAGE_BYTES)
        self._execution.report = (percent, said)
        self._execution.link.note(self._execution)
        deliver_stop()

    @property
    def cancelled(self) -> bool:
        """Whether the body should stop, cancelled, out of time or with its worker: ``ctx.cancelled  # False``."""
        return self._execution.stop is not None

    def raise_if_cancelled(self) -> None:
        """Ends the body here if it should stop: ``ctx.raise_if_cancelled()``."""
        if self._execution.stop is not None:
            raise Interrupted(self._execution.stop)

    def is_final(self, error: BaseException) -> bool:
        """Whether the job fails for good with this error: ``ctx.is_final(dray.Fail("no"))  # True``."""
        if self._execution.is_written:
            return False
        ended = outcome.raised(self._execution, error)
        return ended is not None and ended.state == State.FAILED

    @property
    def parent_results(self) -> Mapping[str, Any]:
        """The results of the jobs that it waited for, by step and by id: ``ctx.parent_results["left"]  # 3``."""
        return parent_results(self._execution.link.backend, self.job_id) or {}

    if TYPE_CHECKING:

        @property
        def add(self) -> AddStep: ...

    else:

        def add(
            self,
            task: Enqueuer[..., Any],
            *args: Any,
            after: Sequence[Parent] | Parent | None = None,
            step: str | None = None,
            on_parent_failure: OnParentFailure | None = None,
            pass_parent_results: bool = True,
            **kwargs: Any,
        ) -> Step:
            """Adds a step to the workflow that this job belongs to, as `Workflow.add` does: ``ctx.add(add, 5, 6)``.

            It is written together with the completion of this job, and not at all if the job fails or is tried again.
            """
            if self._is_sealed or self._execution.is_written:
                raise ConfigError("this job is completed already: add steps to its workflow before that")
            if self._steps is None:
                self._steps = _steps_of(self._execution)
            added = self._steps.add(task, args, kwargs, after, step, on_parent_failure, pass_parent_results)
            hooks = self._execution.task.app.hooks
            self._execution.grown.append(hooks.added(self._steps.job(added)))
            return added

    def transaction(self, result: Any = None) -> Transaction:
        """``with ctx.transaction() as tx: tx.execute("SELECT 1")`` commits what is written and the job's completion.

        ``async with`` in coroutines. `tx.result` sets the result. A lost claim raises `StaleClaim` and rolls back.
        """
        return Transaction(self._execution, self.completion, result)

    def complete(self, *, connection: Any, result: Any = None) -> None:
        """Completes the job in your open transaction: ``ctx.complete(connection=connection)``, when you commit.

        A lost claim raises `StaleClaim`: roll back.
        """
        execution = self._execution
        work, completion = execution.link.backend.work, self.completion(result)
        room = execution.claim.gives_room_to
        work.complete(execution.worker_id, completion, connection, new=execution.grown, room=room)
        self._is_sealed = True

    async def acomplete(self, *, connection: Any, result: Any = None) -> None:
        """As `complete`, for an asynchronous one: ``await ctx.acomplete(connection=connection)``."""
        execution = self._execution
        work, completion = execution.link.backend.work, self.completion(result)
        room = execution.claim.gives_room_to
        await work.complete_async(execution.worker_id, completion, connection, new=execution.grown, room=room)
        self._is_sealed = True

    def completion(self, result: Any) -> Settlement:
        """The settlement that completes this attempt now; `PayloadError` before anything is written."""
        execution = self._execution
        text = None if result is None else execution.task.encode_result(result)
        if execution.started is None:
            raise ConfigError("a job can be completed by its own body only, while it runs: call this there")
        now = execution.link.clock.steady()
        keep_args = execution.task.options.keep_args
        return settlement.completed(execution.claim, execution.started, now, text, keep_args=keep_args)


class LocalContext(Context):
    """What a body sees when it is called as a function: the only attempt of a job that is not stored."""

    def __init__(self, task: str, job_id: str, args: Mapping[str, Any] | None = None, queue: str = "default") -> None:
        self._task = task
        self._job_id = job_id
        self._queue = queue
        self._args: Mapping[str, Any] = {} if args is None else args

    def __repr__(self) -> str:
        return f"<Context of a plain call of {self._task}>"

    @property
    def job_id(self) -> str:
        return self._job_id

    @property
    def task(self) -> str:
        return self._task

    @property
    def queue(self) -> str:
        return self._queue

    @property
    def args(self) -> Mapping[str, Any]:
        return MappingProxyType(self._args)

    @property
    def headers(self) -> Mapping[str, str]:
        return MappingProxyType({})

    @property
    def attempt(self) -> int:
        return 1

    @property
    def max_attempts(self) -> int:
        return 1

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"dray.task.{self._task}")

    @property
    def schedule(self) -> str | None:
        return None

    @property
    def slot(self) -> datetime | None:
        return None

    def progress(self, percent: float | None, message: str | None = None) -> None:
        self.log.debug("%s %s", percent, message)

    @property
    def cancelled(self) -> bool:
        return False

    def raise_if_cancelled(self) -> None:
        """Does nothing: a plain call cannot be cancelled."""

    def is_final(self, error: BaseException) -> bool:
        """As far as a plain call can know: in the last attempt, or with `dray.Fail`."""
        is_last = isinstance(error, Fail) or self.attempt >= self.max_attempts
        return is_last and not isinstance(error, Snooze | Cancel)

    @property
    def parent_results(self) -> Mapping[str, Any]:
        return {}

    def completion(self, result: Any) -> NoReturn:  # noqa: ARG002
        raise ConfigError(
            f"{self._task} was called as a function, so there is no job to complete or to add to; enqueue it "
            "and run a worker, or in a test dray.testing.drain(app)"
        )

    if not TYPE_CHECKING:  # to checkers it is that of every Context

        def add(self, *args: Any, **options: Any) -> NoReturn:  # noqa: ARG002
            self.completion(None)

    def transaction(self, result: Any = None) -> NoReturn:
        self.completion(result)

    def complete(self, *, connection: Any, result: Any = None) -> NoReturn:  # noqa: ARG002
        self.completion(result)

    async def acomplete(self, *, connection: Any, result: Any = None) -> NoReturn:  # noqa: ARG002
        self.completion(result)


class Transaction(CleanExit):
    """A database connection inside one transaction; whatever a connection can do, this can."""

    result: Any
    connection: Any
    _own = frozenset({"result", "connection", "_execution", "_completion", "_sync", "_async"})

    def __init__(self, execution: Execution, completion: Callable[[Any], Settlement], result: Any) -> None:
        self.result = result
        self.connection = None
        self._execution = execution
        self._completion = completion
        self._sync: TransactionBlock | None = None
        self._async: AbstractAsyncContextManager[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if self.connection is None:
            raise ConfigError(f"the transaction is not open: use `with ctx.transaction() as tx`, then tx.{name}")
        return getattr(self.connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            setattr(self.connection, name, value)

    @property
    def __dray_connection__(self) -> Any:
        """The connection that `connection=` uses when it is given this."""
        return self.connection

    def __enter__(self) -> Self:
        self._refuse_twice()
        self._sync = self._execution.link.backend.transaction(fence=self._fence)
        self.connection = self._sync.__enter__()
        return self

    def leave(self, error: BaseException | None) -> None:
        assert self._sync is not None
        connection, self.connection = self.connection, None
        try:
            if error is None:
                execution, work = self._execution, self._execution.link.backend.work
                given = execution.worker_id, self._completion(self.result), connection
                room = execution.claim.gives_room_to
                execution.fanout_pending = work.complete(*given, new=execution.grown, room=room)
        except BaseException as failure:
            self._sync.leave(failure)
            raise
        self._sync.leave(error)
        if error is None:
            self._has_written()

    def cleanup(self) -> None:
        if self._sync is not None:
            self._sync.cleanup()

    async def __aenter__(self) -> Self:
        self._refuse_twice()
        self._async = self._execution.link.backend.atransaction(fence=self._fence)
        self.connection = await self._async.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._async is not None
        connection, self.connection = self.connection, None
        try:
            if error is None:
                execution, work = self._execution, self._execution.link.backend.work
                given = execution.worker_id, self._completion(self.result), connection
                room = execution.claim.gives_room_to
                execution.fanout_pending = await work.complete_async(*given, new=execution.grown, room=room)
        except BaseException as failure:
            await self._async.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        await self._async.__aexit__(kind, error, trace)
        if error is None:
            self._has_written()

    def _has_written(self) -> None:
        self._execution.is_written = True
        self._execution.link.written(self._execution)

    @property
    def _fence(self) -> tuple[str, str, int]:
        claim = self._execution.claim
        return claim.id, self._execution.worker_id, claim.claim

    def _refuse_twice(self) -> None:
        if self._execution.is_written:
            raise ConfigError(
                "this job is completed already: it has one completing transaction; put all its writes into that one"
            )


def parent_results(backend: Backend, job_id: str) -> Mapping[str, Any] | None:
    """The results of a job's completed parents, by step name and by id; None: it has no parents."""
    parents = [parent for parent, child, _ in backend.graph.edges(job_id) if child == job_id]
    if not parents:
        return None
    found = {job.id: job for job in backend.jobs.get(parents)}
    results: dict[str, Any] = {}
    for parent in parents:
        job = found.get(parent)
        if job is None or job.state != State.COMPLETED:
            continue
        value = None if job.result is None else codec.decode(job.result, path="result")
        results[job.id] = value
        if job.step is not None:
            results[job.step] = value
    return results


def _steps_of(execution: Execution) -> Steps:
    """The workflow that a body adds steps to. They are written when its job completes, in that transaction."""
    claim = execution.claim
    if claim.workflow_id is None:
        raise ConfigError(
            f"job {claim.id} ({claim.task}) is no step of a workflow, so nothing can be added; "
            "enqueue it with app.workflow(...), or enqueue the other task from here"
        )
    workflow_id, link = claim.workflow_id, execution.link
    return Steps(
        workflow_id,
        lambda job, number: grown_id(claim.id, job, number),
        lambda step: link.backend.workflows.step(workflow_id, step),
    )


def grown_id(parent: str, job: NewJob, number: int) -> str:
    """The id of the n-th step that a job adds: a UUID of version 7 from the parent's time, n, and a hash of the rest.

    In this order, so that ready steps start in the order they were added in. A body that runs again, because its
    completed job was started over, makes the same ids: it adds jobs that are there already.
    """
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which few programs would need for nothing else

    text = "\0".join((parent, job.step or f"{job.task}\0{job.args}"))
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
    tail = number << _HASH_BITS | digest & ((1 << _HASH_BITS) - 1)
    high, low = tail >> 62, tail & ((1 << 62) - 1)
    time = (UUID(parent).int >> (128 - _TIME_BITS)) + 1  # a millisecond later: it comes after its parent in lists
    return str(UUID(int=time << 80 | 7 << 76 | (high & 0xFFF) << 64 | 1 << 63 | low))
