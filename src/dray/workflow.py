"""Workflows as producers make them: steps are added, then all of it is enqueued at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import UUID

from dray.errors import ConfigError, GraphError, UnknownWorkflow
from dray.handle import Desk, Run
from dray.model import workflow as model
from dray.model.limits import JOB_NAME_CHARS
from dray.model.new_job import NewJob
from dray.model.values import shown
from dray.runtime import loading
from dray.settings import Durability
from dray.task import Bound, Task
from dray.task.checks import label
from dray.task.steps import Options, Parent, Step, Steps
from dray.wording import counted

if TYPE_CHECKING:
    from dray.backends.base import Backend


class Office(Desk, Protocol):
    """What a workflow asks of its App."""

    @property
    def backend(self) -> Backend: ...
    @property
    def durability(self) -> Durability: ...
    def new_id(self) -> str: ...
    def announce(self, queues: Iterable[str]) -> None: ...


class Workflow:
    """A named graph of jobs that is being made. `add` its steps, then `enqueue` it, once."""

    def __init__(self, app: Office, name: str) -> None:
        self.name = label("a workflow's name", name, JOB_NAME_CHARS)
        self.id = app.new_id()
        self._app = app
        self._is_enqueued = False
        self._steps = Steps(self.id, lambda _job, _number: app.new_id())

    def __repr__(self) -> str:
        return f"<Workflow {self.name} {self.id} of {counted(len(self._steps), 'step')}>"

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
        """Adds a call of a task, with `task.using(...)` where it needs options; runs `after` steps, jobs or names."""
        self._refuse_enqueued()
        return self._steps.add(task, args, kwargs, Options(after, step, on_parent_failure, pass_parent_results))

    def enqueue(self, *, connection: Any = None) -> Run:
        """Writes all jobs and edges in one transaction, or, if anything is wrong with them, nothing."""
        new = self._finished()
        durable = self._app.durability is not Durability.NORMAL
        self._app.backend.jobs.enqueue(new, workflow=self._row, connection=connection, durable=durable)
        self._is_enqueued = True
        if connection is None:  # otherwise it is for the user to commit, and the database tells
            self._app.announce({job.queue for job in new if not job.parents})
        return Run(self._app, self.id)

    async def aenqueue(self, *, connection: Any = None) -> Run:
        """As `enqueue`, from a coroutine; takes asynchronous connections too."""
        import asyncio  # noqa: PLC0415 - whoever has a coroutine has loaded it; nobody else should

        if connection is None:
            return await asyncio.to_thread(self.enqueue)
        await self._app.backend.jobs.enqueue_async(self._finished(), workflow=self._row, connection=connection)
        self._is_enqueued = True
        return Run(self._app, self.id)

    def _finished(self) -> list[NewJob]:
        loading.stop_here()
        self._refuse_enqueued()
        if not len(self._steps):
            raise GraphError(f"workflow {self.name} has no steps; add some before it is enqueued")
        return self._steps.finish()

    @property
    def _row(self) -> model.Workflow:
        return model.Workflow(self.id, self.name, 0)

    def _refuse_enqueued(self) -> None:
        if self._is_enqueued:
            raise ConfigError(
                f"workflow {self.name} is enqueued already: make another one, or add steps in the body of one of its "
                "own, with ctx.add()"
            )


def run_of(app: Desk, run_id: Any) -> Run:
    """The workflow of this id; `UnknownWorkflow` if there is none."""
    return Run(app, checked_id(run_id)).refresh()


def checked_id(run_id: Any) -> str:
    """The id of a workflow, from its handle or as text."""
    given = run_id if isinstance(run_id, str | UUID) else getattr(run_id, "id", None)
    if not isinstance(given, str | UUID):
        raise TypeError(f"a workflow's id is a string, not {type(run_id).__name__}; pass run.id")
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise UnknownWorkflow(f"{shown(given)} is no workflow's id; pass a whole one, as run.id has it") from None


def runs(app: Desk, limit: int, after: Any = None) -> list[Run]:
    """The newest workflows; `after` the last one of a list come the next ones."""
    more = {} if after is None else {"before": checked_id(after)}
    return [Run(app, row.id, row) for row in app.backend.workflows.newest(limit=limit, **more)]
