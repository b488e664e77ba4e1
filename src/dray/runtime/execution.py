"""One attempt in a worker, from its claim to its outcome."""

from __future__ import annotations

import contextvars
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from dray.errors import PayloadError
from dray.log import log
from dray.wording import short_id

if TYPE_CHECKING:
    from collections import deque

    from dray.backends import Backend
    from dray.clock import Clock
    from dray.model.job import Claim, LogLine
    from dray.model.new_job import NewJob
    from dray.model.settlement import Rng
    from dray.task.task import Task


class Link(Protocol):
    """What a running body is connected to: the engine of its worker, or the pipe to it from a child process."""

    clock: Clock
    rng: Rng

    @property
    def backend(self) -> Backend:
        """For what bodies do themselves: transactions, parents' results. The engine has its own."""
        ...

    def began(self, execution: Execution) -> None: ...  # the body starts now
    def note(self, execution: Execution) -> None: ...  # there are log lines or progress to write
    def written(self, execution: Execution) -> None: ...  # the body has completed its job itself, and goes on


class StopCause(StrEnum):
    """Why a body has to stop before its end."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"  # a cancel was requested
    SHUTDOWN = "shutdown"  # the worker ends; the job goes back and the attempt does not count
    LOST = "lost"  # another worker has the job: the outcome is not written


class Execution:
    """An attempt, running or about to. Only the runner that has it changes `started` and `is_over`."""

    # Defaults of the class: most executions never set most of them, and a worker makes thousands a second.
    runner: Any = None  # the runner that has it
    started: int | None = None  # readings of the steady clock, as all times here
    deadline: int | None = None  # when its timeout is over
    stop: StopCause | None = None  # the first cause counts
    stopped_at: int | None = None  # when it first had to stop
    abandon_at: int | None = None  # when force is used
    told_at: int | None = None  # when its runner last told it to stop
    is_over: bool = False
    is_stuck: bool = False  # it did not stop, and nothing more can be done
    fanout_pending: bool = True  # if it is written by its body, children may wait for it
    is_written: bool = False  # the body has completed the job in a transaction of its own
    lines: deque[LogLine] | None = None  # captured and not yet written
    report: tuple[float | None, str | None] | None = None  # progress that is not yet written
    call: tuple[list[Any], dict[str, Any]] | None = None  # what the body is called with, if something may ask
    follower: Execution | None = None  # a standby that has started in its place

    def __init__(self, claim: Claim, task: Task[..., Any], worker_id: str, link: Link) -> None:
        self.claim, self.task, self.worker_id, self.link = claim, task, worker_id, link
        self.grown: list[NewJob] = []  # steps for its workflow, written if and when it completes

    def begin(self, now: int) -> None:
        """The body starts. Its timeout counts from here, not from the claim."""
        self.started = now
        if self.claim.timeout is not None:
            self.deadline = now + int(self.claim.timeout * 1_000_000)

    def __repr__(self) -> str:
        return f"<Execution {self.claim.task} {self.claim.id} attempt {self.claim.attempt}>"


class Interrupted(BaseException):
    """Raised into a body that has to stop. Not an Exception, so that ``except Exception`` lets it through.

    Example:

        >>> issubclass(Interrupted, Exception)
        False
    """


def deliver_stop() -> None:
    """Ends the body that runs here if it has to stop and could not be told so: it was in shared code, as it is now,
    where that code can bear an exception."""
    execution = current.get()
    if execution is not None and execution.stop is not None and execution.told_at is None:
        execution.told_at = execution.stopped_at
        raise Interrupted(execution.stop)


# The execution whose body runs here: log records and Context find it.
current: contextvars.ContextVar[Execution | None] = contextvars.ContextVar("dray_execution", default=None)


def missing_keys(executions: Sequence[Execution], keyed_tasks: Collection[str]) -> dict[Execution, str]:
    """The keys of jobs that were enqueued where their tasks were not known."""
    without = [each for each in executions if each.claim.key is None and each.claim.task in keyed_tasks]
    return {each: key for each in without if (key := _missing_key(each)) is not None}


def _missing_key(execution: Execution) -> str | None:
    key = execution.task.options.key
    try:
        return None if key is None else key.of(execution.claim.args)
    except PayloadError as error:
        log.warning("job %s runs without a key: %s", short_id(execution.claim.id), error)
        return None
