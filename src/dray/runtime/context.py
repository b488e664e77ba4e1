"""What a body can know and do: the object that fills a parameter annotated `Context`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from dray import codec
from dray.convert import to_json
from dray.errors import ConfigError, UnknownJob
from dray.instants import to_datetime
from dray.model import settlement
from dray.model.job import Job
from dray.model.limits import ERROR_MESSAGE_BYTES, RESULT_BYTES
from dray.model.settlement import Settlement
from dray.runtime.execution import Execution, Interrupted, deliver_stop
from dray.runtime.growth import steps_of
from dray.runtime.transaction import Transaction
from dray.sanitize import bounded
from dray.task import Bound, Task
from dray.task.steps import Options, Parent, Step, Steps

_tasks = logging.getLogger("dray.task")
# Lines that a body writes to its own log are wanted, whatever the root logger's level; unless somebody has set one.
if _tasks.level == logging.NOTSET:
    _tasks.setLevel(logging.INFO)


class Context:
    """One attempt, as its body sees it."""

    __dray_context__ = True

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._steps: Steps | None = None
        self._is_sealed = False  # its completion may be committed any moment: nothing more can go with it

    def __repr__(self) -> str:
        return f"<Context of {self._execution.claim.task} {self.job_id} attempt {self.attempt}>"

    @property
    def job_id(self) -> str:
        return self._execution.claim.id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._execution.claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._execution.claim.max_attempts

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: pass it to services that know such keys."""
        return self._execution.claim.id

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that made this job, if one did."""
        return self._row.schedule

    @property
    def slot(self) -> datetime | None:
        """The time for which the schedule made this job, however late it runs; None if somebody ran it by hand."""
        slot = self._row.slot
        return None if slot is None else to_datetime(slot)

    @cached_property
    def _row(self) -> Job:
        # Few bodies ask, so a claim does not carry it.
        found = self._execution.link.backend.jobs.get([self.job_id])
        if not found:
            raise UnknownJob(f"job {self.job_id} is not there any more; somebody has deleted it")
        return found[0]

    @property
    def log(self) -> logging.Logger:
        """A logger whose lines are kept with the job; those of other loggers are too, while the body runs."""
        return logging.getLogger(f"dray.task.{self._execution.claim.task}")

    def progress(self, percent: float | None, message: str | None = None) -> None:
        """Says how far the job is, 0 to 100; the last one counts, written at most twice a second."""
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
        """Whether the body is to stop: cancelled, out of time, its worker about to end, or its claim lost."""
        return self._execution.stop is not None

    def raise_if_cancelled(self) -> None:
        """Ends the body here if it is to stop."""
        if self._execution.stop is not None:
            raise Interrupted(self._execution.stop)

    @property
    def parent_results(self) -> Mapping[str, Any]:
        """The results of the jobs this one waited for, by step name and by job id."""
        from dray.runtime.body import parent_results  # noqa: PLC0415 - body makes contexts

        return parent_results(self._execution.link.backend, self.job_id) or {}

    def add(
        self,
        task: Task[..., Any] | Bound[..., Any],
        *args: Any,
        after: Sequence[Parent] | Parent | None = None,
        step: str | None = None,
        on_parent_failure: Literal["cancel", "run", "hold"] | None = None,
        pass_parent_results: bool = True,
        **kwargs: Any,
    ) -> Step:
        """Adds a step to the workflow that this job belongs to, as `Workflow.add` does.

        It is written together with the completion of this job, and not at all if the job fails or is tried again.
        """
        if self._is_sealed or self._execution.is_written:
            raise ConfigError("this job is completed already: add steps to its workflow before that")
        if self._steps is None:
            self._steps = steps_of(self._execution)
        options = Options(after, step, on_parent_failure, pass_parent_results)
        added = self._steps.add(task, args, kwargs, options)
        self._execution.grown.append(self._steps.job(added))
        return added

    def transaction(self, result: Any = None) -> Transaction:
        """``with ctx.transaction() as tx``: what is written through `tx` and the job's completion commit together.

        ``async with`` in coroutines. `tx.result` sets the result. A lost claim raises `StaleClaim`, and neither
        is kept.
        """
        return Transaction(self._execution, self.completion, result)

    def complete(self, *, connection: Any, result: Any = None) -> None:
        """Completes the job in the transaction that your connection has open; it stands when you commit.

        A lost claim raises `StaleClaim`: roll back.
        """
        execution = self._execution
        backend, completion = execution.link.backend, self.completion(result)
        backend.work.complete(execution.worker_id, completion, connection, new=execution.grown)
        self._is_sealed = True

    async def acomplete(self, *, connection: Any, result: Any = None) -> None:
        """As `complete`, for an asynchronous connection or session."""
        execution = self._execution
        backend, completion = execution.link.backend, self.completion(result)
        await backend.work.complete_async(execution.worker_id, completion, connection, new=execution.grown)
        self._is_sealed = True

    def completion(self, result: Any) -> Settlement:
        """The settlement that completes this attempt now; `PayloadError` before anything is written."""
        execution = self._execution
        text = None
        if result is not None:
            text = codec.encode(to_json(result, "result"), path="result", limit=RESULT_BYTES)
        if execution.started is None:
            raise ConfigError("a job can be completed by its own body only, while it runs")
        now = execution.link.clock.steady()
        keep_args = execution.task.options.keep_args
        return settlement.completed(execution.claim, execution.started, now, text, keep_args=keep_args)
